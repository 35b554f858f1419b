"""Parameters that cannot learn: outside every optimizer, replaced behind its back, hidden from parameters(), frozen."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loop_reading import (
    STUCK,
    STUCK_CAUSES,
    Fact,
    anywhere,
    deepest_layer,
    error_of,
    layers_of,
    listed,
    made_at,
    main_optimizer,
    models_of,
    parameters_owned,
    stepping,
    steps_by,
    variable,
)
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.records import Finding, Severity

FEWEST = 3  # updates
ENOUGH = 50  # updates after which a loss that has not fallen says something
LARGE = 0.3  # share of a model without which it cannot do its work
MOST = 0.5
_FREEZE = re.compile(r"requires_grad\s*=\s*False|requires_grad_\(\s*False|requires_grad=False")
_LIST_OF_LAYERS = re.compile(r"self\.\w+\s*=\s*(\[|\{|list\(|dict\().*nn\.")
_EMPTY_OPTIMIZER = "optimizer got an empty parameter list"


def last_known_models(evidence: Evidence) -> list[Fact]:
    """Models of which some parameters are in no optimizer or frozen, as they were last seen."""
    found: list[Fact] = _last_known(evidence)["models"]
    return found


def _last_known(evidence: Evidence) -> Fact:
    """What was last seen of every model and optimizer while it lived: a loop in a function leaves neither behind."""

    def compute() -> Fact:
        models: dict[int, Fact] = {}
        hidden: dict[int, list[Fact]] = {}
        stale: dict[int, Fact] = {}
        for fact in evidence.facts("ownership"):
            for site in fact["alive"]:
                models.pop(site, None)
                hidden.pop(site, None)
            for site in fact["optimizers"]:
                stale.pop(site, None)
            models.update({one["site"]: one for one in fact["models"]})
            stale.update({one["optimizer"]: one for one in fact["stale"]})
            for one in fact["hidden"]:
                hidden.setdefault(one["model"], []).append(one)
        return {
            "models": list(models.values()),
            "hidden": [one for several in hidden.values() for one in several],
            "stale": list(stale.values()),
        }

    return evidence.once("ownership", compute)


def _ownership(evidence: Evidence) -> Fact | None:
    """Where optimizers are at work at all."""
    return _last_known(evidence) if sum(steps_by(evidence).values()) >= FEWEST else None


def _hidden_sites(fact: Fact) -> set[int]:
    return {site for one in fact["hidden"] for site in one["sites"]}


def _left_out(fact: Fact) -> list[tuple[Fact, list[int]]]:
    """Models with parameters that get gradients and have no owner: those hidden from parameters() apart."""
    hidden = _hidden_sites(fact)
    found = [(model, [site for site in model["unowned"] if site not in hidden]) for model in fact["models"]]
    return [(model, sites) for model, sites in found if sites]


def _deliberate(evidence: Evidence, model: Fact) -> str | None:
    """Why parameters that no optimizer has may be meant to stay as they are."""
    count = model["unowned_count"]
    if 2 * model["unowned_moved"] >= count:
        return "moved without an optimizer"
    if 2 * model["unowned_given"] >= count:
        return "loaded before"
    whole = not model["owned"]
    if whole and model["copied"]:
        return "a copy of another model"
    if whole and not model["training"]:
        return "in evaluation mode"
    owned = parameters_owned(evidence)
    sites = set().union(*(owned.get(site, set()) for site in stepping(evidence)), set())
    if sites and all(evidence.sites[site].model is None for site in sites if site in evidence.sites):
        return "only plain tensors are optimized"
    return None


@cause(
    "parameters_not_in_optimizer",
    group="loop",
    auto="R",
    explains=(*STUCK, *STUCK_CAUSES, "vanishing_gradient", "exploding_gradient"),
)
def parameters_not_in_optimizer(evidence: Evidence) -> Iterator[Finding]:
    """Trainable parameters that take part in the loss belong to no optimizer.

    Finds: parameters of models that run, with requires_grad and a gradient, that are in no optimizer's param_groups and
    never change.
    Why it matters: they keep their random initial values, and the rest has to work around them. Their gradients are
    computed, never applied and never cleared.
    Decides by: set difference by identity between the parameters of every model that was called and those of every
    optimizer. Parameters moved by hand or by averaging, loaded or trained before, copies of other models and models in
    evaluation mode (a fixed feature extractor) are information only.
    Usual cures: give the optimizer list(a.parameters()) + list(b.parameters()), or a param_group of its own.
    """
    fact = _ownership(evidence)
    if fact is None or (_stale(fact) is not None):
        return
    for model, sites in _left_out(fact):
        why = _deliberate(evidence, model)
        share = model["unowned_elements"] / max(model["trainable"], 1)
        optimizer = main_optimizer(evidence)
        layers = layers_of(evidence, sites)
        name, owner = variable(evidence, model["site"]), variable(evidence, optimizer)
        what = f"all of {name}" if not model["owned"] else f"{listed(layers)} of {name}"
        yield Finding(
            "parameters_not_in_optimizer",
            Severity.INFO if why else Severity.CRITICAL if share >= LARGE else Severity.WARNING,
            f"{what} gets gradients but is in no optimizer, so it never learns "
            + (f"(which may be meant: {why})" if why else f"({owner} does not have it)"),
            step=0,
            layer=deepest_layer(evidence, sites),
            source=made_at(evidence, optimizer),
            evidence={
                "optimizer": owner,
                "model": name,
                "parameters_left_out": model["unowned_count"],
                "share_of_model": round(share, 4),
                "layers": listed(layers, 8),
                **({"may_be_meant": why} if why else {}),
            },
            confidence=0.4 if why else 0.96,
            inference="" if why else "these weights stay as they were initialised",
        )


def _stale(fact: Fact) -> Fact | None:
    """An optimizer with parameters that no module has any more, while a model has some that nobody owns."""
    if not any(model["unowned_count"] for model in fact["models"]):
        return None
    return next((one for one in fact["stale"] if one["held"] < one["parameters"]), None)


@cause(
    "stale_parameters_in_optimizer",
    group="loop",
    auto="R",
    explains=(*STUCK, *STUCK_CAUSES, "parameters_not_in_optimizer", "missing_gradient", "backward_missing"),
)
def stale_parameters_in_optimizer(evidence: Evidence) -> Iterator[Finding]:
    """The optimizer holds parameters that are no longer part of the model.

    Finds: optimizers with parameters that no living module has and that never get a gradient, while the model that runs
    has parameters with gradients that no optimizer knows.
    Why it matters: step() moves tensors that nothing uses; the live ones stay as they are.
    Decides by: identity of the tensors in param_groups against those of all living modules.
    Usual cures: create the optimizer after the last change of the model (new head, copy, reinitialisation,
    load_state_dict(assign=True)), or add the new parameters with add_param_group.
    """
    fact = _ownership(evidence)
    stale = None if fact is None else _stale(fact)
    if fact is None or stale is None or steps_by(evidence)[stale["optimizer"]] < FEWEST:
        return
    models = [model for model in fact["models"] if model["unowned_count"] and not model["unowned_moved"]]
    models = [model for model in models if 2 * model["unowned_given"] < model["unowned_count"] or not model["owned"]]
    if not models:
        return
    model = max(models, key=lambda one: one["unowned_elements"])
    name, owner = variable(evidence, model["site"]), variable(evidence, stale["optimizer"])
    layers = layers_of(evidence, model["unowned"])
    whole = not model["owned"]
    yield Finding(
        "stale_parameters_in_optimizer",
        Severity.CRITICAL,
        f"{owner} updates parameters that {name} no longer has; the ones it uses now "
        f"({'all' if whole else listed(layers)}) are in no optimizer",
        step=0,
        layer=deepest_layer(evidence, model["unowned"]),
        source=made_at(evidence, stale["optimizer"]),
        evidence={
            "optimizer": owner,
            "model": name,
            "stale_parameters": stale["parameters"],
            "of_optimizer": stale["of"],
            "live_parameters_without_owner": model["unowned_count"],
            "layers": listed(layers, 8),
            **_replaced_at(evidence, model),
        },
        confidence=0.97,
        inference="the optimizer was made before the model was changed",
    )


def _replaced_at(evidence: Evidence, model: Fact) -> dict[str, str]:
    """Where the live parameters came from."""
    paths = {evidence.sites[site].path.rpartition(".")[0] for site in model["unowned"] if site in evidence.sites}
    lines = [
        site.defined
        for site in evidence.sites.values()
        if site.model == model["site"] and site.path in paths and site.defined is not None
    ]
    line = lines[-1] if lines and model["owned"] else made_at(evidence, model["site"])
    return {"replaced_at": line} if line else {}


@cause(
    "unregistered_parameters",
    group="loop",
    auto="S",
    explains=(*STUCK, *STUCK_CAUSES, "parameters_not_in_optimizer", "crash"),
)
def unregistered_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Layers or tensors kept in a plain list, dict or attribute are invisible to parameters().

    Finds: parameters that get gradients and are reachable from a module's own attributes, but not from its
    named_parameters(), and that no optimizer was given by other means.
    Why it matters: optimizer, state_dict(), .to(device), .eval() and requires_grad_() all pass them by: they never
    learn, are not saved and do not move to the device.
    Decides by: identity: leaves with a gradient found in lists, tuples, dicts and bare tensors of a module.
    Usual cures: nn.ModuleList, nn.ModuleDict, nn.ParameterList or nn.Parameter in place of the plain container.
    """
    for one in _last_known(evidence)["hidden"]:
        if one["moved"] or 2 * one["given"] >= one["parameters"] or sum(steps_by(evidence).values()) < FEWEST:
            continue
        model = evidence.sites.get(one["model"])
        size = model.parameters or 0 if model is not None else 0
        share = one["elements"] / max(size + one["elements"], 1)
        attribute = one["attribute"]
        optimizer = main_optimizer(evidence)
        kind = "a plain tensor" if one["container"] == "tensor" else f"a plain {one['container']}"
        yield Finding(
            "unregistered_parameters",
            Severity.CRITICAL if share >= LARGE else Severity.WARNING,
            f"{one['owner_class']}.{attribute.rpartition('.')[2]} is {kind}: parameters() does not see its "
            f"{one['parameters']} parameter{'s' if one['parameters'] > 1 else ''}, so they never learn",
            step=0,
            layer=attribute,
            source=_attribute_line(evidence, one) or made_at(evidence, optimizer),
            evidence={
                "class": one["owner_class"],
                "attribute": attribute.rpartition(".")[2],
                "container": one["container"],
                "hidden_parameters": one["parameters"],
                "share_of_weights": round(share, 4),
                "optimizer": variable(evidence, optimizer),
            },
            confidence=0.97,
            inference="what is not registered is not trained, saved or moved to a device",
        )
        return
    yield from _nothing_registered(evidence)


def _attribute_line(evidence: Evidence, one: Fact) -> str | None:
    """`self.blocks = [...]` in the class that keeps them."""
    begin = anywhere(evidence, re.compile(rf"^\s*class\s+{re.escape(one['owner_class'])}\b"))
    name = re.escape(one["attribute"].rpartition(".")[2])
    return anywhere(evidence, re.compile(rf"\.{name}\s*(:.*)?=[^=]"), after=begin)


def _nothing_registered(evidence: Evidence) -> Iterator[Finding]:
    """The optimizer refused the model: all its layers are in plain containers."""
    if _EMPTY_OPTIMIZER not in error_of(evidence):
        return
    line = anywhere(evidence, _LIST_OF_LAYERS)
    if line is not None:
        yield Finding(
            "unregistered_parameters",
            Severity.CRITICAL,
            "the optimizer got no parameters: the model keeps its layers in a plain list or dict",
            source=line,
            evidence={"error": error_of(evidence)[:200]},
            confidence=0.85,
            inference="what is not registered is not given by parameters()",
        )


@cause(
    "frozen_parameters",
    group="loop",
    auto="R",
    explains=(*STUCK, *STUCK_CAUSES, "missing_gradient", "detached_graph", "crash"),
)
def frozen_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Parameters that should learn have requires_grad=False.

    Finds: models of which a large part is frozen although its values are still those torch drew at random.
    Why it matters: random layers that never learn are no features; only the small rest of the network is trained.
    Decides by: requires_grad of every parameter of the models that run, and whether their values still fill exactly the
    range of the layer's own initialisation. Parts that were loaded, copied or trained before were frozen on purpose
    and are not reported. Frozen and kept out of the optimizer while the loss falls is information only, unless several
    layers learn behind those and a short training on recorded batches gets clearly further with all of them free.
    Usual cures: requires_grad_(True), or freeze only what was pre-trained.
    """
    trained = {model for optimizer in stepping(evidence) for model in models_of(evidence, optimizer)}
    for model in _last_known(evidence)["models"]:
        frozen, fresh = model["frozen_elements"], model["frozen_fresh"]
        if not frozen or frozen < MOST * model["elements"] or fresh < 0.8 * frozen:
            continue
        whole = not model["trainable"]
        stopped = "does not require grad" in error_of(evidence)
        if whole and not model["frozen_owned"] and not stopped:
            continue  # a fixed network that makes data, targets or features
        if not whole and model["site"] not in trained and not model["frozen_owned"]:
            continue
        meant = not model["frozen_owned"] and not stopped and (_falls(evidence) or evidence.updates < ENOUGH)
        costs = _cost(evidence, model) if meant and _not_for_features(evidence, model) else None
        meant = meant and costs is None
        layers = layers_of(evidence, model["frozen"])
        name = variable(evidence, model["site"])
        share = frozen / max(model["elements"], 1)
        yield Finding(
            "frozen_parameters",
            Severity.INFO if meant else Severity.CRITICAL if whole or share > 0.9 else Severity.WARNING,
            f"requires_grad=False in {listed(layers)} of {name}, whose values are still random: "
            f"{share:.0%} of its weights never learn",
            step=0,
            layer=deepest_layer(evidence, model["frozen"]),
            source=anywhere(evidence, _FREEZE),
            evidence={
                "model": name,
                "frozen_share": round(share, 4),
                "still_as_initialised": round(fresh / frozen, 4),
                "given_to_an_optimizer": round(model["frozen_owned"] / frozen, 4),
                "layers": listed(layers, 8),
                **({} if costs is None else {"loss_when_all_learn": costs[0], "loss_as_it_is": costs[1]}),
            },
            confidence=0.5 if meant else 0.9 if costs is None else 0.82,
            inference="nothing was loaded into them before they were frozen",
        )


def _not_for_features(evidence: Evidence, model: Fact) -> bool:
    """Layers at the front of the model are frozen and several behind them learn. Fixed random features on purpose have
    one layer that reads them, a fixed random table is looked up, and adapters lie between what they adapt."""
    sites = evidence.parameters_of(model["site"])
    frozen = set(model["frozen"])
    weights = [site for site in sites if len(site.shape or ()) > 1]
    held = [at for at, site in enumerate(weights) if site.id in frozen]
    free = [at for at, site in enumerate(weights) if site.id not in frozen]
    listed_all = sum(site.parameters or 0 for site in sites if site.id in frozen) >= model["frozen_elements"]
    if not listed_all or len(held) < 2 or len(free) < 2 or max(held) > min(free):
        return False
    kinds = {site.path: site.op for site in evidence.sites.values() if site.model == model["site"]}
    tables = [at for at in held if "Embedding" in str(kinds.get(weights[at].path.rpartition(".")[0]))]
    return len(held) - len(tables) >= 2


def _cost(evidence: Evidence, model: Fact) -> tuple[float, float] | None:
    """Where a short training on recorded batches gets clearly further when all weights learn: both losses."""
    probe = evidence.probe("overfit")
    free = None if probe is None or probe.get("model_site") != model["site"] else probe.get("unfrozen")
    own = None if probe is None else probe["arms"]["own"]
    if not free or own is None or free["diverged"] or free["last"] is None or own["last"] is None:
        return None
    gained = own["first"] is not None and own["first"] - free["last"] > 1.25 * (own["first"] - own["last"])
    return (free["last"], own["last"]) if gained and free["last"] < 0.8 * own["last"] else None


def _falls(evidence: Evidence) -> bool:
    values = evidence.curve("loss").values
    values = values[np.isfinite(values)]
    if len(values) < 10:
        return False
    tenth = max(len(values) // 10, 1)
    return bool(np.median(values[-tenth:]) < 0.7 * np.median(values[:tenth]))
