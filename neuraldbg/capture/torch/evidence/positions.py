"""Position numbers as embeddings are asked for them, beside the padding of the tokens they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neuraldbg.capture.torch.evidence.host_copies import HostCopies
from neuraldbg.capture.torch.evidence.sequences import padding_of
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.passes import Pass
from neuraldbg.capture.torch.tree import Layer

Array = NDArray[Any]
LOOKS = 4  # at each embedding
LENGTHS = 32  # different lengths of sequences that are told apart
MOST_IDS = 65_536


class Positions:
    """Looks at the first calls of every nn.Embedding, and counts how long the sequences of passes are."""

    def __init__(self, capture: Any) -> None:
        self.core = capture.core
        self.copies = HostCopies()
        self._looks: dict[tuple[int, bool], int] = {}
        self._ids: dict[int, Tensor] = {}  # pass under way -> its token ids
        self._lengths: dict[bool, set[int]] = {True: set(), False: set()}  # of token ids, with and without gradient
        self._known: dict[int, dict[str, Any]] = {}
        self.core.take_part("layer_run", "position embeddings", self._layer)
        capture.passes.layers.tell_only(self._layer, lambda kind: kind.__name__ == "Embedding")
        for moment, notice in (("pass_begun", self._begun), ("pass_ended", self._ended), ("ending", self._ending)):
            self.core.take_part(
                moment, "positions", notice, rarely=moment == "pass_ended", early=moment == "pass_begun"
            )

    def _begun(self, one: Pass, _root: Any, args: Any, kwargs: Any) -> None:
        for ids in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(ids, Tensor) and _is_tokens(ids):
                break
        else:
            return  # runs at every pass: tokens inside of lists and dicts are not looked for
        lengths = self._lengths[one.grad]
        if len(lengths) < LENGTHS:
            lengths.add(ids.shape[1])
        if one.looked and len(self._ids) < 4:
            self._ids[one.id] = ids

    def _ended(self, one: Pass, *_: Any) -> None:
        self._ids.pop(one.id, None)
        self.copies.poll()

    def _layer(self, _: Any, layer: Layer, one: Pass, values: Any) -> None:
        key = (layer.site, one.grad)
        looked = self._looks.get(key, 0)
        index = next(tensors(values[0]), None)
        if looked >= LOOKS or index is None or index.dim() not in (1, 2) or index.numel() > MOST_IDS:
            return
        self._looks[key] = looked + 1
        ids = self._ids.get(one.id)
        site, path, grad, step = layer.site, layer.path, one.grad, self.core.recorder.step

        def arrived(arrays: dict[str, Array]) -> None:
            found = pattern_of(arrays["index"], arrays.get("ids"), "pos" in path.lower() or "wpe" in path.lower())
            if found is not None:
                self._write({"site": site, "training": grad, "at_step": step, **found})

        if index.dtype in (torch.int64, torch.int32):
            self.copies.take({"index": index, "ids": ids}, arrived)

    def _write(self, facts: dict[str, Any]) -> None:
        site = facts["site"]
        worse = facts.get("start_of_text_max", 0) - facts.get("start_of_text_min", 0)
        known = self._known.get(site)
        if known is None or worse > known["spread"]:
            self._known[site] = {"spread": worse, "facts": facts}
            self.core.recorder.fact("positions", **facts)

    def _ending(self) -> None:
        self.copies.finish_sync()
        trained, evaluated = (sorted(self._lengths[grad]) for grad in (True, False))
        if trained:
            self.core.recorder.fact("token_widths", training=trained, evaluated=evaluated)
        for known in self._known.values():
            lengths = {"lengths_training": trained, "lengths_evaluated": evaluated}
            self.core.recorder.fact("positions", **known["facts"], **lengths)


def _is_tokens(tensor: Tensor) -> bool:
    whole = tensor.dtype in (torch.int64, torch.int32)
    return whole and tensor.dim() == 2 and tensor.shape[1] > 1 and tensor.numel() <= MOST_IDS


def pattern_of(index: Array, ids: Array | None, named: bool) -> dict[str, Any] | None:
    """How the numbers run along a row; None where they are no positions."""
    rows = index.reshape(1, -1) if index.ndim == 1 else index
    if rows.shape[1] < 3:
        return None
    counting = bool((np.diff(rows, axis=1) == 1).all())
    alike = bool((rows == rows[:1]).all())
    constant = bool((rows == rows[:, :1]).all())
    if ids is not None and ids.shape == rows.shape and bool((ids == rows).all()) and not named:
        return None  # the tokens themselves
    if not (counting and alike) and not (named and (constant or counting)):
        return None
    facts: dict[str, Any] = {
        "pattern": "counting" if counting else "constant",
        "rows_alike": alike,
        "first": int(rows.min(1).min()),
        "length": int(rows.shape[1]),
    }
    padding = None if ids is None or ids.shape[1] != rows.shape[1] else padding_of(ids)
    if (
        padding is not None
        and ids is not None
        and padding["side"] == "left"
        and padding["lengths"].max() < ids.shape[1]
    ):
        wide = np.broadcast_to(rows, ids.shape)
        start = wide[np.arange(len(ids)), padding["lengths"]]
        facts |= {
            "start_of_text_min": int(start.min()),
            "start_of_text_max": int(start.max()),
            "pad_token": padding["token"],
        }
    return facts
