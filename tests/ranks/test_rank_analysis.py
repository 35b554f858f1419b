"""What is concluded from the records of several ranks, told without a framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated import SimulatedRank, a_run_of_ranks, judged, timed

from neuraldbg import open_trace
from neuraldbg.analysis.phases import rank_times
from neuraldbg.analysis.rank_overview import overview
from neuraldbg.analysis.rank_steps import communication
from neuraldbg.analysis.ranks import main_rank, processes, run_of_main
from neuraldbg.records import Call, Severity, SiteKind
from neuraldbg.trace.rundir import write_launched

STEPS = 60


def digested(one: SimulatedRank, call: Call, steps: list[int], value: int) -> None:
    one.calls(call, steps, site=1, digest=value)


def test_ranks_that_agree_are_out_of_nothing(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for one in ranks:
        for step in (0, 1, 2, 3, 16, 32):
            digested(one, Call.DIGEST_WEIGHT, [step], 100 + step)
            digested(one, Call.DIGEST_GRADIENT, [step], 200 + step)
        one.updates(STEPS).end().close()
    assert judged(run, "weights_out_of_sync_across_ranks") + judged(run, "gradient_not_synchronised") == []


def _parted(tmp_path: Path, *, weights_from: int, gradients_from: int, meant: bool = True, until: int = 99) -> Path:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank, one in enumerate(ranks):
        for step in (0, 1, 2, 3, 16, 32):
            odd = rank == 2
            digested(one, Call.DIGEST_WEIGHT, [step], 100 + step + (odd and weights_from <= step < until))
            digested(one, Call.DIGEST_GRADIENT, [step], 200 + step + (odd and gradients_from <= step < until))
        if meant:
            one.writer.fact("wrapper", **{"class": "DistributedDataParallel"}, line="train.py:9", parameter_bytes=40)
        one.updates(STEPS).end().close()
    return run


def test_gradients_that_part_before_the_weights_are_the_cause(tmp_path: Path) -> None:
    run = _parted(tmp_path, weights_from=3, gradients_from=2)
    [found] = judged(run, "gradient_not_synchronised")
    assert (found.severity, found.rank, found.step) == (Severity.CRITICAL, 2, 2)
    assert found.evidence["parameter"] == "fc.weight"
    assert judged(run, "weights_out_of_sync_across_ranks") == []


def test_weights_that_part_under_equal_gradients_are_the_cause(tmp_path: Path) -> None:
    run = _parted(tmp_path, weights_from=16, gradients_from=99)
    [found] = judged(run, "weights_out_of_sync_across_ranks")
    assert (found.severity, found.rank, found.step) == (Severity.CRITICAL, 2, 16)
    assert "update 3 to 16" in found.summary


def test_weights_that_differ_from_the_start_are_the_cause_of_everything_after(tmp_path: Path) -> None:
    run = _parted(tmp_path, weights_from=0, gradients_from=0)
    [found] = judged(run, "weights_out_of_sync_across_ranks")
    assert "before the first update" in found.summary
    assert judged(run, "gradient_not_synchronised") == []


def test_of_two_ranks_the_first_is_taken_for_right_in_whatever_order_they_came(tmp_path: Path) -> None:
    run, _ = a_run_of_ranks(tmp_path, 0)
    for rank in (1, 0):
        one = SimulatedRank(run, rank, 2, folder=1 - rank)
        for step in (0, 1, 2):
            digested(one, Call.DIGEST_WEIGHT, [step], 100 + rank)
        one.updates(STEPS).end().close()
    [found] = judged(run, "weights_out_of_sync_across_ranks")
    assert found.rank == 1


@pytest.mark.parametrize("why", ["they come together again", "they were never meant to be one"])
def test_ranks_that_part_on_purpose_are_no_alarm(tmp_path: Path, why: str) -> None:
    again = why == "they come together again"
    run = _parted(tmp_path, weights_from=1, gradients_from=1, meant=again, until=16 if again else 99)
    found = judged(run, "weights_out_of_sync_across_ranks") + judged(run, "gradient_not_synchronised")
    assert {one.severity for one in found} <= {Severity.INFO}


def test_a_killed_rank_is_named_and_not_those_that_the_launcher_ended(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank, one in enumerate(ranks):
        one.updates(10 if rank == 1 else 12).close()
    write_launched(run, {"exit_code": 1, "error": None, "children": [[0, -15], [1, -9], [2, -15]]})
    [found] = judged(run, "rank_divergence")
    assert (found.severity, found.rank, found.step) == (Severity.CRITICAL, 1, 11)
    assert found.evidence["signal"] == "SIGKILL"


def test_a_rank_that_its_process_group_aborted_is_told_so(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for one in ranks:
        one.updates(10).close()
    write_launched(run, {"exit_code": 1, "error": None, "children": [[0, -6], [1, -15]]})
    [found] = judged(run, "rank_divergence")
    assert (found.rank, found.evidence["signal"]) == (0, "SIGABRT")
    assert "different collectives" in found.inference


def test_a_rank_that_was_killed_on_another_node_is_named(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for one in ranks:
        one.updates(10).close()
    write_launched(run, {"exit_code": 1, "error": None, "children": [[0, -15], [1, -15]]})
    write_launched(run, {"exit_code": 1, "error": None, "children": [[2, -15], [3, -9]]}, node=1)
    [found] = judged(run, "rank_divergence")
    assert (found.rank, found.evidence["signal"]) == (3, "SIGKILL")


def test_without_a_launcher_the_rank_that_fell_silent_first_is_named(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    ranks[0].updates(13).end(exit_code=1, error="RuntimeError: Connection closed by peer").close()
    ranks[1].updates(12).close()
    [found] = judged(run, "rank_divergence")
    assert found.rank == 1
    assert "Connection closed by peer" in found.summary


def test_a_rank_that_its_launcher_ended_after_another_failed_is_not_the_cause(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    ranks[0].updates(12).close()
    ranks[1].updates(13).end(exit_code=1, error="ValueError: no more disks", at_s=5).close()
    ranks[2].updates(13).end(exit_code=1, error="RuntimeError: Connection closed by peer", at_s=4).close()
    assert judged(run, "rank_divergence") == []
    with open_trace(run) as trace:
        assert run_of_main(trace).error == "rank 1: ValueError: no more disks"


def test_a_rank_that_was_done_before_the_others_is_what_they_lost(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    ranks[0].updates(20).end(exit_code=1, error="RuntimeError: Connection closed by peer", at_s=5).close()
    ranks[1].updates(20).end(at_s=4).close()
    [found] = judged(run, "rank_divergence")
    assert (found.severity, found.rank, found.step) == (Severity.CRITICAL, 1, 20)
    assert "rank 1 was done after 20 updates while others went on; then others failed with" in found.summary
    [crash] = judged(run, "crash")
    assert crash.severity is Severity.WARNING


def test_unequal_numbers_of_updates_are_told(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    ranks[0].updates(12).end().close()
    ranks[1].updates(10).end().close()
    [found] = judged(run, "rank_divergence")
    assert (found.severity, found.rank, found.step) == (Severity.INFO, 1, 10)


def _fed(one: SimulatedRank, digests: list[int]) -> None:
    steps = np.arange(len(digests))
    one.calls(Call.PASS, steps, site=0, pass_id=steps, digest=digests, value=1.0)
    one.calls(Call.PASS_TRAIN, steps, site=0, pass_id=steps)


@pytest.mark.parametrize("alike", [True, False])
def test_ranks_that_train_on_the_same_batches_are_named(tmp_path: Path, alike: bool) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        _fed(one, [1000 + step + (0 if alike else 500 * rank) for step in range(20)])
        one.updates(20).end().close()
    found = judged(run, "duplicate_data")
    assert [one.rank for one in found] == ([1] if alike else [])


def test_two_of_four_ranks_that_share_their_batches_are_named(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        _fed(one, [1000 * min(rank, 2) + step for step in range(20)])
        one.updates(20).end().close()
    [found] = judged(run, "duplicate_data")
    assert (found.rank, found.evidence["ranks_alike"]) == (3, 2)
    assert "same batches as rank 2" in found.summary


def test_ranks_that_share_their_batches_are_named_where_another_has_told_of_none(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 4)
    for rank, one in enumerate(ranks):
        if rank != 3:
            _fed(one, [1000 * min(rank, 1) + step for step in range(20)])
        one.updates(20).end().close()
    [found] = judged(run, "duplicate_data")
    assert "rank 2 trained on the same batches as rank 1" in found.summary


def test_a_launch_that_was_begun_anew_is_judged_by_its_last_time(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for one in ranks:
        one.updates(5).end(exit_code=1, error="ValueError: once").close()
    for rank in range(2):
        SimulatedRank(run, rank, 2, folder=2 + rank, attempt=1).updates(20).end().close()
    with open_trace(run) as trace:
        assert {rank: one.folder for rank, one in processes(trace).items()} == {0: 2, 1: 3}


def test_the_first_rank_speaks_where_the_parent_only_started_it(tmp_path: Path) -> None:
    run, _ = a_run_of_ranks(tmp_path / "a", 0)
    from neuraldbg.trace import TraceWriter

    parent = TraceWriter(run, threaded=False)
    parent.fact("run", backend="pytorch", versions={}, child=False)
    parent.fact("end", exit_code=0, error=None, duration_s=3.0, steps=0)
    parent.close()
    for rank in (1, 0):
        child = SimulatedRank(run, rank, 2, folder=2 - rank)
        child.writer.fact("run", backend="pytorch", versions={}, child=True)
        child.updates(20).end().close()
    with open_trace(run) as trace:
        assert main_rank(trace) == 2
        assert (run_of_main(trace).exit_code, run_of_main(trace).world_size) == (0, 2)


def test_a_failure_is_that_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    ranks[0].updates(9).end(exit_code=1, error="RuntimeError: Connection closed by peer", at_s=5).close()
    ranks[1].updates(8).end(exit_code=1, error="ValueError: no more disks", at_s=4).close()
    with open_trace(run) as trace:
        assert run_of_main(trace).error == "rank 1: ValueError: no more disks"


def test_the_profile_tells_of_ranks_and_not_of_folders(tmp_path: Path) -> None:
    """Of a script that spawns them, the parent has the first folder."""
    run, _ = a_run_of_ranks(tmp_path, 0)
    for rank in (0, 1):
        one = SimulatedRank(run, rank, 2, folder=2 - rank)
        timed(one, np.full(STEPS, 0.04), step=0.1 + 0.1 * rank)
        one.end().close()
    with open_trace(run) as trace:
        told = rank_times(trace)
    assert [(one["rank"], one["step_ms"], one["data_ms"]) for one in told] == [
        (0, pytest.approx(100), None),
        (1, pytest.approx(200), None),
    ]


def test_the_overview_tells_of_every_rank_also_of_one_that_said_nothing(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 3)
    for rank, one in enumerate(ranks[:2]):
        timed(one, np.full(STEPS, 0.04 + 0.02 * rank))
        one.series("loss", np.linspace(1, 0.5, STEPS))
    ranks[1].end()
    for one in ranks:
        one.close()
    with open_trace(run) as trace:
        told = overview(trace)
    assert (told["world_size"], told["slowest"]) == (3, 1)
    assert told["imbalance"] == pytest.approx(0.2)
    assert told["sync_share"] == pytest.approx(0.5)
    assert [one["rank"] for one in told["ranks"]] == [0, 1, 2]
    assert [one["ended"] for one in told["ranks"]] == [False, True, False]
    assert told["ranks"][0]["loss"] == 0.5
    assert told["ranks"][2]["last_step"] is None, "never invented"


def test_what_was_hidden_of_the_communication_is_what_was_told_last(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for hidden_s in (0.1, 0.3):
        ranks[0].writer.fact("overlap", by="waits", communication_s=0.4, hidden_s=hidden_s)
    for one in ranks:
        one.updates(8).close()
    with open_trace(run) as trace:
        told = overview(trace)
    assert told["overlap_share"] == pytest.approx(0.75)
    assert [one["overlap_share"] for one in told["ranks"]] == [pytest.approx(0.75), None]


def test_ranks_are_taken_in_as_they_appear(tmp_path: Path) -> None:
    run, _ = a_run_of_ranks(tmp_path, 0)
    first = SimulatedRank(run, 0, 2).updates(3)
    first.writer.flush()
    with open_trace(run) as trace:
        assert [one["rank"] for one in overview(trace)["ranks"]] == [0]
        SimulatedRank(run, 1, 2).updates(5).close()
        assert trace.refresh()
        assert [one["rank"] for one in overview(trace)["ranks"]] == [0, 1]
    first.close()


def test_collectives_are_added_up_over_ranks(tmp_path: Path) -> None:
    run, ranks = a_run_of_ranks(tmp_path, 2)
    for one in ranks:
        one.writer.fact("site", id=9, path="all_reduce", kind=SiteKind.COLLECTIVE.value, op="world")
        one.calls(Call.COLLECTIVE, np.arange(10), site=9, value=4096.0, aux=3.0, duration_ns=2_000_000)
        one.close()
    with open_trace(run) as trace:
        [told] = communication(trace)
    assert told == {
        "operation": "all_reduce",
        "group": "world",
        "calls": 60,
        "bytes": 81920,
        "seconds": pytest.approx(0.04),
    }


def test_the_profiler_of_several_nodes_is_filled_with_what_ranks_measured(tmp_path: Path) -> None:
    from neural.profiling import DistributedTrainingProfiler

    run, ranks = a_run_of_ranks(tmp_path, 2)
    for rank, one in enumerate(ranks):
        timed(one, np.full(STEPS, 0.04 + 0.04 * rank))
        one.writer.fact("site", id=9, path="all_reduce", kind=SiteKind.COLLECTIVE.value, op="world")
        one.calls(Call.COLLECTIVE, np.arange(10), site=9, value=1e6, aux=1.0, duration_ns=2_000_000)
        one.close()
    told = DistributedTrainingProfiler.of_run(run).get_bottleneck_analysis()
    assert told["load_balance"]["slowest_node"] == "rank_1"
    assert told["load_balance"]["node_times"] == pytest.approx({"rank_0": 0.04 * STEPS, "rank_1": 0.08 * STEPS})
    assert told["communication_overhead"]["by_operation_type"]["all_reduce"]["total_data_mb"] == pytest.approx(10)
    assert told["synchronization_overhead"]["total_sync_time_ms"] == pytest.approx(1e3 * 0.04 * STEPS)
    assert [one["type"] for one in told["bottlenecks"]] == ["load_imbalance", "synchronization_overhead"]
