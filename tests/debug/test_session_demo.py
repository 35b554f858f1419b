"""The example of the toolkit runs, and what it writes opens."""

from __future__ import annotations

from pathlib import Path

from forkserver import ForkServer

from neuraldbg.trace import open_trace

DEMO = Path(__file__).parents[2] / "examples" / "debug_session_demo.py"


def test_the_demo_shows_every_part(torch_server: ForkServer, tmp_path: Path) -> None:
    done = torch_server.python(DEMO, str(tmp_path / "out"), cwd=tmp_path, timeout=200)
    assert done.code == 0, done.stderr
    for part in ("== tensors", "== gradients", "== model", "== profiler", "== a torch model, watched"):
        assert part in done.stdout
    assert "vanishing in block_0, block_1" in done.stdout
    assert "acted 100 times" in done.stdout
    assert "verdict healthy" in done.stdout
    for name, layer in (("by-hand", "block_0"), ("attached", "0")):
        with open_trace(tmp_path / "out" / name) as trace:
            assert trace.run.ended
            assert trace.site(layer).path == layer
    assert list((tmp_path / "out" / "snapshots").glob("4-*.safetensors"))
