"""Token ids of a pass beside the targets of its loss: by how many positions they are moved, and what is padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Values = dict[str, Any]
SHIFTS = range(-3, 5)
FEWEST = 16  # targets that must be compared


def runs_at_end(ids: Array) -> tuple[int, Array]:
    """The token that rows end with most often, and how many times in a row each row ends with it."""
    known, counts = np.unique(ids[:, -1], return_counts=True)
    token = int(known[counts.argmax()])
    same = ids[:, ::-1] == token
    return token, np.where(same.all(1), ids.shape[1], same.argmin(1))


def padding_of(ids: Array) -> Values | None:
    """Which token fills up the rows, on which side, and how many positions of each row; None when none does.

    Padding is a run of one token at the end (or start) of rows, of different lengths, that is found nowhere else."""
    for side, rows in (("right", ids), ("left", ids[:, ::-1])):
        token, lengths = runs_at_end(rows)
        inside = int((rows == token).sum() - lengths.sum())
        if (lengths >= 2).mean() > 0.2 and len(np.unique(lengths)) > 1 and inside <= 0.02 * rows.size:
            return {"token": token, "side": side, "lengths": lengths}
    return None


def as_rows(target: Array, batch: int, *, time_first: bool = False) -> Array | None:
    """A flattened target as (batch, time)."""
    flat = target.reshape(-1)
    if batch < 1 or flat.size % batch or flat.size // batch < 2:
        return None
    return flat.reshape(-1, batch).T if time_first else flat.reshape(batch, -1)


def shift_of(ids: Array, target: Array, start: int, ignore: int | None) -> Values | None:
    """How far targets lie behind the inputs they are predicted at: 1 = next token, 0 = the token itself.

    `start` is the input position of the first prediction. Only targets inside the known ids can be compared."""
    padding = padding_of(ids)
    shares: dict[int, float] = {}
    for shift in SHIFTS:
        low, high = max(0, -(start + shift)), min(target.shape[1], ids.shape[1] - start - shift)
        if high - low < 1:
            continue
        wanted, there = target[:, low:high], ids[:, start + shift + low : start + shift + high]
        counted = np.ones(wanted.shape, bool)
        if ignore is not None:
            counted &= wanted != ignore
        if padding is not None:
            counted &= wanted != padding["token"]
        if counted.sum() >= FEWEST:
            shares[shift] = float((wanted == there)[counted].mean())
    if not shares:
        return None
    best = max(shares, key=lambda shift: (shares[shift], -abs(shift - 1)))
    others = [share for shift, share in shares.items() if shift != best]
    return {"shift": best, "shift_match": shares[best], "shift_next_best": max(others, default=0.0), "shares": shares}


def padded_targets(ids: Array, target: Array, scores: Array | None, ignore: int | None) -> Values | None:
    """Targets that stand where the input is padding and are counted all the same."""
    padding = padding_of(ids)
    if padding is None or padding["side"] != "right" or target.shape[0] != ids.shape[0]:
        return None
    label, lengths = runs_at_end(target)
    if ignore is not None and label == ignore:
        return None
    if np.abs(lengths - padding["lengths"]).mean() > 1.01 or (target[:, -1] == label).mean() < 0.2:
        return None
    is_pad = np.arange(target.shape[1])[None] >= (target.shape[1] - lengths)[:, None]
    facts: Values = {"pad_token": padding["token"], "pad_label": label, "pad_share": float(is_pad.mean())}
    if scores is not None:
        flat, labels = is_pad.reshape(-1)[: len(scores)], target.reshape(-1)[: len(scores)]
        own = -scores[np.arange(len(labels)), np.clip(labels, 0, scores.shape[1] - 1)]
        if flat.any() and (~flat).any():
            facts |= {"pad_loss": float(own[flat].mean()), "real_loss": float(own[~flat].mean())}
            right = scores.argmax(1) == labels
            facts["real_accuracy"] = float(right[~flat].mean())
    return facts
