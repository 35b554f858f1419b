"""`neural determinism`: two runs are compared operation by operation, and the first that differs is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from whatif_command import neural

from neuraldbg.replay.determinism import Operation, compare, read
from neuraldbg.replay.operations import log_operations

TRAINING = """
import random, torch
from torch import nn
{seed}
x = torch.randn(64, 8)
x = x * {scale}
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "scale", "code", "source", "kind"),
    [
        ("torch.manual_seed(0)", "1.0", 0, None, None),
        ("", "1.0", 6, "train.py:5", "result"),
        ("torch.manual_seed(0)", "torch.tensor(random.random())", 6, "train.py:6", "input"),
    ],
)
def test_the_first_operation_that_differs_is_named_with_its_line(
    tmp_path: Path, seed: str, scale: str, code: int, source: str | None, kind: str | None
) -> None:
    (tmp_path / "train.py").write_text(TRAINING.format(seed=seed, scale=scale))
    done = neural(tmp_path, "determinism", "--steps", "3", "--json", "train.py")
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)
    if source is None:
        assert found["difference"] is None
        assert found["steps"] >= 2
    else:
        assert (found["difference"]["source"], found["difference"]["kind"]) == (source, kind)
    assert not (tmp_path / "neuraldbg_runs").exists()


@pytest.mark.parametrize(
    ("words", "said"), [(["determinism"], "needs a target"), (["determinism", "no.py"], "no such")]
)
def test_a_missing_script_is_told_at_once(tmp_path: Path, words: list[str], said: str) -> None:
    done = neural(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_script_that_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('broken')\n")
    done = neural(tmp_path, "determinism", "train.py")
    assert done.returncode != 0
    assert "ValueError: broken" in done.stderr
    assert "Traceback" not in done.stderr


def test_memory_that_nobody_wrote_to_is_skipped_and_nothing_that_is_spelled_like_it(tmp_path: Path) -> None:
    log = log_operations(str(tmp_path / "log.tsv"))
    torch.ones(2, 2).t().tanh().topk(1)
    torch.ones(2).new_empty(3)
    torch.empty_like(torch.ones(2)).resize_(4)
    log.close()
    names = {one.name.partition(".")[0] for one in read(tmp_path / "log.tsv")}
    assert names == {"aten::ones", "aten::tanh", "aten::topk"}


ONE = Operation(0, "aten::mm", 1, 2, "train.py:3")


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        ([Operation(0, "aten::mm", 1, 3, "train.py:3")], "result"),
        ([Operation(0, "aten::mm", 9, 3, "train.py:3")], "input"),
        ([Operation(0, "aten::add", 1, 2, "train.py:4")], "order"),
        ([], "length"),
    ],
)
def test_how_two_runs_part_is_told_apart(other: list[Operation], kind: str) -> None:
    found = compare(iter([ONE]), iter(other))
    assert found.difference is not None
    assert found.difference.kind == kind
    assert compare(iter([ONE]), iter([ONE])).difference is None


WORKERS = """
import torch
from torch import nn

class Made(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        x = torch.full((8,), float(at))
        for _ in range(40):
            x = (x * 1.5).sin()
        return x

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(Made(), batch_size=16, num_workers=2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_what_workers_of_a_loader_compute_is_not_mixed_into_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    done = neural(tmp_path, "determinism", "--steps", "4", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["difference"] is None


@pytest.mark.slow
def test_a_number_that_python_draws_is_no_fault_of_the_operation_it_goes_into(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.format(seed="torch.manual_seed(0)", scale="random.random()"))
    done = neural(tmp_path, "determinism", "--steps", "3", "--json", "train.py")
    assert done.returncode == 6, done.stderr
    found = json.loads(done.stdout)["difference"]
    assert (found["source"], found["kind"]) == ("train.py:6", "input")
    assert "seed numpy and random" in found["cure"]
