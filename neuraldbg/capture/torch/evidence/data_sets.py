"""Which data set the training batches are drawn from: a variable of the user's that holds their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.evidence.data_relation import Inputs, LastInput
from neuraldbg.capture.torch.evidence.data_search import arrays_in_sight
from neuraldbg.capture.torch.evidence.data_windows import sequence_of
from neuraldbg.capture.torch.evidence.rows import (
    LONGEST_ROW,
    Array,
    Keys,
    as_array,
    bytes_of,
    joined,
    keys_of,
    keys_of_rows,
)
from neuraldbg.capture.torch.passes import Pass

SEARCHES = (0, 1, 3, 8)  # training passes at whose beginning the user's variables are looked through
SET_BYTES = 256 * 2**20  # of one candidate
SEARCH_BYTES = 32 * 2**20  # that are read of all of them, in one search
ROW_BYTES = 8 * 2**20  # of training batches whose rows are remembered
MOST_ROWS = 500_000
FOLLOWED = 128  # batches whose places in the data set are looked up
MOST_PASSES = 4096  # whose rows are remembered
NOW_AND_THEN = 16  # later ones: one in so many
TOGETHER = 16  # batches of quiet steps whose rows are looked up at once
KNOWN_ROWS = 1024  # of those trained on that another candidate must hold as well
FEW = 256  # rows of a variable
TRIES = 4  # losses whose targets are looked for among the variables
EVAL_ROWS = 16  # of an evaluation batch that are compared with the training rows


@dataclass
class Found:
    """The data set, as numbers: nothing of the user's is held."""

    name: str
    rows: int
    keys: Keys  # sorted
    order: NDArray[np.int64]  # place of each key in the set
    own_keys: Keys  # in the order of the set
    batch: int
    whole_named: str | None  # a variable that is exactly the batch
    target_name: str | None = None
    aligned: bool | None = None
    tries: int = 0
    followed: int = 0
    in_order: int = 0
    foreign: int = 0  # followed batches with rows from elsewhere
    same_object: int = 0  # followed batches that were the very tensor of the batch before
    held_out: bool = False  # an evaluation used rows of the set that are not trained on, and only such
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def still_followed(self) -> bool:
        return self.followed < FOLLOWED or not self.settled

    @property
    def settled(self) -> bool:
        """Whether no loss is waited for to find its targets."""
        return self.target_name is not None or self.tries >= TRIES

    @cached_property
    def distinct(self) -> int:
        return int(np.count_nonzero(self.keys[1:] != self.keys[:-1])) + 1

    def places(self, keys: Keys) -> NDArray[np.int64] | None:
        """Where the rows lie in the set; None when one of them is not in it."""
        at = self.keys.searchsorted(keys).clip(max=self.rows - 1)
        return self.order[at] if bool((self.keys[at] == keys).all()) else None


class DataSets:
    """A fact `data_set` when one is found, again when its targets are known, and at the end."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self.found: Found | None = None
        self.trained: set[int] = set()  # keys of rows that were trained on
        self.rows_seen = 0
        self.repeated = 0  # of them, those that had been trained on before
        self.complete = True  # every row trained on is among them
        self._passes = 0
        self._pending: list[tuple[Pass, Keys]] = []  # rows that are not among those trained on yet
        self._unfollowed: list[tuple[Keys, bool]] = []  # batches, and whether it was the very tensor of the one before
        self._places: tuple[int, NDArray[np.int64]] | None = None  # of the current step's batch
        self.evaluated_on_trained: float | None = None  # share of the last evaluation batch's rows
        self._room = ROW_BYTES
        self._again = 2  # searches for another set when rows turn up that are not in the one found
        self._last: LastInput | None = None
        self._backwards = -1  # before the last training pass
        self._over = False  # no more rows are remembered
        self._alone = False  # the last training pass is the only one of its backward, with one tensor as input
        self.core.take_part("ending", "data sets", self._write)
        if self.core.budget.share != 0.0:
            self.core.take_part("pass_begun", "data sets", self._pass_begun)
            self.core.take_part("evaluation_begun", "data sets", self._evaluation)

    # -- passes ------------------------------------------------------------------------------------------------------

    def _pass_begun(self, one: Pass, _: Any, args: Any, *__: Any) -> None:
        if not one.grad or self._over:
            return
        before, self._last = self._last, None
        backwards = self.core.backwards
        self._alone, self._backwards = backwards != self._backwards, backwards
        searching = self.found is None and self._passes in SEARCHES
        self._passes += 1
        following = self.found is not None and self.found.still_followed
        if (self._room <= 0 or self._passes > MOST_PASSES) and not searching and not following:
            self.complete, self._over = False, self._passes > SEARCHES[-1] + 1
            if self._over:
                self.core.rest("pass_begun", self._pass_begun)
            return
        tensor = _first_batch(one.entered)
        keys = None if tensor is None else keys_of_rows(tensor, ROW_BYTES // 4)
        if tensor is None or keys is None:
            return
        self._room -= min(tensor.nbytes, len(keys) * LONGEST_ROW * tensor.element_size())
        self._pending.append((one, keys))
        kept = before is not None and before.tensor() is tensor
        if searching:
            self._search(as_array(tensor), keys)
        if self._passes == SEARCHES[-1] + 1:
            self._cut_from(as_array(tensor), keys, kept=kept)
        if self.found is not None and (following or searching or self._passes % NOW_AND_THEN == 0):
            self._unfollowed.append((keys, kept))
        self._look_up(one, tensor)
        self._last = LastInput(one, args, tensor, keys)
        self._alone = self._alone and (len(one.entered) == 1 or sum([t.dim() > 0 for t in one.entered]) == 1)

    def _look_up(self, one: Pass, tensor: Tensor) -> None:
        """Rows that wait for it: at once in steps that are looked at and while targets are looked for, else several
        batches together."""
        found, waiting = self.found, len(self._unfollowed)
        if found is not None and waiting:
            looked_for = not found.settled and found.foreign < TRIES  # of a set with other rows now and then
            if one.looked or looked_for or waiting >= TOGETHER:
                self._follow_all(found, one.step, tensor)
        if len(self._pending) >= TOGETHER and self._pending[0][0].step < one.step:
            self._settle()

    def _settle(self) -> None:
        """Only what a gradient came back to was trained on, which is known once the update is done."""
        pending, self._pending = self._pending, []
        now = self.core.recorder.step
        for one, keys in pending:
            if one.step >= now:
                self._pending.append((one, keys))
            elif one.trained and len(self.trained) < MOST_ROWS:
                known = keys.tolist()
                self.repeated += sum(map(self.trained.__contains__, known))
                self.rows_seen += len(known)
                self.trained.update(known)

    def _evaluation(self, one: Pass) -> None:
        """Whether the rows of an evaluation are among those trained on."""
        self.evaluated_on_trained = None
        self._settle()
        tensor = _first_batch(one.entered) if self.trained else None
        batch = None if tensor is None else as_array(tensor)
        if batch is None:
            return
        keys = keys_of(batch[:: max(1, len(batch) // EVAL_ROWS)][: EVAL_ROWS + 1])
        if keys is not None:
            share = self.evaluated_on_trained = sum(key in self.trained for key in keys.tolist()) / len(keys)
            if share == 0.0 and self.found is not None and self.found.places(keys) is not None:
                self.found.held_out = True

    # -- searching -----------------------------------------------------------------------------------------------------

    def _search(self, batch: Array | None, keys: Keys) -> None:
        if batch is None:
            return
        fitting: list[tuple[str, Keys, Array]] = []
        whole = None
        room = SEARCH_BYTES
        for name, value in arrays_in_sight(self.core.recorder.frames.user_frames()):
            array = attempt(partial(_fitting, value, batch))
            if array is None or room < bytes_of(array):
                continue
            room -= bytes_of(array)
            own = keys_of(array)
            if own is None or not _all_among(keys, own):
                continue
            if len(own) == len(batch):
                whole = whole or name
            else:
                fitting.append((name, own, array))
        if not fitting and whole is None:
            return
        if not fitting and self.found is not None:
            return
        name, own, array = min(
            fitting, default=(whole or "", keys[: len(batch)], batch), key=lambda one: (len(one[1]), len(one[0]))
        )
        order = own.argsort(kind="stable")
        self.found = found = Found(name, len(own), own[order], order, own, len(batch), whole)
        if found.distinct < found.rows:
            found.facts["chance_pairs"] = expected_pairs(array)
        self._write()

    def _cut_from(self, batch: Array | None, keys: Keys, *, kept: bool) -> None:
        """Where every batch so far was this one: is it a piece of something longer?"""
        self._settle()
        if batch is not None and self.trained == set(keys.tolist()):
            found = sequence_of(batch, arrays_in_sight(self.core.recorder.frames.user_frames()))
            if found is not None:
                self.core.recorder.fact("sequence_cut", same_object=kept, **found)

    def _follow_all(self, found: Found, step: int, tensor: Tensor | None) -> None:
        """`tensor`: the last of these batches. Where one has rows from elsewhere, a part of the set may have been taken
        for the whole."""
        waiting, self._unfollowed = self._unfollowed, []
        foreign = [keys for keys, kept in waiting if not self._follow(found, keys, step, kept=kept)]
        if foreign and self._again and tensor is not None:
            self._again -= 1
            self._places = None  # they were places in the set known so far
            self._settle()
            known = np.fromiter(self.trained, np.uint64)[:KNOWN_ROWS]
            self._search(as_array(tensor), np.concatenate([waiting[-1][0], *foreign, known]))

    def _follow(self, found: Found, keys: Keys, step: int, *, kept: bool) -> bool:
        places = found.places(keys)
        self._places = None if places is None else (step, places)
        if found.followed < FOLLOWED:
            found.followed += 1
            found.foreign += places is None
            found.in_order += places is not None and len(places) > 1 and bool((places[1:] == places[:-1] + 1).all())
            found.same_object += kept
        return places is not None

    def last_input(self) -> Inputs | None:
        """Of the training pass under way: the one a loss is computed from. None where it could be another one."""
        return None if self._last is None or not self._alone else self._last.inputs()

    # -- targets -------------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether a loss has nothing to tell any more."""
        return self._passes > SEARCHES[-1] and (self.found is None or self.found.settled)

    def loss_called(self, target: Tensor) -> None:
        """The targets of the batch whose places are known: is there a variable that holds them at these places?"""
        found = self.found
        if found is None or found.settled or self._places is None:
            return
        step, places = self._places
        array = as_array(target)
        if step != self.core.recorder.step or array is None or len(array) != len(places):
            return
        found.tries += 1
        self._match(found, array, places)
        self._write()

    def _match(self, found: Found, target: Array, places: NDArray[np.int64]) -> None:
        others = []
        for name, value in arrays_in_sight(self.core.recorder.frames.user_frames()):
            array = attempt(partial(_targets, value, target, found.rows))
            if array is None:
                continue
            if np.array_equal(array[places].reshape(-1), target.reshape(-1)):
                found.target_name, found.aligned = name, True
                keys = keys_of(array)
                both = found.own_keys if keys is None else joined([found.own_keys, keys])
                found.facts |= {"distinct_pairs": len(np.unique(both)), **_of_targets(array)}
                if "chance_pairs" in found.facts:
                    found.facts["chance_pairs"] *= 2 * expected_pairs(array) / found.rows**2
                return
            if name != found.name and np.isin(target.reshape(-1)[:64], array.reshape(-1)).all():
                others.append(name)
        found.aligned = False if others else None
        found.facts["other_targets"] = others[:4]

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._settle()
        found = self.found
        if found is not None and self._unfollowed:
            self._follow_all(found, -1, None)
        if found is None:
            if self.rows_seen:
                self.core.recorder.fact("data_set", name=None, **self._counts())
            return
        self.core.recorder.fact(
            "data_set",
            name=found.name,
            rows=found.rows,
            batch=found.batch,
            distinct=found.distinct,
            period=_period(found.own_keys),
            whole_named=found.whole_named,
            target=found.target_name,
            aligned=found.aligned,
            followed=found.followed,
            in_order=found.in_order,
            foreign=found.foreign,
            same_object=found.same_object,
            held_out=found.held_out,
            **found.facts,
            **self._counts(),
        )

    def _counts(self) -> dict[str, Any]:
        return {
            "rows_seen": self.rows_seen,
            "distinct_seen": len(self.trained),
            "repeated": self.repeated,
            "complete": self.complete,
        }


def _first_batch(entered: Sequence[Tensor]) -> Tensor | None:
    """The first input with several elements."""
    for tensor in entered:
        if tensor.dim() >= 1 and tensor.numel() > 1:
            return tensor
    return None


def _all_among(keys: Keys, own: Keys) -> bool:
    """Of most variables with rows of this length (weights) already the first is not. Of few rows Python is quicker."""
    if len(own) <= FEW:
        return set(own.tolist()).issuperset(keys.tolist())
    return not (len(keys) and not (own == keys[0]).any()) and bool(np.isin(keys, own).all())


def _fitting(value: Any, batch: Array) -> Array | None:
    """A variable as an array with rows like those of the batch; None when it cannot hold them."""
    if isinstance(value, Tensor) and (value.dim() == 0 or value.shape[0] < len(batch)):
        return None
    array = as_array(value)
    if array is None or array.ndim == 0 or len(array) < len(batch) or array.nbytes > SET_BYTES or not len(batch):
        return None
    if array.size // len(array) != batch.size // len(batch):
        return None
    if array.dtype != batch.dtype:
        return array.astype(batch.dtype) if array.nbytes <= SET_BYTES // 4 else None
    return array


def _targets(value: Any, target: Array, rows: int) -> Array | None:
    array = as_array(value)
    if array is None or len(array) != rows or array.size // rows != target.size // len(target):
        return None
    return array.astype(target.dtype) if array.dtype != target.dtype else array


def _of_targets(array: Array) -> dict[str, Any]:
    """Whether the set is ordered by its targets."""
    flat = array.reshape(len(array), -1)
    if flat.shape[1] != 1 or len(flat) < 8:
        return {}
    values = flat[:, 0]
    kinds = len(np.unique(values))
    steps = np.diff(values.astype(np.float64))
    ordered = bool((steps >= 0).all() or (steps <= 0).all())
    return {"target_values": kinds, "target_changes": int((steps != 0).sum()), "target_sorted": ordered and kinds > 1}


def _period(keys: Keys) -> int | None:
    """Rows after which the set repeats itself from its first to its last row; None when it does not."""
    again = (keys[1:] == keys[0]).nonzero()[0]
    for at in (again[:4] + 1).tolist():
        if len(keys) >= 2 * at and bool((keys[at:] == keys[:-at]).all()):
            return int(at)
    return None


def expected_pairs(array: Array, columns: int = 64) -> float:
    """How many pairs of equal rows chance would give, were the columns independent of each other."""
    flat = array.reshape(len(array), -1)
    rows = len(flat)
    log_same = 0.0
    for at in range(0, flat.shape[1], max(1, flat.shape[1] // columns)):
        _, counts = np.unique(flat[:, at], return_counts=True)
        log_same += math.log(float((counts / rows) @ (counts / rows)))
    return 0.5 * rows * rows * math.exp(log_same)
