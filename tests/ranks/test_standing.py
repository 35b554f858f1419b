"""What a rank that does not move waits for, told from its stack."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from neuraldbg.capture.torch.standing import place_of_frame

TORCH = "/env/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
OURS = "/env/site-packages/neuraldbg"


def calling(inner: Callable[[], str | None], file: str, name: str) -> Callable[[], str | None]:
    def call() -> str | None:
        return inner()

    call.__code__ = call.__code__.replace(co_filename=file, co_name=name)
    return call


def standing_in(*calls: tuple[str, str]) -> str | None:
    """Of a thread with these calls in the script, outermost first."""
    call: Callable[[], str | None] = lambda: place_of_frame(sys._getframe(1))  # noqa: E731
    for file, name in reversed(calls):
        call = calling(call, file, name)
    return calling(call, "train.py", "main")()


@pytest.mark.parametrize(
    ("calls", "where"),
    [
        ([], "the script's own code"),
        ([(C10D, "all_reduce")], "all_reduce"),
        ([(C10D, "init_process_group"), (C10D, "_new_process_group_helper")], "init_process_group"),
        ([(C10D, "_all_gather_base")], "_all_gather_base"),
        ([(f"{TORCH}/utils/data/dataloader.py", "__next__"), ("data.py", "__getitem__")], "the data loader"),
        ([(f"{TORCH}/nn/modules/module.py", "_call_impl"), (f"{OURS}/capture/torch/ranks.py", "wait")], "Work.wait"),
        ([(f"{TORCH}/autograd/graph.py", "_engine_run_backward")], "backward"),
        ([(f"{TORCH}/distributed/algorithms/join.py", "__exit__"), (C10D, "all_reduce")], "Join"),
        ([(f"{OURS}/control/gate.py", "reached")], None),
    ],
)
def test_the_innermost_place_that_people_know_is_told(calls: list[tuple[str, str]], where: str | None) -> None:
    assert standing_in(*calls) == where
