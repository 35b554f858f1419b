"""The Neural language: `.neural` files, read without any framework."""

from __future__ import annotations

from neuraldbg.dsl.problems import Problem, Severity
from neuraldbg.dsl.program import Program, parse, parse_file

__all__ = ["Problem", "Program", "Severity", "parse", "parse_file"]
