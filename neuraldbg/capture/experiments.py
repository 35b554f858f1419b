"""The experiments that are made when a script is over, by the names of their facts `probe`."""

from __future__ import annotations

NAMES = (
    "cross_sample",
    "future_token",
    "train_eval",
    "in_place",
    "token_dependence",
    "standardised",
    "overfit",
    "label_permutation",
)
