"""Several processes train together and ship at once: one place, one prefix per rank, nobody asks anybody."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from forkserver import ForkServer, Running
from recorded import rows_and_facts

sys.path.append(str(Path(__file__).parents[1] / "ranks"))
from ranking import PROGRAMS, environment, free_port

from neuraldbg.analysis.summary import summarise
from neuraldbg.store.importing import import_run
from neuraldbg.store.manifest import open_dataset
from neuraldbg.store.places import open_place
from neuraldbg.trace import open_trace

WORDS = ("debug", "--headless", "--budget", "full")


def shipped_by_two(server: ForkServer, folder: Path, url: str, *, nodes: int) -> list[Path]:
    """Two ranks of a real training, on one machine or as on two that see nothing of each other; the runs they leave."""
    port, running, homes = free_port(), list[Running](), list[Path]()
    for rank in (0, 1):
        home = folder / (f"node-{rank}" if nodes == 2 else "node-0")
        home.mkdir(exist_ok=True)
        homes = [*homes, home] if home not in homes else homes
        own = dict.fromkeys(("LOCAL_RANK", "GROUP_RANK")) if nodes == 2 else {}  # Kubeflow's operator tells neither
        env = {**environment(rank, 2, port), **own, "NEURALDBG_SHIP_EVERY": "1"}
        words = (*WORDS, "--out", url, str(PROGRAMS / "ddp.py"), "", "24")
        running.append(server.start(*words, neural=True, cwd=home, env=env))
    ended = [one.wait(timeout=120, offspring=False) for one in running]
    assert [one.code for one in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    told = [line for one in ended for line in one.stderr.splitlines() if "neuraldbg: shipped" in line]
    assert len(told) == nodes, ended[0].stderr + ended[1].stderr
    return [run for home in homes for run in (home / "neuraldbg_runs").iterdir() if run.is_dir()]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_ranks_ship_to_one_place_and_all_of_both_arrives(
    torch_server: ForkServer, tmp_path: Path, bucket: str, nodes: int
) -> None:
    runs = shipped_by_two(torch_server, tmp_path, f"{bucket}/run", nodes=nodes)
    assert len(runs) == nodes
    there = open_dataset(open_place(f"{bucket}/run"))
    assert (there.ranks, there.ended, there.missing) == ((0, 1), True, ())
    for rank, manifest in there.manifests.items():
        assert {part.file.partition("/")[0] for _, part in manifest.parts()} == {f"rank-{rank:05d}"}
    back = import_run(there, tmp_path / "back")
    for rank in (0, 1):
        assert rows_and_facts(back, rank) == rows_and_facts(runs[rank if nodes == 2 else 0], rank)
    with open_trace(back) as trace:
        summary = summarise(trace, alive=False)
    assert (summary.run.world_size, summary.steps, summary.verdict.state) == (2, 24, "healthy")
