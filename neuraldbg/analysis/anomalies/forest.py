"""An isolation forest in numpy (Liu, Ting and Zhou, 2008): what a few random cuts set apart is unusual.

All trees grow together, one level at a time, and are walked together: no Python loop over points or trees. For points
inside the range it was grown on it is the forest of the paper. A point outside is also isolated, at each node it
passes, with the chance that a cut had fallen between it and everything known; the plain forest cannot tell such a
point from the outermost known one, and missed half of all faults of 10 sigma in one of five metrics (measured).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TREES = 64
SUBSAMPLE = 256  # points that a tree is grown from
SEED = 20080
Points = NDArray[np.float64]  # one row each, all finite


@dataclass(frozen=True, slots=True)
class IsolationForest:
    """Complete binary trees, one row each: the children of node i are 2i + 1 and 2i + 2."""

    feature: NDArray[np.int16]  # trees x nodes; the column that a node looks at, -1 in a leaf
    cut: NDArray[np.float32]  # trees x nodes; what is larger goes right
    length: NDArray[np.float16]  # trees x nodes; of the path to a leaf, with what growing on would have added
    low: Points  # per column, over all points grown on
    high: Points
    subsample: int

    def score(self, points: Points) -> NDArray[np.float64]:
        """From 0 to 1 for every point: about 0.5 is ordinary, the nearer to 1 the more unusual."""
        trees, nodes = self.feature.shape
        features, cuts, values = self.feature.ravel(), self.cut.ravel(), points.ravel()
        root = np.arange(trees) * nodes
        row = np.arange(len(points))[:, None] * points.shape[1]
        outside = self._outside(points)
        reached = np.ones((len(points), trees))  # the share of a point that is not isolated yet
        path = np.zeros_like(reached)
        node = np.zeros_like(reached, dtype=np.intp)
        for level in range(depth_limit(self.subsample)):
            at = root + node
            feature = features.take(at)
            inner, value = feature >= 0, row + feature
            if outside is not None:
                isolated = outside.take(value) * reached * inner
                path += isolated * (level + 1)
                reached -= isolated
            right = values.take(value) > cuts.take(at)
            node = np.where(inner, 2 * node + 1 + right, node)
        path += reached * self.length.ravel().take(root + node)
        usual = usual_path(np.array([max(self.subsample, 2)]))
        scores: NDArray[np.float64] = 2.0 ** (-path.mean(axis=1) / usual)
        return scores

    def _outside(self, points: Points) -> Points | None:
        """Per point and column, how likely a cut falls between it and the known range; None if all are inside."""
        gap = np.maximum(points - self.high, 0.0) + np.maximum(self.low - points, 0.0)
        return gap / (gap + np.maximum(self.high - self.low, 1e-12)) if gap.any() else None


def grow(points: Points, *, trees: int = TREES, seed: int = SEED) -> IsolationForest:
    """A forest over at least one point. The same points give the same forest."""
    random = np.random.default_rng(seed)
    size = min(len(points), SUBSAMPLE)
    levels = depth_limit(size)
    nodes = 2 ** (levels + 1) - 1
    feature = np.full((trees, nodes), -1, dtype=np.int16)
    cut = np.zeros((trees, nodes), dtype=np.float32)
    length = np.tile(np.log2(np.arange(nodes) + 1).astype(np.int64), (trees, 1)).astype(np.float16)
    chosen = random.permuted(np.tile(np.arange(len(points)), (trees, 1)), axis=1)[:, :size]
    sample = points[chosen.ravel()]
    tree = np.repeat(np.arange(trees), size)
    node = np.zeros(trees * size, dtype=np.intp)
    for level in range(levels + 1):
        order = np.argsort(tree * nodes + node, kind="stable")
        sample, tree, node = sample[order], tree[order], node[order]
        starts = np.flatnonzero(np.r_[True, np.diff(tree * nodes + node) != 0])
        sizes = np.diff(np.r_[starts, len(node)])
        pick, where = _cuts(sample, starts, random)
        if level == levels:
            pick[:] = -1
        at = (tree[starts], node[starts])
        feature[at], cut[at], length[at] = pick, where, level + usual_path(sizes)
        grows_on = np.repeat(pick >= 0, sizes)
        sample, tree, node = sample[grows_on], tree[grows_on], node[grows_on]
        if not len(node):
            break
        right = sample[np.arange(len(node)), feature[tree, node]] > cut[tree, node]
        node = 2 * node + 1 + right
    return IsolationForest(feature, cut, length, points.min(axis=0), points.max(axis=0), size)


def _cuts(
    sample: Points, starts: NDArray[np.intp], random: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """For each stretch of the sample a random column and a random place in its range; column -1 if all are alike."""
    low, high = np.minimum.reduceat(sample, starts), np.maximum.reduceat(sample, starts)
    draw = np.where(high > low, random.random(low.shape), -1.0)
    pick = draw.argmax(axis=1)
    each = np.arange(len(starts))
    where = low[each, pick] + random.random(len(starts)) * (high - low)[each, pick]
    return np.where(draw[each, pick] < 0, -1, pick), where


def depth_limit(size: int) -> int:
    return max(1, math.ceil(math.log2(max(size, 2))))


def usual_path(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """The mean depth at which a search in a random tree over so many points ends."""
    many = np.maximum(sizes, 3).astype(np.float64)
    path = 2.0 * (np.log(many - 1.0) + np.euler_gamma) - 2.0 * (many - 1.0) / many
    return np.where(sizes > 2, path, np.where(sizes == 2, 1.0, 0.0))
