"""Two processes that train together are held after one and the same update, and go on to the same result."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from forkserver import ForkServer
from ranking import PROGRAMS, Ranks, free_port, launch, told
from waiting import eventually

from neuraldbg.analysis.ranks import main_rank, processes
from neuraldbg.control.channel import CONTROL_FILE, ChannelClient
from neuraldbg.records import Call
from neuraldbg.trace.tables import CALL_CODE

LONGER_S = 6.0  # than the script's own process group would wait (4 s)
STEPS = "200"


def updates(ranks: Ranks, folders: tuple[int, int] = (0, 1)) -> list[int]:
    """Of each rank, as far as they are written."""
    with ranks.trace() as trace:
        table = trace.table("calls", ["call", "rank"])
        return [int(((table["call"] == CALL_CODE[Call.STEP]) & (table["rank"] == each)).sum()) for each in folders]


def served(server: ForkServer, folder: Path, *options: str) -> Ranks:
    words = ("--port", str(free_port()), "--no-browser", *options)
    return launch(server, folder, "ddp.py", "slow_steps", STEPS, options=words)


def held(client: ChannelClient) -> bool:
    return bool(client.call("state")["state"] == "paused")


@pytest.mark.slow
def test_a_pause_holds_both_ranks_and_changes_nothing(torch_server: ForkServer, tmp_path: Path) -> None:
    plain = launch(torch_server, tmp_path, "ddp.py", "slow_steps", STEPS, options=None)
    ranks = served(torch_server, tmp_path)
    eventually(lambda: (ranks.run_dir / CONTROL_FILE).is_file() and sum(updates(ranks)) > 10)
    with closing(ChannelClient(ranks.run_dir)) as client:
        client.call("pause")
        eventually(lambda: held(client))
        step = client.call("state")["step"]
        eventually(lambda: updates(ranks) == [step + 1, step + 1])
        time.sleep(LONGER_S)
        assert updates(ranks) == [step + 1, step + 1]
        client.call("step", unit="step")
        eventually(lambda: held(client) and updates(ranks) == [step + 2, step + 2])
        client.call("continue")
    watched = ranks.wait()
    assert [one.code for one in watched] == [0, 0], watched[1].stderr
    assert told(watched) == told(plain.wait())
    assert "process groups wait 24 h" in watched[0].stderr, "and it is said"
    assert not list(ranks.run_dir.glob("hold*")), "nothing is left of it"


@pytest.mark.slow
def test_leaving_ends_both_ranks_in_good_order(torch_server: ForkServer, tmp_path: Path) -> None:
    ranks = served(torch_server, tmp_path)
    eventually(lambda: (ranks.run_dir / CONTROL_FILE).is_file() and sum(updates(ranks)) > 10)
    with closing(ChannelClient(ranks.run_dir)) as client:
        client.call("abort")
    results = ranks.wait()
    assert [one.code for one in results] == [-2, -2], results[1].stderr
    first, other = updates(ranks)
    assert first == other
    assert all("Connection" not in one.stderr for one in results)
    with ranks.trace() as trace:
        assert {fact["rank"] for fact in trace.facts("end")} == {0, 1}


@pytest.mark.slow
def test_ranks_that_a_script_spawns_are_one_run_and_held_together(torch_server: ForkServer, tmp_path: Path) -> None:
    words = ("debug", "--port", str(free_port()), "--no-browser", "--out", "run", str(PROGRAMS / "spawned.py"))
    running = torch_server.start(*words, str(free_port()), neural=True, cwd=tmp_path)
    ranks = Ranks([running], tmp_path / "run")
    eventually(lambda: (ranks.run_dir / "hold.json").is_file() and min(updates(ranks, (1, 2))) > 5, patience_s=150)
    with closing(ChannelClient(ranks.run_dir)) as client:
        client.call("pause")
        eventually(lambda: held(client))
        step = client.call("state")["step"]
        eventually(lambda: updates(ranks, (1, 2)) == [step + 1, step + 1])
        client.call("step", unit="step")
        eventually(lambda: held(client) and updates(ranks, (1, 2)) == [step + 2, step + 2])
        client.call("continue")
    result = running.wait(timeout=200)
    assert (result.code, result.stdout) == (0, "done\n"), result.stderr
    assert "process groups wait 24 h" in result.stderr
    assert not [each.name for each in ranks.run_dir.iterdir() if each.name.startswith(("hold", "asked", "control"))]
    with ranks.trace() as trace:
        group = processes(trace)
        assert {one.folder for one in group.values()} == {1, 2}
        assert main_rank(trace) == group[0].folder
    assert updates(ranks, (0, 1))[0] == 0, "the parent trains nothing"
    found = ranks.summary().findings[0]
    assert (found["kind"], found["rank"], found["step"]) == ("gradient_not_synchronised", 1, 0)
    assert "spawned.py:17" in found["source"]
