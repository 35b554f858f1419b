"""Cures of schedules: the scheduler stepped where its settings count."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes import cure
from neuraldbg.analysis.fixes.editing import Script, called
from neuraldbg.analysis.fixes.placing import at, every_script, line_of, offered, reaches, script_at
from neuraldbg.records import Call, Finding, Fix


@cure("scheduler_misuse")
def scheduler_misuse(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    if finding.evidence.get("scheduler_steps") == 0.0:
        yield from _never_stepped(evidence)
    elif "share_of_updates_at_no_rate" in finding.evidence:
        yield from _stepped_too_often(evidence)
    elif _counts_updates(finding):
        yield from _stepped_too_rarely(finding, evidence)


def _counts_updates(finding: Finding) -> bool:
    """A plan about as long as the run has updates, and a schedule that came nowhere near its end."""
    planned = finding.evidence.get("planned_steps") or finding.evidence.get("steps_to_full_rate")
    steps, updates = (finding.evidence.get(each) for each in ("scheduler_steps", "updates"))
    known = all(isinstance(each, int | float) for each in (planned, steps, updates))
    return known and float(steps or 0) < 0.5 * float(planned or 0) <= 0.55 * float(updates or 0)


def _stepped_too_rarely(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """`schedule.step()` behind the loop of batches: to behind the update in it."""
    rare, update = at(finding, evidence), line_of(evidence, Call.STEP)
    if rare is None or update is None or rare[0].file != update[0].file:
        return
    script, moving, target = rare[0], rare[0].statement(rare[1]), update[0].statement(update[1])
    if target is None or not isinstance(moving, ast.Expr) or called(moving.value) != "step":
        return
    inner, outer = script.loop_around(target), script.loop_around(moving)
    if inner is None or outer is None or script.loop_around(inner) is not outer:
        return
    if script.function_around(moving) is script.function_around(target):
        changed = script.move(moving, target, after=True)
        yield from offered("Step the schedule after each update, as it was planned", "S", script, changed)


def _never_stepped(evidence: Evidence) -> Iterator[Fix]:
    """After each update, where there is one loop only: of two, nobody can tell which one the schedule counts."""
    step, fact = line_of(evidence, Call.STEP), evidence.fact("scheduler")
    made = None if fact is None else script_at(evidence, fact.get("source"))
    if step is None or made is None or len(evidence.facts("scheduler")) != 1:
        return
    script, update = step[0], step[0].statement(step[1])
    named = made[0].statement(made[1])
    loop = None if update is None else script.loop_around(update)
    if update is None or loop is None or script.loop_around(loop) is not None or not isinstance(named, ast.Assign):
        return
    name = made[0].source(named.targets[0])
    same = made[0].file == script.file and script.function_around(named) is script.function_around(update)
    if same and reaches(script, update, name):
        changed = script.insert(update, f"{name}.step()", after=True)
        yield from offered(f"Step the schedule after each update: {name}.step()", "S", script, changed)


def _stepped_too_often(evidence: Evidence) -> Iterator[Fix]:
    """Stepped in every batch where once per epoch was meant: one block further out."""
    for script in every_script(evidence):
        steps = [call for call in script.calls("step") if "sched" in ast.unparse(call.func).lower()]
        statement = script.statement(steps[0].lineno) if len(steps) == 1 else None
        loop = None if statement is None else script.loop_around(statement)
        if statement is None or loop is None:
            continue
        if _runs_again(script, loop):
            changed = script.move(statement, loop, after=True)
            yield from offered("Step the scheduler once per epoch, after the batches", "S", script, changed)
        return


def _runs_again(script: Script, loop: ast.For | ast.While) -> bool:
    """A loop of batches: inside one of epochs, or in a function that is called for each."""
    return script.loop_around(loop) is not None or script.function_around(loop) is not None
