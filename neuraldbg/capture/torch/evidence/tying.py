"""Weights that were one tensor, or were meant to be: an embedding and a head that hold equal values in two places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.members import every_named_parameter, modules_of
from neuraldbg.capture.torch.passes import Pass

MOST_BYTES = 64 * 2**20  # of one weight that is compared with another
LOOKS = 4  # passes of a model after which its weights are looked at: the first, and a few later ones
LATER = (20, 100, 1000)


class Tying:
    """Facts `tied` (two names, one tensor), `untied` (they were one tensor and are two) and `twins` (an embedding and
    another layer's weight of equal values in separate storage, at the first pass)."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self._tied: dict[int, set[tuple[str, str]]] = {}  # model site -> pairs of names that were one tensor
        self._said: set[tuple[int, str, str]] = set()
        self._later: dict[int, int] = {}  # model site -> later looks that it has had
        self.core.take_part("pass_begun", "tied weights", self._begun, rarely=True)

    def _begun(self, one: Pass, root: Any, *_: Any) -> None:
        passes, site = one.model.passes, one.model.site
        if passes > LOOKS:
            due = sum(passes >= each for each in LATER)
            if due == self._later.get(site, 0):
                return
            self._later[site] = due
        if isinstance(root, nn.Module):
            self._look(root, one.model.site, first=passes <= LOOKS)

    def _look(self, root: nn.Module, site: int, *, first: bool) -> None:
        named = [(name, p) for name, p in every_named_parameter(root) if _comparable(p)]
        by_place: dict[int, list[str]] = {}
        for name, parameter in named:
            by_place.setdefault(parameter.data_ptr(), []).append(name)
        together = {pair for names in by_place.values() if len(names) > 1 for pair in _pairs(sorted(names))}
        before = self._tied.setdefault(site, set())
        values = dict(named)
        for pair in together - before:
            self._say("tied", site, pair)
        for pair in before - together:
            if pair[0] in values and pair[1] in values:
                self._say("untied", site, pair)
        self._tied[site] = before | together
        if first:
            self._look_for_twins(root, site, named)

    def _look_for_twins(self, root: nn.Module, site: int, named: list[tuple[str, Tensor]]) -> None:
        kinds = set(map(type, modules_of(root)))
        if not any(issubclass(kind, nn.Embedding) for kind in kinds):
            return
        tables = [(n, p) for n, p in named if isinstance(root.get_submodule(n.rpartition(".")[0]), nn.Embedding)]
        for name, table in tables:
            for other, weight in named:
                apart = weight is not table and weight.data_ptr() != table.data_ptr()
                if apart and weight.shape == table.shape and not _is_table(root, other) and _equal(weight, table):
                    self._say("twins", site, (name, other))

    def _say(self, type: str, site: int, pair: tuple[str, str]) -> None:
        if (site, *pair) not in self._said or type == "untied":
            self._said.add((site, *pair))
            self.core.recorder.fact(type, model=site, first=pair[0], second=pair[1])


def _is_table(root: nn.Module, name: str) -> bool:
    return isinstance(root.get_submodule(name.rpartition(".")[0]), nn.Embedding)


def _comparable(parameter: Tensor) -> bool:
    strided = parameter.layout == torch.strided and not parameter.is_meta
    return strided and parameter.dim() >= 2 and 0 < parameter.numel() * parameter.element_size() <= MOST_BYTES


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]][:16]


@torch.no_grad()
def _equal(a: Tensor, b: Tensor) -> bool:
    """The same values, and not merely both constant."""
    if a.device.type != "cpu" or b.device.type != "cpu" or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) and bool((a != a.flatten()[0]).any())
