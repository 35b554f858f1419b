"""On a CUDA machine: same results bit for bit, no synchronisation, right numbers, and what watching costs.

python benchmarks/gpu/check.py
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.attach import Options, TorchCapture
from neuraldbg.records import RunInfo
from neuraldbg.trace import TraceWriter, create_run, open_trace

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab: int = 4096, width: int = 512, layers: int = 8) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(256, width)
        self.blocks = nn.Sequential(*[Block(width, 8) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits = self.head(self.norm(self.blocks(x)))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(steps: int, *, strict_sync: bool) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """Losses, final parameters and seconds per step; the loop itself never waits for the device."""
    torch.manual_seed(0)
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ids = torch.randint(0, 4096, (steps, 32, 257), device=DEVICE)
    losses, times = [], []
    torch.cuda.synchronize()
    for step in range(steps):
        if strict_sync and step == 5:
            torch.cuda.set_sync_debug_mode("error")
        start = time.perf_counter()
        optimizer.zero_grad()
        for part in ids[step].chunk(4):  # accumulation
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                _, loss = model(part[:, :-1], part[:, 1:])
            (loss / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach() / 4)
        if not strict_sync:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    torch.cuda.set_sync_debug_mode("default")
    return losses, [parameter.detach().clone() for parameter in model.parameters()], times


def watched(steps: int, budget: float | None, *, strict_sync: bool) -> tuple[Any, Path]:
    info = RunInfo(id="gpu", command=(), backend="pytorch", versions={}, started="")
    run = create_run(info, out=Path(tempfile.mkdtemp()) / "run")
    writer = TraceWriter(run)
    capture = TorchCapture(lambda: writer, Options(budget=budget, strict=True))
    try:
        return train(steps, strict_sync=strict_sync), run
    finally:
        capture.close(exit_code=0)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def check_identity_and_sync() -> None:
    torch.use_deterministic_algorithms(True)
    plain = train(40, strict_sync=False)
    again = train(40, strict_sync=False)
    seen, run = watched(40, None, strict_sync=True)
    print("control repeats itself:", same(plain[0], again[0]) and same(plain[1], again[1]))
    print("losses identical:", same(plain[0], seen[0]), " parameters identical:", same(plain[1], seen[1]))
    print("no synchronisation in 35 steps watched in full: True (it would have raised)")
    torch.use_deterministic_algorithms(False)
    check_numbers(run, plain)


def check_numbers(run: Path, plain: tuple[list[Tensor], list[Tensor], list[float]]) -> None:
    with open_trace(run) as trace:
        loss = trace.history("loss", kind="scalar")
        recorded = loss.value.tolist()[3::4]
        expected = [float(value) for value in plain[0]]
        print("losses recorded as they were:", recorded == expected, len(recorded))
        head = trace.history("head", kind="parameter", field="l2")
        layers = {site.path for site in trace.sites}
        print(
            "layers:",
            len(layers),
            " head weight norm:",
            float(head.l2[-1]),
            "expected",
            float(plain[1][-1].double().norm()),
        )
        spans = trace.history("blocks.0.mlp.0", kind="span")
        print("forward and backward of blocks.0.mlp.0 by the device's clock, us:", (spans.duration_ns // 1000)[-4:])
        print("statistics rows:", len(trace.table("stats")["step"]), " dropped:", trace.dropped)


def check_memory() -> None:
    """One large output: what measuring it adds to the peak of device memory."""
    peaks = []
    for watch in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        model = nn.Linear(64, 50_000, bias=False, device=DEVICE, dtype=torch.bfloat16)
        x = torch.randn(8000, 64, device=DEVICE, dtype=torch.bfloat16)
        if watch:
            info = RunInfo(id="memory", command=(), backend="pytorch", versions={}, started="")
            writer = TraceWriter(create_run(info, out=Path(tempfile.mkdtemp()) / "run"))
            capture = TorchCapture(lambda writer=writer: writer, Options(budget=None, strict=True))
        model(x).float().mean().backward()
        if watch:
            capture.close()
        peaks.append(torch.cuda.max_memory_allocated() / 1e9)
        del model, x
    print(f"peak with one 8000 x 50000 bf16 output: {peaks[0]:.2f} GB bare, {peaks[1]:.2f} GB watched")


def check_cost() -> None:
    for budget, name, steps, first in ((0.01, "1 %", 60, 25), (None, "full", 12, 4)):
        pairs = []
        for _ in range(3):
            bare = statistics.median(train(steps, strict_sync=False)[2][first:])
            seen, _ = watched(steps, budget, strict_sync=False)
            pairs.append(statistics.median(seen[2][first:]) / bare)
        ratios = [round(pair, 3) for pair in pairs]
        print(f"step time with budget {name} over bare, medians, 3 pairs:", ratios)


def main() -> None:
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "python", platform.python_version())
    check_identity_and_sync()
    check_memory()
    check_cost()


if __name__ == "__main__":
    main()
