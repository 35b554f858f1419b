"""Patches of `.neural` files. Their language is not Python: lines are edited as text, and only where one place fits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.fixes.optim import better_factor, clip_value, rate_of
from neuraldbg.analysis.fixes.placing import write
from neuraldbg.analysis.places import split
from neuraldbg.records import Finding, Fix

SUFFIXES = (".neural", ".nr", ".rnr")
LONGEST_LAYER = 6  # lines
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RATE = re.compile(rf"(\b(?:learning_rate|lr)\s*[=:]\s*)({_NUMBER})")
_SCHEDULE = re.compile(rf"(\b(?:learning_rate|lr)\s*[=:]\s*\w+\(\s*(?:initial\w*\s*[=:]\s*)?)({_NUMBER})")
_BARE_OPTIMIZER = re.compile(r"(\boptimizer\s*:\s*)[\"']?([A-Za-z]\w*)[\"']?(\(\s*\))?(?=\s*(?:[,;}#/\n]|$))")
_TRAIN = re.compile(r"\btrain\s*\{")
_CLIP = re.compile(r"\b(?:gradient_clip\w*|clip_?norm|clip_?value)\b")
_SOFTMAX_ARGUMENT = re.compile(
    r"\s*,\s*(?:activation\s*[=:]\s*)?[\"']?(?:log_)?softmax[\"']?(?=\s*[,)])", re.IGNORECASE
)
_SOFTMAX_LAYER = re.compile(
    r"^[ \t]*(?:Activation\(\s*[\"']?softmax[\"']?\s*\)|Softmax\(\s*\))[ \t]*[,;]?[ \t]*\n", re.M | re.I
)
_FLAT = re.compile(r"([\"'(=\s])(?:sigmoid|tanh)\b", re.IGNORECASE)
Change = tuple[str, str] | None  # what it does, and the whole text afterwards
Edit = Callable[[str, int, Finding, Evidence], Change]


def neural_fixes(finding: Finding, evidence: Evidence) -> Iterator[Fix]:
    """The patch of a finding in a run of a `.neural` file; nothing for any other."""
    edit = EDITS.get(finding.kind)
    place = _place(finding, evidence)
    if edit is None or place is None:
        return
    file, line, text = place
    change = edit(text, line, finding, evidence)
    if change is not None and change[1] != text:
        yield Fix(change[0], _diff(file, text, change[1]), "S")


def is_neural(finding: Finding, evidence: Evidence) -> bool:
    return _place(finding, evidence) is not None


def _place(finding: Finding, evidence: Evidence) -> tuple[str, int, str] | None:
    """File, line (0: none is known) and text. A finding without a line belongs to the one file there is."""
    known = split(finding.source)
    if known is not None and not known[0].endswith(SUFFIXES):
        return None
    files = [fact["file"] for fact in evidence.facts("source_file") if str(fact["file"]).endswith(SUFFIXES)]
    if known is None and len(files) != 1:
        return None
    file, line = known if known is not None else (files[0], 0)
    text = evidence.text(file)
    return None if text is None else (file, line, text)


def _diff(file: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), file, file)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


# -- edits -------------------------------------------------------------------------------------------------------------


def _within(text: str, line: int, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The first match in the layer that begins on a line."""
    starts = [0, *(each.end() for each in re.finditer("\n", text))]
    if not 1 <= line <= len(starts):
        return None
    first = starts[line - 1]
    last = starts[line - 1 + LONGEST_LAYER] if line - 1 + LONGEST_LAYER < len(starts) else len(text)
    return pattern.search(text, first, last)


def _alone(text: str, line: int, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The match on a line; elsewhere only where the file has no other."""
    here = _within(text, line, pattern) if line else None
    found = list(pattern.finditer(text))
    return here or (found[0] if len(found) == 1 else None)


def _without_softmax(text: str, line: int, _: Finding, __: Evidence) -> Change:
    found = _within(text, line, _SOFTMAX_ARGUMENT) or _within(text, line, _SOFTMAX_LAYER)
    if found is None:
        return None
    return "Leave the softmax out: the loss applies its own", text[: found.start()] + text[found.end() :]


def _other_rate(usual: float, word: str) -> Edit:
    def edit(text: str, line: int, finding: Finding, evidence: Evidence) -> Change:
        rate = rate_of(finding, evidence)
        if not rate:
            return None
        new = write(rate * (better_factor(finding) or usual))
        title = f"{word} the learning rate to {new}"
        found = _alone(text, line, _SCHEDULE) or _alone(text, line, _RATE)
        if found is not None:
            return title, text[: found.start(2)] + new + text[found.end(2) :]
        bare = _alone(text, line, _BARE_OPTIMIZER)
        if bare is None:
            return None
        return title, text[: bare.start()] + f"{bare[1]}{bare[2]}(learning_rate={new})" + text[bare.end() :]

    return edit


def _clipped(text: str, _: int, __: Finding, evidence: Evidence) -> Change:
    limit = clip_value(evidence)
    found = _TRAIN.search(text)
    if limit is None or found is None or _CLIP.search(text) or len(_TRAIN.findall(text)) > 1:
        return None
    title = f"Clip the gradient norm at {write(limit)}, which nine of ten steps of this run stayed below"
    return title, f"{text[: found.end()]} gradient_clip: {write(limit)}{text[found.end() :]}"


def _rectified(text: str, line: int, _: Finding, __: Evidence) -> Change:
    found = _within(text, line, _FLAT)
    if found is None:
        return None
    return "Use relu instead", f"{text[: found.start()]}{found[1]}relu{text[found.end() :]}"


EDITS: dict[str, Edit] = {
    "softmax_before_cross_entropy": _without_softmax,
    "learning_rate_too_high": _other_rate(0.1, "Lower"),
    "learning_rate_too_low": _other_rate(100, "Raise"),
    "missing_gradient_clipping": _clipped,
    "exploding_gradient": _clipped,
    "saturating_activation": _rectified,
    "saturated_units": _rectified,
}
