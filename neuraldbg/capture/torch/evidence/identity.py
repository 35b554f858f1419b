"""Identity sets: which parameters of the models that run belong to an optimizer, which are frozen, which an optimizer
holds although no model has them any more, and which a module hides from parameters()."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.evidence.identity_fresh import freshness
from neuraldbg.capture.torch.evidence.identity_hidden import hidden_parameters
from neuraldbg.capture.torch.members import held_parameters, modules_of, parameters_of
from neuraldbg.capture.torch.stats import measurable
from neuraldbg.capture.torch.sweep import owned
from neuraldbg.capture.torch.tree import Model

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

MOST_PARAMETERS = 20_000  # of all models: larger sets are not compared
MOST_FACTS = 24
NAMED = 64  # sites listed of each set
_HEAD = 64  # elements by which a parameter is seen to move
_MARKED = 256  # parameters whose first values are kept for that
_trained = attrgetter("requires_grad")


@dataclass(slots=True)
class Share:
    """What the parameters of one model are, as sites and element counts."""

    unowned: list[int]  # trainable, with a gradient, and no optimizer has them
    frozen: list[int]
    elements: int = 0
    trainable_elements: int = 0
    owned_elements: int = 0
    unowned_elements: int = 0
    frozen_elements: int = 0
    frozen_fresh_elements: int = 0  # of them, values as torch draws them
    frozen_given_elements: int = 0  # of them, loaded, copied or trained before
    frozen_owned_elements: int = 0  # of them, in an optimizer nevertheless

    def add_trained(self, elements: int) -> None:
        self.elements += elements
        self.trainable_elements += elements
        self.owned_elements += elements


class Ownership:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._capture = capture
        self._had_gradient: IdentityTable[bool] = IdentityTable()
        self._was_trained: IdentityTable[bool] = IdentityTable()  # owned by an optimizer that has stepped
        self._was_owned: IdentityTable[bool] = IdentityTable()  # by an optimizer that may be gone
        self._given: IdentityTable[bool] = IdentityTable()  # values came from load_state_dict
        self._first: IdentityTable[tuple[int, Tensor | None]] = IdentityTable()  # version and first elements
        self._stepped: IdentityTable[bool] = IdentityTable()
        self._written: Any = None
        self._facts = 0
        self._looks = 0
        core = self.core
        core.take_part("update_begun", "owners of parameters", self._update, rarely=True)
        core.take_part("backward_done", "owners of parameters before an update", self._backward, rarely=True)
        core.take_part("loaded", "loaded parameters", self._loaded)
        core.take_part("ending", "owners of parameters at the end", self._look)

    # -- moments -----------------------------------------------------------------------------------------------------

    def _update(self, optimizer: Optimizer, known: Any) -> None:
        if optimizer not in self._stepped:
            self._stepped[optimizer] = True
            for parameter in owned(optimizer):
                self._was_trained[parameter] = self._was_owned[parameter] = True
        elif not (self.core.looking and (known.updates <= 4 or _power_of_two(known.updates))):
            return
        self._look()

    def _backward(self, _: Any) -> None:
        """Where nothing ever steps, backwards are all there is."""
        if not self.core.recorder.step and _power_of_two(self.core.backwards) and self.core.looking:
            self._look()

    def _loaded(self, owner: Any, *_: Any) -> None:
        if isinstance(owner, nn.Module):
            for parameter in owner.parameters():
                if not is_lazy(parameter):
                    self._given[parameter] = True

    # -- a look ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        tree = self.core.tree
        if self._facts >= MOST_FACTS or not tree.alone():
            return
        owners = self._owners()
        live: set[int] = set()
        shares: list[tuple[Model, nn.Module, Share]] = []
        for root, model in tree.models.items():
            share = Share([], [])
            if not self._are_trained(share, root, live, owners):
                for module, parameter in _each(root, live):
                    if len(live) > MOST_PARAMETERS:
                        return
                    self._classify(share, module, parameter, owners)
            if len(live) > MOST_PARAMETERS:
                return
            shares.append((model, root, share))
        hidden = self._hidden(owners, live)
        stale = self._stale(live)
        models = [self._model_fields(model, root, share) for model, root, share in shares]
        self._write(models, stale, hidden)

    def _owners(self) -> dict[int, Optimizer]:
        updates = self._capture.updates
        found: dict[int, Optimizer] = {}
        for table in (updates.optimizers, updates.unnamed):
            for optimizer, _ in table.items():
                mine = owned(optimizer)
                found.update(dict.fromkeys(map(id, mine), optimizer))
                for parameter in mine if self._was_owned.pairs(mine) is None else ():
                    self._was_owned[parameter] = True
        return found

    def _are_trained(self, share: Share, root: nn.Module, live: set[int], owners: dict[int, Optimizer]) -> bool:
        """Whether an optimizer trains all that a model has, as mostly; then they are the share."""
        mine = held_parameters(modules_of(root))
        ids = set(map(id, mine))
        if set(map(type, mine)) != {nn.Parameter} or not ids <= owners.keys() or not ids.isdisjoint(live):
            return False
        if self.core.tree.parameter_site.pairs(mine) is None or not all(map(_trained, mine)):
            return False
        live |= ids
        share.add_trained(sum(map(Tensor.numel, mine)))
        return True

    def _classify(self, share: Share, module: nn.Module, parameter: Tensor, owners: dict[int, Optimizer]) -> None:
        size = parameter.numel()
        share.elements += size
        site = self.core.tree.parameter_site.get(parameter)
        if site is None:
            site = self._walked_site(parameter, module)
        if not parameter.requires_grad:
            share.frozen.append(site)
            share.frozen_elements += size
            share.frozen_owned_elements += size if id(parameter) in owners else 0
            if parameter in self._given or parameter in self._was_trained:
                share.frozen_given_elements += size
            elif freshness(module, parameter):
                share.frozen_fresh_elements += size
            return
        share.trainable_elements += size
        if id(parameter) in owners or parameter in self._was_owned:
            share.owned_elements += size
        elif self._gets_gradients(parameter):
            share.unowned.append(site)
            share.unowned_elements += size

    def _gets_gradients(self, parameter: Tensor) -> bool:
        if parameter.grad is not None:
            self._had_gradient[parameter] = True
            if parameter not in self._first and len(self._first) < _MARKED:
                self._first[parameter] = (parameter._version, _head(parameter))
        return parameter in self._had_gradient

    def _walked_site(self, parameter: Tensor, module: nn.Module) -> int:
        """Of one that was put into the model after its first pass."""
        tree = self.core.tree
        tree.walk(tree.top(module))
        site = tree.parameter_site.get(parameter)
        return -1 if site is None else site

    def _moved(self, parameter: Tensor) -> bool:
        first = self._first.get(parameter)
        if first is None:
            return False
        version, head = first
        if head is None:
            return parameter._version != version
        now = _head(parameter)
        return now is None or not torch.equal(now, head)

    def _hidden(self, owners: dict[int, Optimizer], live: set[int]) -> list[dict[str, Any]]:
        """Parameters kept in plain lists, dicts or attributes: graph leaves that parameters() does not give."""
        found: dict[tuple[int, str], dict[str, Any]] = {}
        for root, model in self.core.tree.models.items():
            for one in hidden_parameters(root):
                parameter = one.parameter
                if id(parameter) in live and not one.nested_model(self.core.tree):
                    continue
                if id(parameter) in owners or not parameter.requires_grad or not self._gets_gradients(parameter):
                    continue
                entry = found.setdefault(
                    (model.site, one.attribute),
                    {
                        "model": model.site,
                        "owner": one.owner,
                        "attribute": one.attribute,
                        "container": one.container,
                        "owner_class": one.owner_class,
                        "parameters": 0,
                        "elements": 0,
                        "sites": [],
                        "given": 0,
                        "moved": 0,
                    },
                )
                entry["parameters"] += 1
                entry["elements"] += parameter.numel()
                site = self.core.tree.parameter_site.get(parameter)
                if site is not None and len(entry["sites"]) < NAMED:
                    entry["sites"].append(site)
                entry["given"] += parameter in self._given or parameter in self._was_trained
                entry["moved"] += self._moved(parameter)
        return list(found.values())[:16]

    def _stale(self, live: set[int]) -> list[dict[str, Any]]:
        """Parameters of an optimizer that no model which runs has; `held` = another living module still has them."""
        found = []
        held: set[int] | None = None
        for optimizer, known in self._capture.updates.optimizers.items():
            strange = [
                parameter
                for parameter in owned(optimizer)
                if isinstance(parameter, nn.Parameter) and id(parameter) not in live and parameter.grad is None
            ]
            if not strange:
                continue
            if held is None:
                held = {id(parameter) for parameter in self._held_elsewhere()}
            found.append(
                {
                    "optimizer": known.site,
                    "parameters": len(strange),
                    "of": len(owned(optimizer)),
                    "elements": sum(parameter.numel() for parameter in strange),
                    "held": sum(id(parameter) in held for parameter in strange),
                    "shapes": sorted({str(tuple(parameter.shape)) for parameter in strange})[:8],
                }
            )
        return found

    def _held_elsewhere(self) -> Iterator[Tensor]:
        """Parameters of modules that live but were never called."""
        for module, parent in self.core.tree._parent.items():
            yield from module.parameters(recurse=False)
            above = parent()
            if above is not None:
                yield from above.parameters(recurse=False)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _model_fields(self, model: Model, root: nn.Module, share: Share) -> dict[str, Any]:
        by_site = {self.core.tree.parameter_site.get(p): p for p in (parameters_of(root) if share.unowned else ())}
        unowned = [by_site[site] for site in share.unowned if site in by_site]
        return {
            "site": model.site,
            "training": bool(root.training),
            "elements": share.elements,
            "trainable": share.trainable_elements,
            "owned": share.owned_elements,
            "unowned": share.unowned[:NAMED],
            "unowned_count": len(share.unowned),
            "unowned_elements": share.unowned_elements,
            "unowned_moved": sum(self._moved(p) for p in unowned),
            "unowned_given": sum(p in self._given for p in unowned),
            "copied": root not in self._born and any(True for _ in root.children()),
            "frozen": share.frozen[:NAMED],
            "frozen_elements": share.frozen_elements,
            "frozen_fresh": share.frozen_fresh_elements,
            "frozen_given": share.frozen_given_elements,
            "frozen_owned": share.frozen_owned_elements,
        }

    @property
    def _born(self) -> IdentityTable[Any]:
        for watcher in self._capture.watchers:
            modules = getattr(watcher, "modules", None)
            if isinstance(modules, IdentityTable):
                return modules
        return IdentityTable()

    def _write(self, models: list[Any], stale: list[Any], hidden: list[Any]) -> None:
        notable = [one for one in models if one["unowned_count"] or one["frozen"]]
        signature = (
            [(one["site"], one["unowned"], one["unowned_moved"] > 0, one["frozen"]) for one in notable],
            [(one["optimizer"], one["parameters"]) for one in stale],
            [(one["model"], one["attribute"], one["parameters"], one["moved"] > 0) for one in hidden],
        )
        if signature == (self._written or ([], [], [])):
            return
        self._written = signature
        self._facts += 1
        self.core.recorder.fact(
            "ownership",
            models=notable,
            stale=stale,
            hidden=hidden,
            alive=sorted({one["site"] for one in models})[:256],
            optimizers=sorted({known.site for known in self._capture.updates.optimizers.values()})[:64],
        )


def _each(root: nn.Module, live: set[int]) -> Iterator[tuple[nn.Module, Tensor]]:
    """Every parameter of all models once, with its owner."""
    for module in modules_of(root):
        for parameter in module._parameters.values():
            if parameter is None or id(parameter) in live:
                continue
            if type(parameter) is nn.Parameter or not is_lazy(parameter):
                live.add(id(parameter))
                yield module, parameter


def _head(parameter: Tensor) -> Tensor | None:
    """The first elements on the host; None where reading them would wait for a device."""
    if parameter.is_cuda or not measurable(parameter) or parameter.layout != torch.strided or parameter.is_complex():
        return None
    with torch.no_grad():
        return torch.nan_to_num(parameter.detach().reshape(-1)[:_HEAD].float())


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
