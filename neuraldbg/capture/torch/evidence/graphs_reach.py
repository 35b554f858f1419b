"""What a backward goes through: parameters of which optimizers, of models that nobody trains, and graph that an earlier
backward has been through already."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.evidence.graph_walk import LEAF, Visit, Walk, known_walk
from neuraldbg.capture.torch.evidence.graphs_targets import target_side
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.sweep import owned

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

FIRST_WALK = 12_000  # nodes; in the first backwards
LATER_WALK = 4_000
MOST_FACTS = 32
MARK = "neuraldbg_back"  # in a node's metadata: (backward, step) that went through it; dies with the graph
PASS = "neuraldbg_pass"


@dataclass(eq=False)
class Reach:
    nodes: int = 0
    complete: bool = True
    leaves: dict[int, tuple[Tensor, int, int]] = field(default_factory=dict)  # id -> leaf, depth, highest old mark
    passes: set[int] = field(default_factory=set)
    new_passes: int = 0  # outputs of passes that no backward has been to yet
    old: int = 0  # nodes that an earlier backward went through
    oldest: int = -1
    through_pass: bool = False  # the way to them leads through the output of a pass of this backward


class GraphReach:
    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self._updates = capture.updates
        self._walks = 0
        self._number = 0
        self._last_update: IdentityTable[int] = IdentityTable()  # optimizer -> backwards before its last update
        self._written: set[Any] = set()
        self._again = 0
        self._most_old = 0
        self._inputs: dict[int, bool] = {}  # pass -> its inputs have a graph
        core = self.core
        core.take_part("pass_ended", "inputs with a graph", self._pass_ended, rarely=True)
        core.take_part("backward_begun", "reach of a backward", self._backward, rarely=True)
        core.take_part("update_done", "updates between backwards", self._updated, rarely=True)

    def _updated(self, optimizer: Optimizer, _: Any) -> None:
        self._last_update[optimizer] = self._number
        if len(self._inputs) > 512:
            self._inputs.clear()

    def _pass_ended(self, one: Pass, _: Any, inputs: Any, __: Any) -> None:
        if one.looked and one.grad:
            self._inputs[one.id] = any(tensor.requires_grad for tensor in tensors(inputs))

    def _backward(self, loss: Tensor | None, source: int) -> None:
        self._number = self.core.backwards + 1
        if loss is None or loss.grad_fn is None or not self.core.looking:
            return
        self._walks += 1
        mark, limit, graph = (self._number, self.core.recorder.step), self._limit, known_walk(self.core, loss)
        fits = graph is not None and not graph.packed and len(graph.visits) <= limit
        reach = reach_of(graph, mark) if graph is not None and fits else walk(loss.grad_fn, mark, limit)
        if reach.old:
            self._note_again(reach, source)
        if len(self._written) < MOST_FACTS:
            self._note_reach(loss, reach, source)

    @property
    def _limit(self) -> int:
        return FIRST_WALK if self._walks <= 8 else LATER_WALK

    def _owners(self) -> dict[int, tuple[Optimizer, int]]:
        found: dict[int, tuple[Optimizer, int]] = {}
        for optimizer, known in self._updates.optimizers.items():
            for parameter in owned(optimizer):
                found[id(parameter)] = (optimizer, known.site)
        return found

    def _note_again(self, reach: Reach, source: int) -> None:
        """Graph of an earlier backward: harmless between the losses of one update, not after the parameters in it have
        been updated."""
        owners = self._owners()
        updated = 0
        for number, (_, _, mark) in reach.leaves.items():
            owner = owners.get(number)
            if owner is not None and mark >= 0:
                since = self._last_update.get(owner[0])
                updated += since is not None and since >= mark
        key = ("again", source, updated > 0)
        growing = reach.old > 1.5 * self._most_old
        if self._again >= 24 or (key in self._written and not growing):
            return
        self._written.add(key)
        self._again += 1
        self._most_old = max(self._most_old, reach.old)
        self.core.recorder.fact(
            "graph_again",
            source_id=source,
            nodes=reach.nodes,
            old_nodes=reach.old,
            backwards_back=self._number - reach.oldest,
            updated_parameters=updated,
            through_pass=reach.through_pass,
            new_passes=reach.new_passes,
        )

    def _note_reach(self, loss: Tensor, reach: Reach, source: int) -> None:
        tree, owners = self.core.tree, self._owners()
        by_optimizer: dict[int, int] = {}
        by_model: dict[int, int] = {}
        strange = 0
        for number, (leaf, depth, _) in reach.leaves.items():
            owner = owners.get(number)
            if owner is not None:
                by_optimizer[owner[1]] = min(depth, by_optimizer.get(owner[1], depth))
                continue
            site = tree.parameter_site.get(leaf)
            model = None if site is None else self.core.recorder.sites[site].model
            if model is not None:
                by_model[model] = min(depth, by_model.get(model, depth))
            else:
                strange += 1
        side = target_side(loss, self.core.tree.parameter_site.get)
        key = (source, tuple(sorted(by_optimizer)), tuple(sorted(by_model)), side is not None)
        if key in self._written:
            return
        self._written.add(key)
        self.core.recorder.fact(
            "graph_reach",
            source_id=source,
            nodes=reach.nodes,
            complete=reach.complete,
            optimizers=sorted(by_optimizer.items()),
            models_without_owner=sorted(by_model.items()),
            other_leaves=strange,
            target_side=side,
            fed_passes=sorted(number for number in reach.passes if self._inputs.get(number))[:16],
        )


def walk(root: Any, mark: tuple[int, int], limit: int) -> Reach:
    """Breadth first from the loss; every node is marked with this backward, nothing is held."""
    reach = Reach()
    seen, leaves = {root}, reach.leaves
    queue: deque[tuple[Any, int, int, bool]] = deque([(root, 0, -1, False)])  # node, depth, old mark above, in a pass
    while queue:
        if reach.nodes >= limit:
            reach.complete = False
            break
        node, depth, above, inside = queue.popleft()
        reach.nodes += 1
        metadata = node.metadata
        if metadata:
            above, inside = _met(reach, metadata, mark[0], (above, inside))
        metadata[MARK] = mark
        depth += 1
        for child, _ in node.next_functions:
            if type(child) is LEAF:
                _met_leaf(leaves, child.variable, depth, above)
            elif child is not None and child not in seen:
                seen.add(child)
                queue.append((child, depth, above, inside))
    return reach


def reach_of(graph: Walk, mark: tuple[int, int]) -> Reach:
    """The same of a graph that another watcher walked to its end."""
    reach = Reach(len(graph.visits))
    way: dict[Visit | None, tuple[int, int, bool]] = {None: (-1, -1, False)}
    for visit in graph.visits:
        depth, above, inside = way[visit.above]
        if visit.marks:
            above, inside = _met(reach, visit.marks, mark[0], (above, inside))
        visit.marks[MARK] = mark
        way[visit] = (depth + 1, above, inside)
    for leaf, visit in graph.leaves:
        depth, above, _ = way[visit]
        _met_leaf(reach.leaves, leaf.variable, depth + 1, above)
    return reach


def _met_leaf(leaves: dict[int, tuple[Tensor, int, int]], leaf: Tensor, depth: int, above: int) -> None:
    known = leaves.get(id(leaf))
    leaves[id(leaf)] = (leaf, depth, above) if known is None else (leaf, known[1], max(known[2], above))


def _met(reach: Reach, metadata: dict[Any, Any], now: int, way: tuple[int, bool]) -> tuple[int, bool]:
    """What somebody noted at a node, and the way from there: the highest old mark, and whether it is in a pass."""
    above, inside = way
    before, own = metadata.get(MARK), metadata.get(PASS)
    if own is not None:
        reach.passes.add(own)
        reach.new_passes += before is None
    if before is not None and before[0] < now:
        reach.old += 1
        if reach.oldest < 0:
            reach.through_pass = inside
        reach.oldest = before[0] if reach.oldest < 0 else min(reach.oldest, before[0])
        above = max(above, before[0])
    return above, inside or (own is not None and before is None)
