"""On a CUDA machine: the Triton pass against the numpy twin, its speed beside `torch.sum`, and what a launch costs.

python benchmarks/kernels_gpu.py [--quick]

Prints one section each: right numbers, no synchronisation, GB/s by type and size, settings, parameters, launches.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import triton
from torch import Tensor

from neuraldbg.capture.kernels import twin
from neuraldbg.capture.kernels.device import KINDS, DevicePass
from neuraldbg.capture.kernels.elements import Element
from neuraldbg.capture.torch.device import DeviceQueue
from neuraldbg.capture.torch.stats import Measured, from_device_row, measure_on_device

DEVICE = torch.device("cuda", 0)
SPEED_TYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "int64")
SIZES = (2**20, 2**24, 2**26, 2**28, 2**30)  # bytes
GPT2 = [(50257, 768), (1024, 768), *([(768,), (768,), (2304, 768), (2304,), (768, 768), (768,), (768,), (768,),
        (3072, 768), (3072,), (768, 3072), (768,)] * 12), (768,), (768,)]  # fmt: skip


def some(element: Element, size: int, *, bad: bool) -> Tensor:
    tensor = (torch.randn(size) * 20 + 3).to(getattr(torch, element.name))
    if bad and tensor.is_floating_point():
        tensor[size // 2] = math.nan
        tensor[-1] = math.nan if element is Element.float8_e4m3fn else -math.inf
    return tensor.to(DEVICE)


def alike(found: Measured, expected: Measured) -> bool:
    counts = (found[0], *found[6:9]) == (expected[0], *expected[6:9])
    if not expected[0] - expected[7] - expected[8]:
        return counts
    top = max(abs(expected[3]), abs(expected[4]))
    close = all(abs(found[i] - expected[i]) <= 1e-6 * top for i in (1, 2))
    return counts and found[3:5] == expected[3:5] and close and math.isclose(found[5], expected[5], rel_tol=1e-6)


def check_numbers(passes: DevicePass) -> None:
    rows, right, total = torch.zeros((64, 9), dtype=torch.float64, device=DEVICE), 0, 0
    for element in sorted(KINDS):
        start = time.perf_counter()
        for size in (1, 2, 7, 9, 8191, 8192, 262_143, 262_144 * 8, 5_000_001):
            for bad in (False, True):
                tensor = some(element, size, bad=bad)
                raw = tensor.cpu().view(torch.uint8).numpy()
                products, words = passes.hash_sums(tensor).tolist()
                passes.finish_into(rows)
                found = from_device_row(rows[0].tolist())
                expected = twin.measure(raw, element)
                same_hash = twin.hash_from_sums(products, words, raw.size) == twin.hash_of(raw)
                total += 1
                right += alike(found, expected) and same_hash
                if not alike(found, expected) or not same_hash:
                    print("  WRONG", element.name, size, bad, "hash", same_hash, found, expected)
        print(f"  {element.name}: {time.perf_counter() - start:.1f} s with compiling")
    print(f"  right: {right} of {total}")


def check_groups(passes: DevicePass) -> None:
    rows = torch.zeros((300, 9), dtype=torch.float64, device=DEVICE)
    before = [torch.randn(shape, device=DEVICE) for shape in GPT2]
    after = [tensor * 1.01 for tensor in before]
    after[5].view(-1)[-1] = math.nan
    right = 0
    for less in ([], before):
        passes.measure_all(after, 0, less=less)
        passes.finish_into(rows)
        found = [from_device_row(row) for row in rows[: len(after)].tolist()]
        for row, new, old in zip(found, after, before, strict=True):
            right += alike(row, twin.row_of((new - old if less else new).cpu().numpy().reshape(-1)))
    print(f"  {2 * len(GPT2)} tensors of GPT-2 in two launches: {right} right")


def check_queue() -> None:
    queue, got = DeviceQueue(), list[object]()
    tensors = [torch.randn(100_003, device=DEVICE, dtype=torch.bfloat16) for _ in range(40)]
    queue.stats(tensors[0], got.append)
    queue.stats_of_all([(tensor, got.append) for tensor in tensors])
    queue.finish_sync()
    torch.cuda.synchronize()
    got.clear()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(60):
            for tensor in tensors:
                queue.stats(tensor, got.append)
            queue.stats_of_all([(tensor, got.append) for tensor in tensors])
            queue.stats_of_all([(tensor, got.append) for tensor in tensors], tensors[::-1])
            queue.scalar(tensors[0][0], got.append)
            queue.poll()
            queue.send()
            tensors[step % 40].mul_(1.001)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    queue.finish_sync()
    print(f"  rows delivered: {len(got)} of {60 * 121}, no synchronisation (it would have raised)")
    spare = sum(len(buffer.free) for buffer in queue._buffers.values())
    print(f"  buffers in the ring at the end: {spare}")


def milliseconds(call: Callable[[], object], rounds: int = 15, inner: int = 4) -> list[float]:
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / inner)
    return times


def gbs(size: int, times: list[float]) -> float:
    return size / statistics.median(times) / 1e6


def passing(passes: DevicePass, tensor: Tensor) -> Callable[[], None]:
    def call() -> None:
        passes.measure(tensor, 0)
        passes._jobs.clear()
        passes._used = 0

    return call


def speed(passes: DevicePass, quick: bool) -> None:
    rows = torch.zeros((64, 9), dtype=torch.float64, device=DEVICE)
    print(f"  {'type':>14} {'MB':>6} {'pass':>8} {'+hash':>8} {'torch.sum':>9} {'torch ops':>9}   GB/s")
    for name in SPEED_TYPES[: 2 if quick else None]:
        dtype = getattr(torch, name)
        for size in SIZES:
            tensor = torch.randint(0, 100, (size // dtype.itemsize,), device=DEVICE, dtype=torch.uint8).to(dtype)
            ours = passing(passes, tensor)
            ours()
            found = [gbs(size, milliseconds(ours)), gbs(size, milliseconds(partial(passes.hash_sums, tensor), 5, 2))]
            passes._jobs.clear()
            summed = tensor if not name.startswith("float8") else tensor.view(torch.int8)
            found.append(gbs(size, milliseconds(partial(torch.sum, summed))))
            if size <= 2**28:
                found.append(gbs(size, milliseconds(partial(measure_on_device, tensor, rows[0]), 5, 1)))
            told = " ".join(f"{value:8.0f}" for value in found)
            print(f"  {name:>14} {size / 2**20:>6.0f} {told}", flush=True)
            del tensor, summed


def settings() -> None:
    tensors = {name: torch.randn(2**29, device=DEVICE).to(getattr(torch, name)) for name in ("float32", "bfloat16")}
    small = {name: tensor[: 2**24] for name, tensor in tensors.items()}
    for block, warps in ((512, 2), (512, 4), (1024, 4), (1024, 8), (2048, 8), (2048, 16), (4096, 16)):
        for piece in (8, 32, 128):
            passes = DevicePass(DEVICE, block=block, piece=block * piece, warps=warps)
            told = []
            for name in tensors:
                for tensor in (tensors[name], small[name]):
                    call = passing(passes, tensor)
                    call()
                    told.append(f"{name} {gbs(tensor.numel() * tensor.element_size(), milliseconds(call, 9)):6.0f}")
            print(f"  block {block:>5} warps {warps:>2} piece {piece:>4} blocks: {'  '.join(told)}", flush=True)


def parameters(passes: DevicePass) -> None:
    rows = torch.zeros((1000, 9), dtype=torch.float64, device=DEVICE)
    now = [torch.randn(shape, device=DEVICE) for shape in GPT2]
    then, gradients = [tensor.clone() for tensor in now], [tensor.clone() for tensor in now]
    size, count = sum(tensor.numel() * 4 for tensor in now), len(now)

    def call() -> None:
        passes.measure_all(gradients, 0)
        passes.measure_all(now, count)
        passes.measure_all(now, 2 * count, less=then)
        passes.finish_into(rows)

    call()
    took = statistics.median(milliseconds(call))
    start = time.perf_counter()
    for _ in range(20):
        call()
    host = (time.perf_counter() - start) / 20 * 1e3
    torch.cuda.synchronize()
    told = f"{took:.2f} ms, {4 * size / took / 1e6:.0f} GB/s; host {host:.2f} ms"
    print(f"  GPT-2, {count} parameters, gradients and moves: {told}")


def launches(passes: DevicePass) -> None:
    rows, tensor = torch.zeros((64, 9), dtype=torch.float64, device=DEVICE), torch.randn(1024, device=DEVICE)
    call = passing(passes, tensor)
    queue = DeviceQueue()
    for name, one in (("pass", call), ("queue", lambda: queue.stats(tensor, lambda _: None)),
                      ("torch ops", lambda: measure_on_device(tensor, rows[0]))):  # fmt: skip
        one()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(500):
            one()
        print(f"  {name}: {(time.perf_counter() - start) / 500 * 1e6:.1f} us of the host per tensor")
        torch.cuda.synchronize()
    queue.finish_sync()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print(f"{torch.cuda.get_device_name(DEVICE)}, torch {torch.__version__}, triton {triton.__version__}")
    before = torch.cuda.memory_allocated()
    passes = DevicePass(DEVICE)
    print(f"device memory of the pass: {(torch.cuda.memory_allocated() - before) / 2**20:.1f} MB")
    checks = DevicePass(DEVICE, block=512, piece=4096)
    sections: list[tuple[str, Callable[[], None]]] = [
        ("right numbers, small pieces", lambda: check_numbers(checks)),
        ("right numbers, as used", lambda: check_numbers(passes)),
        ("several tensors", lambda: check_groups(passes)),
        ("the queue", check_queue),
        ("speed", lambda: speed(passes, quick)),
        ("parameters", lambda: parameters(passes)),
        ("launches", lambda: launches(passes)),
        *([] if quick else [("settings (2 GB or 1 GB, then 64 or 32 MB)", settings)]),
    ]
    for name, section in sections:
        print(name)
        section()


if __name__ == "__main__":
    main()
