"""Policy gradients: which way a score-function term pushes, and whether its baseline learns from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from keyword import iskeyword

from neuraldbg.analysis.causes.loop_reading import Fact, text_at
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.idioms import identifiers
from neuraldbg.records import Finding, Severity

_WANTED = re.compile(  # what people call a number that should become large
    r"^(rets?|rews?|advs?|gaes?)$|reward|return|advantage|payoff|utility|^adv_|_adv$|_ret$|_rew$",
)
_UNWANTED = re.compile(r"cost|loss|regret|penalt|error|energy|distance|nll", re.IGNORECASE)
_MADE_SMALL = re.compile(  # a script with such variables may call a reward what it wants small
    r"^tour|^costs?$|_costs?$|^cost_|latency|makespan|regret|minimi[sz]e", re.IGNORECASE
)
_NAME = re.compile(r"[A-Za-z_]\w*")
TOGETHER = 0.3  # correlation from which a variable is said to rise with the worth


def lowers_its_reward(evidence: Evidence) -> Iterator[Finding]:
    """log_prob * advantage with a plus sign: what pays is made less likely."""
    for (line, source), facts in _by_line(evidence).items():
        constant = [fact for fact in facts if fact["constant"]]
        if not constant or any(fact["sign"] != 1.0 for fact in constant):
            continue
        named = _named_reward(constant) if any(fact["rises_with"] for fact in constant) else None
        name = named or _on_the_line(text_at(evidence, source))
        if name is None or _falls_with_a_reward(constant):
            continue
        small = any(_MADE_SMALL.search(one) for one in identifiers(evidence))
        yield Finding(
            "loss_sign_flipped",
            Severity.WARNING if named and not small else Severity.INFO,
            f"the log-probability times {name} enters the loss with a plus sign: what pays is made less likely",
            step=int(constant[0]["step"]),
            source=source or evidence.source(line),
            evidence={
                "sign": 1.0,
                "variable": name,
                "seen_at_steps": len(constant),
                "text": text_at(evidence, source).strip()[:120],
            },
            confidence=0.85 if named and not small else 0.45,
            inference="a step down this loss lowers the probability of the actions with the highest worth",
        )
        return


def _by_line(evidence: Evidence) -> dict[tuple[int, str | None], list[Fact]]:
    """By the line that calls backward and the line of the product."""
    found: dict[tuple[int, str | None], list[Fact]] = {}
    for fact in evidence.facts("score_term"):
        found.setdefault((fact["source_id"], fact.get("line")), []).append(fact)
    return found


def _named_reward(facts: list[Fact]) -> str | None:
    """A variable with the name of a reward that the worth always rises with, the closest one."""
    seen: dict[str, list[float]] = {}
    for fact in facts:
        for name, together in fact["rises_with"]:
            if _means_reward(name):
                seen.setdefault(name, []).append(float(together))
    rising = {name: min(values) for name, values in seen.items() if min(values) > TOGETHER}
    return max(rising, key=lambda name: rising[name]) if rising else None


def _falls_with_a_reward(facts: list[Fact]) -> bool:
    """Or rises with a cost: then a plus sign is right."""
    pairs = [(name, float(together)) for fact in facts for name, together in fact["rises_with"]]
    return any(
        (_means_reward(name) and together < -TOGETHER) or (_UNWANTED.search(name) and together > TOGETHER)
        for name, together in pairs
    )


def _means_reward(name: str) -> bool:
    return not iskeyword(name) and bool(_WANTED.search(name)) and not _UNWANTED.search(name)


def _on_the_line(text: str) -> str | None:
    """A reward among the names of a line, when no minus stands before it and no cost among them."""
    code = text.partition("#")[0]
    right = code.partition("=")[2] or code
    names = [(one.group(), right[: one.start()].rstrip()) for one in _NAME.finditer(right)]
    if any(_UNWANTED.search(name) for name, _ in names):
        return None
    wanted = [(name, before) for name, before in names if _means_reward(name) and len(name) > 1]
    return wanted[0][0] if wanted and not any(before.endswith("-") for _, before in wanted) else None


def learns_its_baseline(evidence: Evidence) -> Iterator[Finding]:
    """log_prob * (reward - value) with the graph of the value, which another term fits to the reward."""
    for (line, _), facts in _by_line(evidence).items():
        found = next((fact for fact in facts if fact["baseline"]), None)
        if found is None:
            continue
        layer = _layer(evidence, found["baseline_inside"])
        source = found.get("baseline_line") or found.get("line") or evidence.source(line)
        yield Finding(
            "missing_detach",
            Severity.WARNING,
            f"the advantage in the policy loss carries the graph of {layer or 'the value'}: "
            "the policy's loss also moves the estimate it is judged by",
            step=int(found["step"]),
            layer=layer,
            source=source,
            evidence={
                "backward_line": evidence.source(line) or "unknown",
                "policy_loss_line": found.get("line") or "unknown",
                "text": text_at(evidence, source).strip()[:120],
            },
            confidence=0.93,
            inference="a baseline is a constant of the policy's loss; its own regression teaches it",
        )
        return


def _layer(evidence: Evidence, inside: list[int]) -> str | None:
    """Of a network of its own its name, of a head of a shared one that layer."""
    names = [name for site in inside if (name := evidence.name(site))]
    return names[-1] if names else None
