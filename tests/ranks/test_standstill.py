"""Ranks that all stand still: who is waited for, and what was seen of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated import START_NS, SimulatedRank, a_run_of_ranks, judged

from neuraldbg import open_trace
from neuraldbg.analysis.summary import summarise
from neuraldbg.records import Call, Finding, Severity
from neuraldbg.surfaces.live_analysis import LiveAnalysis
from neuraldbg.trace.rundir import write_launched, write_stacks


def _standing(one: SimulatedRank, where: str, since_s: float, line: str, *, at_s: float = 60.0) -> None:
    wall, number = START_NS + int(at_s * 1e9), 1200 if where == "all_reduce" else None
    told = {"where": where, "since_s": since_s, "line": line, "stack": [], "collective": number}
    one.writer.fact("standing", **told, wall_ns=wall, step=8)


def test_a_standstill_names_the_rank_that_the_others_wait_for(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank, one in enumerate(ranks):
        one.updates(8)
        _standing(one, "the data loader" if rank == 1 else "all_reduce", 41, f"train.py:{30 + rank}")
        one.close()
    [found] = judged(run, "rank_divergence")
    assert (found.rank, found.step, found.source) == (1, 8, "train.py:31")
    assert "rank 1 stands in the data loader at train.py:31 since 41 s" in found.summary
    assert "rank 0 in all_reduce 1,200 at train.py:30" in found.summary


def test_a_rank_that_has_left_is_what_the_others_wait_for(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    ranks[0].updates(10)
    _standing(ranks[0], "backward", 20, "train.py:30")
    ranks[0].close()
    ranks[1].updates(10).end().close()
    [found] = judged(run, "rank_divergence")
    assert found.rank == 1
    assert "rank 1 has left after 10 updates" in found.summary


def test_ranks_that_stood_until_the_failure_of_one_reached_them_did_not_hang(tmp_path: Path) -> None:
    """The loss of a connection may take a while to be seen; until then the others wait for the one that has failed."""
    run, ranks = a_run_of_ranks(tmp_path, 3)
    lost = "RuntimeError: Connection closed by peer"
    ranks[0].updates(8).end(exit_code=1, error=lost, at_s=50).close()
    ranks[1].updates(8).end(exit_code=1, error="ValueError: no more disks", at_s=49).close()
    _standing(ranks[2], "backward", 10, "train.py:50")
    ranks[2].updates(8)
    ranks[2].writer.flush()
    [found] = judged(run, "rank_divergence")
    assert "rank 1 has left after 8 updates (ValueError: no more disks)" in found.summary
    ranks[2].end(exit_code=1, error=lost, at_s=64).close()
    assert judged(run, "rank_divergence") == []


def test_ranks_that_their_launcher_killed_after_ctrl_c_had_hung(tmp_path: Path) -> None:
    """A collective that waits in C hears no Ctrl-C: the launcher kills it after a while."""
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        _standing(one, "barrier" if rank else "all_reduce", 20, "train.py:50")
        one.updates(8).close()
    ended = {"exit_code": 1, "error": "KeyboardInterrupt: SignalException: got signal: 2"}
    write_launched(run, {**ended, "children": [[0, -9], [1, -9]]})
    [found] = judged(run, "rank_divergence")
    assert "no rank moves" in found.summary
    assert judged(run, "crash") == []


def test_ranks_that_wait_for_one_that_works_are_no_alarm(tmp_path: Path) -> None:
    """An evaluation or a checkpoint on the first rank."""
    run, ranks = a_run_of_ranks(tmp_path, 2)
    _standing(ranks[1], "barrier", 30, "train.py:50")
    ranks[0].calls(Call.PASS, [8], wall_ns=START_NS + 59 * 10**9)
    for one in ranks:
        one.updates(8).close()
    assert judged(run, "rank_divergence") == []


def test_a_rank_that_cannot_say_where_it_stands_is_what_the_others_wait_for(tmp_path: Path) -> None:
    """Code that holds the interpreter, or a machine that is gone: nothing is heard of it."""
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank in (0, 1):
        _standing(ranks[rank], "all_reduce", 40, "train.py:50")
    ranks[2].end(exit_code=1, error="KeyboardInterrupt", at_s=90)  # somebody has had enough
    for one in ranks:
        one.updates(8).close()
    [found] = judged(run, "rank_divergence")
    assert (found.severity, found.rank, found.step) == (Severity.CRITICAL, 2, 8)
    assert "nothing was heard of rank 2 for 60 s after 8 updates; ranks 0, 1 in all_reduce 1,200" in found.summary


def test_ranks_that_wait_in_different_collectives_are_told_so(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        one.updates(8)
        _standing(one, "broadcast" if rank else "all_reduce", 41, "train.py:31")
        one.close()
    [found] = judged(run, "rank_divergence")
    assert "different collectives" in found.inference


def _hung(tmp_path: Path, stacks: dict[str, object]) -> Finding:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        one.updates(8)
        _standing(one, "barrier" if rank else "the data loader", 41, "train.py:31")
        one.close()
    write_stacks(run, stacks)
    [found] = judged(run, "rank_divergence")
    return found


def test_a_standstill_is_told_with_the_stacks_that_were_seen_from_outside(tmp_path: Path) -> None:
    frames = ["run (/lib/neuraldbg/script.py:7)", "load (/home/me/data.py:12)", "main (/home/me/train.py:31)"]
    threads = [{"main": False, "frames": ["work (/x.py:1)"]}, {"main": True, "frames": frames}]
    seen = {"0": {"pid": 1, "threads": threads}, "1": {"pid": 2, "why_not": "Permission denied"}}
    found = _hung(tmp_path, {"step": 8, "by": "py-spy", "ranks": seen})
    assert found.evidence["stack_of_rank_0"] == "load (data.py:12) < main (train.py:31)"
    assert found.evidence["stack_of_rank_1"] == "Permission denied"


def test_where_nobody_could_look_from_outside_the_report_says_so(tmp_path: Path) -> None:
    found = _hung(tmp_path / "a", {"step": 8, "by": None, "why_not": "no py-spy here", "ranks": {}})
    assert found.evidence["stacks"] == "no py-spy here"
    found = _hung(tmp_path / "b", {"step": 5, "by": "py-spy", "ranks": {}})
    assert "stacks" not in found.evidence, "of another standstill"


def test_a_standstill_that_is_over_is_forgotten(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for one in ranks:
        _standing(one, "barrier", 30, "train.py:50", at_s=-1)
        one.updates(30).end().close()
    assert judged(run, "rank_divergence") == []


def test_a_rank_that_is_not_heard_of_has_not_written_its_last_updates(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank, one in enumerate(ranks):
        one.updates(5 if rank == 2 else 8)
        if rank != 2:
            _standing(one, "backward", 40, "train.py:50")
        one.close()
    [found] = judged(run, "rank_divergence")
    assert (found.rank, found.step) == (2, 8)


@pytest.mark.parametrize("how", ["it still runs", "it is over"])
def test_a_rank_that_trains_alone_while_others_wait_for_its_gradients_is_named(tmp_path: Path, how: str) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank, one in enumerate(ranks):
        one.updates(40 if rank == 1 else 4)
        if how == "it is over":
            lost = {"exit_code": 1, "error": "RuntimeError: Connection closed by peer"}
            one.writer.fact("wrapper", **{"class": "DistributedDataParallel"}, line="train.py:9", parameter_bytes=40)
            one.end(**({} if rank == 1 else lost), at_s=50 + rank)
        elif rank != 1:
            _standing(one, "backward", 20, "train.py:50")
        one.close()
    [found] = judged(run, "gradient_not_synchronised")
    assert (found.severity, found.rank, found.step) == (Severity.CRITICAL, 1, 4)
    assert "rank 1 made 40 updates with gradients of its own while ranks 0, 2 waited" in found.summary


@pytest.mark.parametrize("where", ["recv", "barrier", "broadcast"])
def test_a_rank_that_waits_for_a_trained_model_is_no_alarm(tmp_path: Path, where: str) -> None:
    """One that only evaluates, say."""
    run, ranks = a_run_of_ranks(tmp_path, 2)
    _standing(ranks[1], where, 30, "evaluate.py:5")
    ranks[0].updates(400)
    for one in ranks:
        one.close()
    assert judged(run, "gradient_not_synchronised") + judged(run, "rank_divergence") == []


def test_rows_that_were_given_up_for_space_are_no_missing_updates(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    ranks[0].calls(Call.STEP, range(900, 1000))
    ranks[0].writer.fact("evicted", rows={"updates": 900, "calls": 900})
    ranks[1].calls(Call.STEP, range(500, 1000))
    ranks[1].writer.fact("evicted", rows={"updates": 500, "calls": 500})
    _standing(ranks[0], "backward", 20, "train.py:50")
    for one in ranks:
        one.close()
    assert judged(run, "gradient_not_synchronised") == []
    with open_trace(run) as trace:
        assert summarise(trace, alive=True).steps == 1000


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_that_have_not_come_are_named(tmp_path: Path, world: int) -> None:
    run, _ = a_run_of_ranks(tmp_path, 0)
    first = SimulatedRank(run, 0, world, wall_ns=START_NS)
    _standing(first, "init_process_group", 40, "train.py:9")
    first.close()
    [found] = judged(run, "rank_divergence")
    assert (found.severity, found.rank, found.step) == (Severity.CRITICAL, 1, 0)
    others = "rank 1" if world == 2 else "ranks 1, 2, 3"
    assert f"1 of {world} ranks have come and wait since 40 s for {others}: " in found.summary
    assert "rank 0 in init_process_group at train.py:9" in found.summary


def test_a_rank_that_waited_until_the_others_had_used_their_batches_up_is_no_alarm(tmp_path: Path) -> None:
    """The Join context manager."""
    run, ranks = a_run_of_ranks(tmp_path, 2)
    _standing(ranks[1], "all_reduce", 12, "train.py:50")
    for one, updates in zip(ranks, (30, 20), strict=True):
        one.updates(updates).end().close()
    [found] = judged(run, "rank_divergence")
    assert found.severity is Severity.INFO
    assert judged(run, "gradient_not_synchronised") == []


@pytest.mark.parametrize("alone", [False, True])
def test_a_standstill_is_said_while_it_lasts_and_so_is_its_end(tmp_path: Path, alone: bool) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    _standing(ranks[0].updates(8), "backward", 25, "train.py:50")
    ranks[1].updates(40 if alone else 8)
    if not alone:
        _standing(ranks[1], "the data loader", 25, "train.py:31")
    said: list[str] = []
    analysis = LiveAnalysis(run, say=said.append)
    for one in ranks:
        one.writer.flush()
    analysis.look()
    analysis.look()
    [first] = said
    alone_says = "rank 1 made 40 updates with gradients of its own"
    assert first.startswith(alone_says if alone else "no rank moves: rank 1 stands in the data loader")
    for one in ranks:
        one.calls(Call.STEP, [41], wall_ns=START_NS + 70 * 10**9).writer.flush()
    analysis.look()
    assert said == [first, "the ranks move again"]
