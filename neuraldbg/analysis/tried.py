"""What was tried on a run, and how its findings look in that light: a cause whose cure worked comes first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuraldbg.analysis.diagnose import LOUD, Judgement
from neuraldbg.records import Diagnosis, Fix, Severity

_NO_CURE = {"no_effect": "no effect, ", "harm": "does harm, ", "helps": "helps, "}
OUTCOME = "whatif.json"  # in the run directory


def read_tried(run_dir: Path) -> dict[str, Any] | None:
    """The last experiment on a run; None where there was none."""
    try:
        found = json.loads((run_dir / OUTCOME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("arms"), list) else None


def in_the_light_of(judgement: Judgement, tried: Mapping[str, Any] | None) -> Judgement:
    """The same diagnoses: fixes that were tried say so, and a cause that was proved is told first and never quietly."""
    if tried is None:
        return judgement
    arms = [arm for arm in tried["arms"] if isinstance(arm, Mapping)]
    proved = {cause for arm in arms if arm.get("verdict") == "verified" for cause in arm.get("causes") or ()}
    told = [_tried(one, arms, proved=one.finding.kind in proved) for one in judgement.diagnoses]
    told.sort(key=lambda one: one.finding.kind not in proved)
    return replace(judgement, diagnoses=tuple(told))


def _tried(one: Diagnosis, arms: list[Mapping[str, Any]], *, proved: bool) -> Diagnosis:
    mine = [arm for arm in arms if one.finding.kind in (arm.get("causes") or ())]
    if not mine:
        return one
    fixes = tuple(_marked(fix, mine) for fix in one.fixes)
    known = {fix.title for fix in fixes}
    fixes += tuple(fix for fix in map(_as_fix, mine) if fix is not None and fix.title not in known)
    fixes = tuple(sorted(fixes, key=_promise))
    finding = one.finding
    if proved:
        severity = finding.severity if finding.severity in LOUD else Severity.WARNING
        finding = replace(finding, severity=severity, confidence=max(finding.confidence or 0.0, 0.99))
    return replace(one, finding=finding, fixes=fixes)


def _promise(fix: Fix) -> int:
    """What was proved first, what was tried and did not prove itself last."""
    return {True: 0, None: 1, False: 2}[fix.verified]


def _marked(fix: Fix, arms: list[Mapping[str, Any]]) -> Fix:
    for arm in arms:
        if fix.patch is not None and arm.get("patch") == fix.patch:
            return replace(fix, verified=arm["verdict"] == "verified", effect=_told(arm))
    return fix


def _as_fix(arm: Mapping[str, Any]) -> Fix | None:
    """A change that proved itself and is no patch is worth being told as well."""
    if arm.get("patch") is not None or arm["verdict"] not in ("verified", "helps"):
        return None
    return Fix(f"tried: {arm['intervention']}", auto="R", verified=arm["verdict"] == "verified", effect=_told(arm))


def _told(arm: Mapping[str, Any]) -> str:
    return _NO_CURE.get(arm["verdict"], "") + effect_of(arm)


def effect_of(arm: Mapping[str, Any]) -> str:
    """`loss 1.93 -> 0.002`."""
    metric = arm.get("metric") or {}
    return f"{metric.get('name', 'loss')} {_short(metric.get('control'))} -> {_short(metric.get('arm'))}"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "not finite" if value is not None else "-"
