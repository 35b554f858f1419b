"""Four workers in processes of their own, one of which has more to do: whose work is larger, and what waiting costs."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor

from neural.profiling import DistributedTrainingProfiler, LayerProfiler

WORK_S = {"node_0": 0.02, "node_1": 0.02, "node_2": 0.02, "node_3": 0.05}


def train(seconds: float) -> dict[str, object]:
    profiler = LayerProfiler()
    for _ in range(3):
        profiler.start_layer("step")
        time.sleep(seconds)  # a worker's share of one step
        profiler.end_layer("step")
    return profiler.export_to_dict()


def main() -> None:
    dist_profiler = DistributedTrainingProfiler()
    with ProcessPoolExecutor(len(WORK_S)) as pool:
        sent = time.perf_counter()
        for node_id, profile_data in zip(WORK_S, pool.map(train, WORK_S.values()), strict=True):
            dist_profiler.add_node_profile(node_id, profile_data)
            waited_ms = (time.perf_counter() - sent) * 1e3
            dist_profiler.record_synchronization(nodes=list(WORK_S), type="barrier", duration=waited_ms / len(WORK_S))
    payload = bytes(2**20)
    start = time.perf_counter()
    received = bytes(payload)
    took_ms = (time.perf_counter() - start) * 1e3
    dist_profiler.record_communication(
        source_node="node_0",
        dest_node="node_1",
        data_size_mb=len(received) / 2**20,
        duration_ms=took_ms,
        operation_type="gradient_transfer",
    )
    analysis = dist_profiler.get_bottleneck_analysis()
    print(f"imbalance: {analysis['load_balance']['imbalance_factor']:.2f}")
    for one in analysis["bottlenecks"]:
        print(f"{one['severity']}: {one['type']} ({one['details']}): {one['recommendation']}")


if __name__ == "__main__":
    main()
