"""Two processes that train together: the same results with the debugger and without, and every planted fault named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forkserver import ForkServer
from ranking import PROGRAMS, Launches, free_port, kinds, launch, told
from waiting import eventually

from neuraldbg.analysis.rank_overview import overview
from neuraldbg.analysis.rank_steps import communication
from neuraldbg.analysis.ranks import processes
from neuraldbg.analysis.shards import whole_grad_norm, whole_statistics
from neuraldbg.records import Call, Kind, SiteKind
from neuraldbg.surfaces.stacks import py_spy
from neuraldbg.trace.rundir import read_stacks
from neuraldbg.trace.tables import CALL_CODE


@pytest.fixture(scope="module")
def launches(torch_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return Launches(torch_server, tmp_path_factory.mktemp("launches"))


HEALTHY = [
    ("ddp.py", ""),
    ("ddp.py", "accumulate"),
    ("ddp.py", "by_hand"),
    ("fsdp.py", ""),
    ("fsdp.py", "clip"),
]


@pytest.mark.parametrize(("program", "how"), HEALTHY, ids=lambda each: each or "plain")
def test_a_healthy_training_is_the_same_bit_for_bit_and_has_no_finding(
    torch_server: ForkServer, launches: Launches, tmp_path: Path, program: str, how: str
) -> None:
    """`sent` is the number of collectives that the process group has made: none is added."""
    bare = launch(torch_server, tmp_path, program, how, options=None)
    ended = launches.of(program, how)
    ranks, watched, plain = ended.ranks, ended.results, bare.wait()
    assert [one.code for one in (*plain, *watched)] == [0] * 4, watched[0].stderr
    assert told(watched) == told(plain)
    assert len(told(plain)) == 2
    summary = ranks.summary()
    assert kinds(summary) == [], summary.findings
    assert (summary.run.world_size, summary.steps) == (2, 24)
    assert [one.updates for one in summary.optimizers] == [24], "of one rank, not of all"
    assert summary.verdict.state == "healthy", summary.verdict
    assert not [note for note in summary.notes if "stopped watching" in note.text]


def test_every_rank_has_its_folder_and_says_who_it_is(launches: Launches) -> None:
    ended = launches.of("ddp.py", "")
    first, other = ended.results
    assert "2 of 2 ranks" in first.stderr
    assert other.err == b"", "one report for all"
    with ended.ranks.trace() as trace:
        assert trace.ranks == [0, 1]
        assert {rank: one.backend for rank, one in processes(trace).items()} == {0: "gloo", 1: "gloo"}
        assert trace.run.world_size == 2
        assert {fact["rank"] for fact in trace.facts("end")} == {0, 1}
        assert not [fact for fact in trace.facts("note") if "24 h" in fact["text"]], "nothing could pause it"


@pytest.mark.parametrize(("program", "how"), [("ddp.py", ""), ("fsdp.py", "")])
def test_what_is_hidden_of_the_communication_is_measured(launches: Launches, program: str, how: str) -> None:
    with launches.of(program, how).ranks.trace() as trace:
        told = {fact["by"] for fact in trace.facts("overlap")}
        entries = overview(trace)
    assert told == {"DistributedDataParallel" if program == "ddp.py" else "waits"}
    assert 0 <= entries["overlap_share"] <= 1
    assert all(0 <= one["overlap_share"] <= 1 for one in entries["ranks"])


def test_sharded_parameters_keep_their_names_and_their_parts_add_up(launches: Launches) -> None:
    """The norm that torch finds with the help of all ranks is the one that is put together from what each recorded."""
    ended = launches.of("fsdp.py", "clip")
    [norm] = [float(line.split()[1]) for line in ended.results[0].stdout.splitlines() if line.startswith("norm")]
    with ended.ranks.trace() as trace:
        sites = {site.path: site for site in trace.sites if site.kind is SiteKind.PARAMETER}
        assert {"first.weight", "blocks.0.up.weight", "last.bias"} <= set(sites)
        weight = sites["blocks.0.up.weight"]
        assert weight.shape == (64, 32)
        whole = whole_statistics(trace, weight.id, Kind.GRADIENT)
        assert set(whole["count"].tolist()) == {64 * 32}
        own = trace.history("blocks.0.up.weight", "gradient", "count")
        assert set(own["count"].tolist()) == {32 * 32}, "each rank measures its own half"
        curve = whole_grad_norm(trace)
        assert curve is not None
        assert dict(zip(*map(list, curve), strict=True))[7] == pytest.approx(norm, rel=1e-5)
        sent = {one["operation"]: one for one in communication(trace)}
        assert sent["all_gather_single"]["bytes"] > 0
        assert sent["reduce_scatter_single"]["calls"] > 0


FAULTS = [
    ("ddp.py", "slow_rank", "straggler_rank", 1, (0, 6)),
    ("ddp.py", "slow_loader", "straggler_rank", 1, (0, 6)),
    ("fsdp.py", "slow_rank", "straggler_rank", 1, (0, 6)),
    ("ddp.py", "unwrapped", "gradient_not_synchronised", 1, (0, 0)),
    ("ddp.py", "one_unwrapped", "gradient_not_synchronised", 1, (0, 0)),
    ("ddp.py", "no_sync", "gradient_not_synchronised", 1, (0, 0)),
    ("ddp.py", "one_no_sync", "gradient_not_synchronised", 1, (0, 0)),
    ("ddp.py", "seeds", "weights_out_of_sync_across_ranks", 1, (0, 0)),
    ("ddp.py", "drift", "weights_out_of_sync_across_ranks", 1, (7, 16)),
    ("ddp.py", "same_data", "duplicate_data", 1, (0, 0)),
    ("ddp.py", "nan", "nan_in_input", 1, (9, 9)),
    ("fsdp.py", "nan", "nan_in_input", 1, (9, 9)),
]


@pytest.mark.parametrize(("program", "fault", "kind", "rank", "between"), FAULTS)
def test_a_planted_fault_is_named_with_its_rank_and_step(
    launches: Launches, program: str, fault: str, kind: str, rank: int, between: tuple[int, int]
) -> None:
    summary = launches.of(program, fault, "40" if fault.startswith("slow") else "24").ranks.summary()
    assert kinds(summary)[0] == kind, summary.findings
    found = next(one for one in summary.findings if one["kind"] == kind)
    assert found["rank"] == rank
    assert between[0] <= found["step"] <= between[1]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("unwrapped", "is never called"),
        ("one_unwrapped", "is never called"),
        ("no_sync", "no_sync()"),
        ("one_no_sync", "no_sync()"),
    ],
)
def test_gradients_that_were_not_averaged_are_told_with_the_reason(launches: Launches, fault: str, why: str) -> None:
    summary = launches.of("ddp.py", fault, "24").ranks.summary()
    found = next(one for one in summary.findings if one["kind"] == "gradient_not_synchronised")
    assert (found["severity"], found["evidence"]["ranks"]) == ("critical", "1")
    assert why in found["inference"]
    assert "ddp.py" in found["source"]


def test_what_a_wrapper_and_groups_of_ones_own_send_is_counted_by_group(launches: Launches) -> None:
    with launches.of("ddp.py", "").ranks.trace() as trace:
        [wrapper] = communication(trace)
    with launches.of("ddp.py", "by_hand").ranks.trace() as trace:
        by_hand = {one["group"]: one for one in communication(trace) if one["operation"] == "all_reduce"}
    weights, biases = 8 * 64 + 64 * 64 + 64, 64 + 64 + 1
    assert (wrapper["operation"], wrapper["group"]) == ("all_reduce", "DistributedDataParallel")
    assert (wrapper["calls"], wrapper["bytes"]) == (2 * 24, 2 * 24 * 4 * (weights + biases))
    assert {group: (one["calls"], one["bytes"]) for group, one in by_hand.items()} == {
        "world": (2 * 24 * 3, 2 * 24 * 4 * weights),
        "mine": (2 * 24 * 3, 2 * 24 * 4 * biases),
    }


@pytest.mark.parametrize(("fault", "phase"), [("slow_rank", "forward"), ("slow_loader", "data")])
def test_the_phase_of_a_straggler_is_where_it_loses_the_time(launches: Launches, fault: str, phase: str) -> None:
    summary = launches.of("ddp.py", fault, "40").ranks.summary()
    found = next(one for one in summary.findings if one["kind"] == "straggler_rank")
    assert found["evidence"]["behind_ms"] > 30
    assert found["evidence"]["phase"] == phase


def test_a_killed_rank_is_named_by_the_others_too(torch_server: ForkServer, tmp_path: Path) -> None:
    ranks = launch(torch_server, tmp_path, "ddp.py", "killed")
    first, other = ranks.wait()
    assert other.code == -9
    assert first.code != 0
    found = ranks.summary().findings[0]
    assert (found["kind"], found["rank"], found["step"]) == ("rank_divergence", 1, 11)
    assert "rank 1" in first.stderr


def test_a_rank_that_raises_is_the_one_that_the_verdict_names(torch_server: ForkServer, tmp_path: Path) -> None:
    ranks = launch(torch_server, tmp_path, "ddp.py", "raises")
    assert all(one.code != 0 for one in ranks.wait())
    assert "rank 1: ValueError: no more disks" in ranks.summary().verdict.headline


@pytest.mark.slow
def test_of_four_ranks_the_odd_one_is_named(torch_server: ForkServer, tmp_path: Path) -> None:
    ranks = launch(torch_server, tmp_path, "ddp.py", "drift", world=4)
    results = ranks.wait()
    assert [one.code for one in results] == [0] * 4
    found = ranks.summary().findings[0]
    assert (found["kind"], found["rank"]) == ("weights_out_of_sync_across_ranks", 1)
    assert found["evidence"]["ranks"] == "1"
    assert 7 <= found["step"] <= 16


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ddp.py", "fsdp.py"])
def test_of_four_ranks_the_slow_one_is_named(torch_server: ForkServer, tmp_path: Path, program: str) -> None:
    ranks = launch(torch_server, tmp_path, program, "slow_rank", "40", world=4)
    assert [one.code for one in ranks.wait()] == [0] * 4
    summary = ranks.summary()
    assert kinds(summary) == ["straggler_rank"]
    assert (summary.findings[0]["rank"], summary.findings[0]["evidence"]["phase"]) == (1, "forward")


@pytest.mark.slow
def test_four_sharded_ranks_are_healthy_and_the_same(torch_server: ForkServer, tmp_path: Path) -> None:
    plain = launch(torch_server, tmp_path, "fsdp.py", world=4, options=None).wait()
    ranks = launch(torch_server, tmp_path, "fsdp.py", world=4)
    assert told(ranks.wait()) == told(plain)
    assert len(told(plain)) == 4
    assert kinds(ranks.summary()) == []


HANGS = [
    ("ddp.py", "hang", 2, "rank 1 stands in the script's own code", "rank 0 in backward"),
    ("ddp.py", "hang", 4, "rank 1 stands in the script's own code", "ranks 0, 2, 3 in backward"),
    ("ddp.py", "hang_loader", 4, "rank 1 stands in the data loader", "ranks 0, 2, 3 in backward"),
    ("ddp.py", "stopped", 4, "nothing was heard of rank 1 for", "ranks 0, 2, 3 in backward"),
    ("fsdp.py", "hang", 2, "rank 1 stands in the script's own code", "rank 0 in "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "fault", "world", "who", "others"), HANGS)
def test_a_hang_names_who_stands_where_with_their_stacks(
    torch_server: ForkServer, tmp_path: Path, program: str, fault: str, world: int, who: str, others: str
) -> None:
    """Looked at from outside where py-spy is installed; where it is not, that is said."""
    ranks = launch(torch_server, tmp_path, program, fault, world=world)
    try:
        eventually(lambda: read_stacks(ranks.run_dir) is not None, patience_s=150)
        summary = ranks.summary()
    finally:
        ranks.kill()
    named = next(one for one in summary.findings if one["kind"] == "rank_divergence")
    assert (named["severity"], named["rank"], named["step"]) == ("critical", 1, 8), named
    assert who in named["summary"]
    assert others in named["summary"]
    assert kinds(summary) == ["rank_divergence"]
    if fault == "stopped":
        return
    assert program in named["source"]
    if py_spy() is None:
        assert "pip install py-spy" in named["evidence"]["stacks"]
        assert program in named["evidence"]["stack"]
    else:
        assert "stacks.json" in named["evidence"]["stacks"]
        assert program in named["evidence"]["stack_of_rank_1"]


@pytest.mark.slow
def test_a_rank_that_has_not_come_is_named_and_forgotten_once_it_comes(
    torch_server: ForkServer, tmp_path: Path
) -> None:
    port = free_port()
    ranks = launch(torch_server, tmp_path, "ddp.py", "", only=(0,), port=port)
    try:
        eventually(lambda: read_stacks(ranks.run_dir) is not None, patience_s=150)
        [missing] = [one for one in ranks.summary().findings if one["kind"] == "rank_divergence"]
        late = launch(torch_server, tmp_path, "ddp.py", "", only=(1,), port=port)
        results = [*ranks.wait(), *late.wait()]
    finally:
        ranks.kill()
    assert (missing["severity"], missing["rank"], missing["step"]) == ("critical", 1, 0)
    assert "1 of 2 ranks have come" in missing["summary"]
    assert "rank 0 in init_process_group" in missing["summary"]
    assert "ddp.py:" in missing["source"]
    assert [one.code for one in results] == [0, 0], results[0].stderr
    assert kinds(ranks.summary()) == []


def test_ranks_that_a_script_forks_train_as_ever_and_it_is_said_that_nobody_watches_them(tmp_path: Path) -> None:
    words = ("debug", "--headless", "--out", str(tmp_path / "run"), str(PROGRAMS / "forked.py"), str(free_port()))
    command = [sys.executable, "-m", "neuraldbg", *words]  # by itself: gloo may hang in a fork of a fork with torch
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert (result.returncode, result.stdout) == (0, "[0, 0]\n"), result.stderr
    assert result.stderr.count("was forked and is not watched") == 2


def test_nothing_is_digested_or_counted_in_a_single_process(torch_server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(12):\n"
        "    optimizer.zero_grad(); model(torch.randn(8, 4)).square().mean().backward(); optimizer.step()\n"
    )
    torch_server.neural("debug", "--headless", "--out", str(tmp_path / "run"), str(script), cwd=tmp_path)
    from neuraldbg import open_trace

    with open_trace(tmp_path / "run") as trace:
        calls = trace.table("calls", ["call"])["call"].tolist()
        assert CALL_CODE[Call.STEP] in calls
        assert not {CALL_CODE[Call.COLLECTIVE], CALL_CODE[Call.DIGEST_WEIGHT]} & set(calls)
        assert processes(trace) == {}
        assert "sync_s" not in {site.path for site in trace.sites}
