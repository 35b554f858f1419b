"""Checkpoints that did not do what they were meant to: silent errors around saving, loading and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Call, Finding, Severity

MOSTLY = 0.5  # share of a module's tensors


def _loads(evidence: Evidence, owner: str) -> list[dict[str, Any]]:
    return [fact for fact in evidence.facts("state_loaded") if fact.get("owner") == owner]


@cause(
    "checkpoint_not_loaded",
    group="loop",
    auto="S",
    explains=("no_learning", "slow_convergence", "train_eval_mismatch", "underfitting"),
)
def checkpoint_not_loaded(evidence: Evidence) -> Iterator[Finding]:
    """A load matched few or no keys and was let through.

    Finds: a load_state_dict(strict=False) in which most of the module's tensors were missing from the state while most
    of the state's names were unknown to the module.
    Why it matters: the module keeps its random weights although the script believes it has loaded trained ones; nothing
    fails, results are just worse.
    Decides by: the missing and unexpected keys that the load itself returned; both must cover more than half.
    Usual cures: strip or add the prefix ("module.", "model."), pick the nested dict (ckpt["state_dict"]), load with
    strict=True so that a mismatch is an error.
    """
    for fact in _loads(evidence, "module"):
        own, given = fact.get("own_keys") or 0, fact.get("keys") or 0
        missing, unexpected = fact.get("missing") or 0, fact.get("unexpected") or 0
        nested = given == 0 and missing >= own > 0
        if not own or missing < MOSTLY * own or not (nested or unexpected >= MOSTLY * max(given, 1)):
            continue
        names = {"first_missing": _first(fact, "missing_names"), "first_unexpected": _first(fact, "unexpected_names")}
        yield Finding(
            "checkpoint_not_loaded",
            Severity.CRITICAL,
            f"the state loaded into {fact.get('name')} matched {own - missing} of its {own} tensors: "
            "it keeps its own weights",
            step=fact.get("step"),
            layer=evidence.name(fact.get("site")),
            source=fact.get("line"),
            evidence={
                "tensors_of_the_module": own,
                "missing_in_the_state": missing,
                "unknown_to_the_module": unexpected,
                **{name: value for name, value in names.items() if value},
            },
            confidence=0.97,
            inference=_prefix(names["first_missing"], names["first_unexpected"]),
        )
        return


def _first(fact: dict[str, Any], key: str) -> str | None:
    names = fact.get(key) or []
    return str(names[0]) if names else None


def _prefix(missing: str | None, unexpected: str | None) -> str:
    """What would make the names fit, where one is the other behind a prefix."""
    if missing and unexpected:
        if unexpected.endswith(f".{missing}"):
            return f"Names in the state carry the prefix {unexpected[: -len(missing)]!r}, those of the module do not."
        if missing.endswith(f".{unexpected}"):
            return f"The module's names carry the prefix {missing[: -len(unexpected)]!r}, those of the state do not."
    return "The names in the state are not those of the module, and strict=False let it pass."


@cause("checkpoint_aliases_live_weights", group="loop", auto="S", explains=("train_eval_mismatch",))
def checkpoint_aliases_live_weights(evidence: Evidence) -> Iterator[Finding]:
    """A saved state is the live weights themselves.

    Finds: a load_state_dict whose source tensors lie at the very addresses of the module's own tensors, after updates
    have been made.
    Why it matters: `best = model.state_dict()` keeps references, not values: training goes on changing them, and
    loading them back changes nothing. The "best" model is the last one.
    Decides by: equal data pointers of source and target at the moment of the load.
    Usual cures: copy.deepcopy(model.state_dict()), or {k: v.clone() for k, v in model.state_dict().items()}.
    """
    for fact in _loads(evidence, "module"):
        shared, keys = fact.get("shared") or 0, fact.get("keys") or 0
        if keys and shared >= MOSTLY * keys and (fact.get("step") or 0) > 0:
            yield Finding(
                "checkpoint_aliases_live_weights",
                Severity.CRITICAL,
                f"the state loaded into {fact.get('name')} is its own live weights: loading it changes nothing",
                step=fact.get("step"),
                layer=None,
                source=fact.get("line"),
                evidence={"tensors_loaded": keys, "of_them_the_live_ones": shared, "at_update": fact.get("step") or 0},
                confidence=0.98,
                inference="state_dict() hands out references: the saved state moved with every update since.",
            )
            return


@cause("optimizer_state_not_restored", group="loop", auto="S", explains=("loss_spike", "update_ratio_too_high"))
def optimizer_state_not_restored(evidence: Evidence) -> Iterator[Finding]:
    """Training resumed with the weights but without the optimizer's state.

    Finds: weights loaded into a model, then updates by a fresh optimizer with momentum or moment estimates, while the
    saved state of an optimizer was at hand (in the file that was read, or taken by state_dict()) and never loaded.
    Why it matters: Adam's moments start at zero: the first steps after the resume are far too large or too small, the
    loss jumps, and part of the progress is lost.
    Decides by: the states that were saved or read, and the loads that followed; fine-tuning from weights alone, where
    no optimizer state exists, is not reported.
    Usual cures: optimizer.load_state_dict(checkpoint["optimizer"]) after loading the model; the same for the scheduler
    and the GradScaler.
    """
    loads = [fact for fact in _loads(evidence, "module") if fact.get("model") is not None or fact.get("site") is None]
    restored = [fact["seq"] for fact in _loads(evidence, "optimizer")]
    for load in loads:
        offered = _offered(evidence, load["seq"])
        fresh = _fresh_optimizer(evidence, load["seq"])
        if offered is None or fresh is None or any(seq > offered["seq"] for seq in restored):
            continue
        yield Finding(
            "optimizer_state_not_restored",
            Severity.WARNING,
            f"training resumes at update {fresh['step']:,} with the loaded weights and a fresh {fresh['class']}: "
            "the saved optimizer state was never loaded",
            step=fresh["step"],
            source=load.get("line"),
            evidence={
                "optimizer": fresh["name"],
                "class": fresh["class"],
                "optimizer_state_at_hand": offered["what"],
                "optimizer_loads_after_it": 0,
                "updates_after_the_load": fresh["updates"],
            },
            confidence=0.9,
            inference="Its running averages start from zero, so the first steps after the resume have the wrong size.",
        )
        return


def _offered(evidence: Evidence, before: int) -> dict[str, Any] | None:
    """A saved optimizer state that existed when the weights were loaded."""
    for fact in reversed(evidence.facts("checkpoint_read")):
        if fact["seq"] < before and fact.get("optimizer_keys"):
            return {"seq": fact["seq"], "what": f"in the file, under {fact['optimizer_keys'][0]!r}"}
    for fact in reversed(evidence.facts("state_taken")):
        if fact["seq"] < before and fact.get("has_state"):
            return {"seq": fact["seq"], "what": f"taken after {fact.get('updates')} updates"}
    return None


def _fresh_optimizer(evidence: Evidence, after: int) -> dict[str, Any] | None:
    """A stateful optimizer whose first update comes after the load."""
    for fact in evidence.facts("optimizer"):
        steps = evidence.of_call(Call.STEP, site=fact["site"])
        stateful = any(_keeps_state(group) for group in fact.get("groups") or ())
        if stateful and len(steps["seq"]) and int(steps["seq"][0]) > after:
            return {
                "step": int(steps["step"][0]),
                "class": fact.get("class"),
                "name": fact.get("name"),
                "updates": len(steps["seq"]),
            }
    return None


def _keeps_state(group: dict[str, Any]) -> bool:
    return bool(group.get("momentum")) or any(group.get(name) for name in ("betas", "alpha", "rho"))
