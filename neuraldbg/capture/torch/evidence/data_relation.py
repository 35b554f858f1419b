"""Do the labels have anything to do with the inputs? Two plain predictors, asked on pairs the loss was given."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.torch.core import Core
from neuraldbg.capture.torch.evidence.rows import Array, Keys, as_array
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.pieces import array_apart

MOST_ROWS = 1600  # looked through once there are as many: batch by batch it takes five times as long
ROOM = 2 * MOST_ROWS  # and no more of one batch
HELD_BYTES = 4 * 2**20  # of batches whose rows are taken out when they are looked through
FEWEST_ROWS = 96
FEATURES = 128
MOST_CALLS = 400
NEIGHBOURS = 8
SHUFFLES = 200
MOST_CLASSES = 64
PRODUCTS = 400
CLASSIFYING = ("cross_entropy", "nll", "bce", "bce_with_logits")
Floats = NDArray[np.float64]


@dataclass
class Pairs:
    """Different samples of training batches with their labels, copied: first those that were looked through, then
    batches as they came. They lie apart from the heap, where they would take the places of gradients."""

    rows: Array = field(default_factory=lambda: np.empty((0, 0), np.float32))
    labels: Array = field(default_factory=lambda: np.empty(0))
    keys_of: Keys = field(default_factory=lambda: np.empty(0, np.uint64))
    kept: int = 0
    filled: int = 0
    waiting: list[int] = field(default_factory=list)  # rows of each batch
    held: list[tuple[int, Array]] = field(default_factory=list)  # batches whose rows are still in them, and their place
    held_bytes: int = 0
    keys: set[int] = field(default_factory=set)
    calls: int = 0
    constant: int = 0  # batches of one label
    kind: str = ""
    width: int | None = None
    ids: bool | None = None  # whole numbers as inputs

    def take(self, x: Array, keys: Keys, labels: Array, *, ours: bool = False) -> bool:
        """False where such inputs are none that can be judged. `ours`: nobody will write to `x`."""
        ids, count = x.dtype.kind != "f", min(len(x), MOST_ROWS)
        if x.dtype.kind not in "fiu" or self.ids not in (None, ids) or not x.size:
            return False
        self.ids = ids
        if not len(self.labels):
            self.labels, self.keys_of = array_apart((ROOM,), np.float64), array_apart((ROOM,), np.uint64)
        part = slice(self.filled, self.filled + count)
        self.labels[part], self.keys_of[part] = labels.reshape(-1)[:MOST_ROWS], keys[:MOST_ROWS]
        if ours and self.held_bytes + x.nbytes <= HELD_BYTES:
            self.held.append((self.filled, x))
            self.held_bytes += x.nbytes
        else:
            self._take_out(self.filled, x)
        self.filled += count
        self.waiting.append(count)
        return True

    def _take_out(self, at: int, x: Array) -> None:
        flat = x.reshape(len(x), -1)[:MOST_ROWS]
        step = -(-flat.shape[1] // FEATURES)
        if not len(self.rows):
            columns = FEATURES if self.ids else -(-flat.shape[1] // step)
            self.rows = array_apart((ROOM, columns), np.float32)
        self.rows[at : at + len(flat)] = _counted(flat) if self.ids else flat[:, ::step]

    def look_through(self) -> bool:
        """Leaves out what is known already; False where labels or inputs are none that can be judged."""
        waiting, self.waiting = self.waiting, []
        held, self.held, self.held_bytes = self.held, [], 0
        for at, x in held:
            self._take_out(at, x)
        at = self.kept
        for count in waiting:
            rows, labels, keys = (one[at : at + count] for one in (self.rows, self.labels, self.keys_of))
            at += count
            different = len(np.unique(labels))
            each_its_own = self.kind in CLASSIFYING and different == count >= 4  # a contrast within the batch
            if each_its_own or not np.isfinite(rows).all():
                return False
            self.constant += different == 1
            self._keep(rows, labels, keys.tolist())
        self.filled = self.kept
        return True

    def _keep(self, rows: Array, labels: Array, keys: list[int]) -> None:
        new = []
        for number, key in enumerate(keys):
            if key not in self.keys:
                self.keys.add(key)
                new.append(number)
        into = slice(self.kept, self.kept + len(new))
        self.rows[into], self.labels[into] = rows[new], labels[new]
        self.kept += len(new)


class Inputs(NamedTuple):
    """Of a training pass."""

    tensor: Tensor
    keys: Keys  # one for each of its rows
    copy: Tensor | None  # with the same values, that nobody writes to


class LastInput:
    """Of the last training pass. Holds neither the batch nor its copy."""

    def __init__(self, one: Pass, args: Any, tensor: Tensor, keys: Keys) -> None:
        self.tensor, self._keys = weakref.ref(tensor), keys
        record = one.record  # another thread may let go of it
        copy = None if record is None or tensor.is_inference() else record.copy_of(tensor, args)
        self._copy = None if copy is None else weakref.ref(copy)
        self._version = -1 if copy is None else tensor._version

    def inputs(self) -> Inputs | None:
        """The copy only as long as it is what the batch is."""
        tensor = self.tensor()
        if tensor is None:
            return None
        copy = self._copy() if self._copy is not None and tensor._version == self._version else None
        return Inputs(tensor, self._keys, copy)


class Relation:
    """A fact `relation` when the script is over: how much better than shuffled labels a linear and
    a nearest-neighbour predictor do on the other half, in standard deviations."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._pairs: Pairs | None = Pairs()
        self._last = (0, -1)
        core.take_part("ending", "labels and inputs", self._finish)

    @property
    def over(self) -> bool:
        """Whether no more pairs are taken."""
        pairs = self._pairs
        return pairs is None or len(pairs.keys) >= MOST_ROWS or pairs.calls >= MOST_CALLS

    def add(self, kind: str, inputs: Inputs | None, target: Tensor) -> None:
        pairs = self._pairs
        if pairs is None or self.over:
            return
        pairs.calls += 1
        if inputs is None or self._last == (id(inputs.tensor), self.core.backwards):
            self._discard(pairs)  # two passes or two losses: which label belongs to which input is not known
            return
        self._last, ours = (id(inputs.tensor), self.core.backwards), inputs.copy is not None
        x, y = as_array(inputs.copy if ours else inputs.tensor), as_array(target)
        if x is None or y is None or not _paired(pairs, kind, x, y):
            self._discard(pairs)
            return
        pairs.kind, pairs.width = kind, x.size // len(x)
        if not pairs.take(x, inputs.keys, y, ours=ours):
            self._discard(pairs)
        elif pairs.filled >= MOST_ROWS:
            self._settle(pairs)

    def _discard(self, pairs: Pairs) -> None:
        """A batch does not fit those before: nothing is known, unless they were enough without it."""
        pairs.calls -= 1
        self._settle(pairs)
        if not self.over:
            self._pairs = None

    def _settle(self, pairs: Pairs) -> None:
        if not pairs.look_through():
            self._pairs = None

    def _finish(self) -> None:
        if self._pairs is not None:
            self._settle(self._pairs)
        pairs, self._pairs = self._pairs, None
        if pairs is None or len(pairs.keys) < FEWEST_ROWS or pairs.constant > 0.5 * pairs.calls:
            return
        kept = min(pairs.kept, MOST_ROWS)
        inputs, labels = pairs.rows[:kept].copy(), pairs.labels[:kept].copy()
        found = relation_of(inputs, labels, classes=pairs.kind in CLASSIFYING, ids=bool(pairs.ids))
        if found is not None:
            self.core.recorder.fact("relation", kind=pairs.kind, **found)


def _paired(pairs: Pairs, kind: str, x: Array, y: Array) -> bool:
    """One label for each row, and rows like those before."""
    if len(x) != len(y) or y.size != len(y) or len(x) < 2:
        return False
    return pairs.kind in ("", kind) and pairs.width in (None, x.size // len(x))


def _counted(ids: Array) -> Array:
    """At most so many numbers for each row: how often each id occurs in it."""
    counts = np.zeros((len(ids), FEATURES), np.float32)
    np.add.at(counts, (np.arange(len(ids))[:, None], ids % FEATURES), 1.0)
    return counts


def relation_of(inputs: Array, labels: Array, *, classes: bool, ids: bool = False) -> dict[str, Any] | None:
    x = inputs.astype(np.float64)
    spread = x.std(0)
    x = (x - x.mean(0))[:, spread > 1e-12] / spread[spread > 1e-12]
    y = _targets(labels, classes=classes)
    if x.shape[1] == 0 or y is None or len(x) < FEWEST_ROWS:
        return None
    order = np.random.default_rng(0).permutation(len(x))  # a generator of our own
    x, y = x[order], y[order]
    half = len(x) // 2
    parts = [(slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))]
    linear = [_surprise(_ridge(x[a], y[a], x[b]), y[b]) for a, b in parts]
    products = _products(x)
    crossed = [_surprise(_ridge(products[a], y[a], products[b]), y[b]) for a, b in parts]
    near = [_surprise(_nearest(x[a], y[a], x[b]), y[b]) for a, b in parts]
    return {
        "rows": len(x),
        "features": int(x.shape[1]),
        "classes": int(y.shape[1]) if classes else None,
        "linear": float(np.mean(linear)),
        "crossed": float(np.mean(crossed)),
        "near": float(np.mean(near)),
        "structure": _structure(x),
        "ids": ids,
        "label_variance": None if classes else float(labels.var()),
        "order": None if classes or ids else order_of(x, labels[order]),
    }


def order_of(x: Floats, labels: Array) -> float | None:
    """How much of what tells the inputs of different whole labels apart runs along the labels' order: 1 for a quantity,
    1 / (labels - 1) on average for names. None where the mean inputs of the labels do not differ clearly."""
    known, where, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if not 4 <= len(known) <= MOST_CLASSES or (known != np.round(known)).any() or counts.min() < 4:
        return None
    means = np.stack([x[where == label].mean(0) for label in range(len(known))])
    within = float(((x - means[where]) ** 2).sum() / (len(x) - len(known)))
    centred = means - x.mean(0)
    between = float((counts[:, None] * centred**2).sum())
    by_chance = (len(known) - 1) * within
    if within <= 1e-9 or between < 2 * by_chance:
        return None
    place = (known - labels.mean())[:, None]
    along = (counts[:, None] * place * centred).sum(0) ** 2 / (counts[:, None] * place**2).sum()
    return float((along.sum() - within) / (between - by_chance))


def _targets(labels: Array, *, classes: bool) -> Floats | None:
    if not classes:
        spread = labels.std()
        return ((labels - labels.mean()) / spread)[:, None] if spread > 1e-12 else None
    known, where = np.unique(labels, return_inverse=True)
    return np.eye(len(known))[where] if 2 <= len(known) <= MOST_CLASSES else None


def _ridge(x: Floats, y: Floats, other: Floats) -> Floats:
    gram = x.T @ x + 0.1 * len(x) * np.eye(x.shape[1])
    found: Floats = other @ np.linalg.solve(gram, x.T @ (y - y.mean(0)))
    return found


def _products(x: Floats) -> Floats:
    """Squares and products of two features: what a sum of them cannot see."""
    features = x.shape[1]
    pairs = [(a, b) for a in range(features) for b in range(a, features)]
    if len(pairs) > PRODUCTS:
        chosen = np.random.default_rng(2).choice(len(pairs), PRODUCTS, replace=False)
        pairs = [pairs[at] for at in chosen.tolist()]
    first, second = np.array(pairs).T
    products = x[:, first] * x[:, second]
    found: Floats = (products - products.mean(0)) / (products.std(0) + 1e-12)
    return found


def _nearest(x: Floats, y: Floats, other: Floats) -> Floats:
    distance = (x * x).sum(1)[None] - 2 * other @ x.T
    nearest = np.argpartition(distance, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    found: Floats = (y - y.mean(0))[nearest].mean(1)
    return found


def _surprise(predicted: Floats, y: Floats) -> float:
    """How far the agreement with the labels lies from that with shuffled ones, in deviations."""
    rng = np.random.default_rng(1)
    true = float((predicted * y).sum())
    by_chance = np.array([float((predicted * y[rng.permutation(len(y))]).sum()) for _ in range(SHUFFLES)])
    spread = float(by_chance.std())
    return (true - float(by_chance.mean())) / spread if spread > 0 else 0.0


def _structure(x: Floats) -> float | None:
    """The largest eigenvalue of the correlations over what pure noise of this size would give; 1 = noise."""
    rows, features = x.shape
    if features < 2:
        return None
    largest = float(np.linalg.eigvalsh(x.T @ x / rows)[-1])
    return largest / float((1 + np.sqrt(features / rows)) ** 2)
