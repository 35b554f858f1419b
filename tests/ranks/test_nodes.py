"""Several nodes with launchers of their own join one run in a directory that they share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forkserver import ForkServer
from ranking import PROGRAMS, free_port, kinds, launch, told

from neuraldbg import open_trace
from neuraldbg.analysis.ranks import processes
from neuraldbg.analysis.summary import summarise
from neuraldbg.capture.attachment import Plan
from neuraldbg.ranks.nodes import Node, node_of, run_to_join
from neuraldbg.ranks.orders import Orders
from neuraldbg.trace.rundir import read_launched, write_launched


@pytest.mark.parametrize(
    ("words", "environ", "node"),
    [
        (["--nproc-per-node=2", "train.py"], {}, None),
        (["--nnodes=1", "train.py"], {}, None),
        (["--nnodes=2", "--node-rank=1", "train.py"], {}, Node(1)),
        (["--nnodes", "2", "--node_rank", "0", "train.py"], {}, Node(0)),
        (["--nnodes=1:4", "--rdzv-backend=c10d", "train.py"], {}, Node(None)),
        (["--num_machines", "2", "--machine_rank", "1", "train.py"], {}, Node(1)),
        (["train.py", "--nnodes=2"], {}, None),
        (["train.py"], {"PET_NNODES": "2", "PET_NODE_RANK": "1"}, Node(1)),
    ],
)
def test_a_launcher_says_which_of_several_nodes_it_is(
    words: list[str], environ: dict[str, str], node: Node | None
) -> None:
    assert node_of(words, environ) == node


def test_a_node_joins_what_another_has_begun_and_nothing_else(tmp_path: Path) -> None:
    assert run_to_join(Node(1), tmp_path, patience_s=0) is None, "nothing there"
    Orders(Plan(str(tmp_path))).write(tmp_path)
    assert run_to_join(Node(1), tmp_path, patience_s=0) == tmp_path
    assert run_to_join(Node(None), tmp_path, patience_s=0) == tmp_path
    assert run_to_join(Node(0), tmp_path, patience_s=0) is None, "the first makes the run"
    os.utime(tmp_path / "ranks.json", (1, 1))
    assert run_to_join(Node(1), tmp_path, patience_s=0) is None, "an old one"
    os.utime(tmp_path / "ranks.json")
    write_launched(tmp_path, {"exit_code": 0})
    assert run_to_join(Node(1), tmp_path, patience_s=0) is None, "one that is over"


@pytest.mark.slow
def test_two_launchers_are_one_run(torch_server: ForkServer, tmp_path: Path) -> None:
    plain = launch(torch_server, tmp_path, "ddp.py", options=None)
    shared, port = str(tmp_path / "run"), str(free_port())
    nodes = [
        torch_server.start(
            "debug", "--headless", "--out", shared, "torchrun", "--nnodes=2", f"--node-rank={node}",
            "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}", str(PROGRAMS / "ddp.py"),
            neural=True, cwd=tmp_path,
        )
        for node in (1, 0)
    ]  # fmt: skip
    second, first = (one.wait(timeout=200, offspring=False) for one in nodes)
    assert (first.code, second.code) == (0, 0), second.stderr
    assert told([first, second]) == told(plain.wait())
    assert "2 of 2 ranks" in first.stderr
    assert [each.stderr.count("Verdict") for each in (first, second)] == [1, 0], "one verdict for all"
    with open_trace(shared) as trace:
        assert {rank: one.node for rank, one in processes(trace).items()} == {0: 0, 1: 1}
        assert kinds(summarise(trace, alive=False)) == []
    launched = read_launched(Path(shared))
    assert launched is not None
    assert sorted(launched["children"]) == [[0, 0], [1, 0]]
