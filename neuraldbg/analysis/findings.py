"""A diagnosis as plain values: the shape of SPEC's `findings`, of `findings.jsonl`, of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neuraldbg.records import Diagnosis, Finding, Fix


def as_dict(one: Diagnosis) -> dict[str, Any]:
    finding = one.finding
    return {
        "id": identity(finding),
        "kind": finding.kind,
        "severity": finding.severity.value,
        "confidence": finding.confidence,
        "step": finding.step,
        "last_step": finding.last_step,
        "layer": finding.layer,
        "op": finding.op,
        "source": finding.source,
        "summary": finding.summary,
        "evidence": {name: plain(value) for name, value in finding.evidence.items()},
        "inference": finding.inference,
        "chain": [_link(each) for each in one.chain],
        "suggestions": [_suggestion(fix) for fix in one.fixes],
        "rank": finding.rank,
    }


def identity(finding: Finding) -> str:
    """The same finding of the same run has the same id, also when it is found again with more evidence."""
    parts = (finding.kind, finding.layer or "", str(finding.rank))
    return ":".join(parts)


def _link(each: Finding) -> dict[str, Any]:
    return {"kind": each.kind, "layer": each.layer, "step": each.step, "summary": each.summary}


def _suggestion(fix: Fix) -> dict[str, Any]:
    return {
        "title": fix.title,
        "patch": fix.patch,
        "auto": fix.auto,
        "verified": fix.verified,
        "effect": fix.effect,
    }


def plain(value: Any) -> Any:
    """NumPy numbers as Python's; everything else but numbers, strings and None as text."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def strict(value: Any) -> Any:
    """The value with every float that JSON has no word for written as "nan", "inf" or "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value
