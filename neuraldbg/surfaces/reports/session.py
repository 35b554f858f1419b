"""The portable session: one run as one strict JSON object of schema `neuraldbg.session/1`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.analysis.findings import strict
from neuraldbg.errors import UsageError
from neuraldbg.records import TensorStats

if TYPE_CHECKING:
    from neuraldbg.analysis.anomalies import AnomalyReport
    from neuraldbg.analysis.layers import LayerSummary
    from neuraldbg.analysis.summary import RunSummary
    from neuraldbg.trace import Trace

SCHEMA = "neuraldbg.session/1"
MOST_ANOMALIES = 100


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that every exported session keeps."""
    text = (Path(__file__).parent / "session.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def session_object(trace: Trace) -> dict[str, Any]:
    """The run as plain JSON values; NaN and infinities are the strings "nan", "inf", "-inf"."""
    from neuraldbg.analysis.anomalies import survey
    from neuraldbg.analysis.summary import summarise

    return session_of(summarise(trace, anomalies=survey(trace)))


def session_of(summary: RunSummary) -> dict[str, Any]:
    """The same for a run that is already summarised."""
    overhead = summary.overhead
    plain: dict[str, Any] = strict(
        {
            "schema": SCHEMA,
            "run": _run(summary),
            "verdict": {"state": summary.verdict.state, "headline": summary.verdict.headline},
            "findings": [{key: value for key, value in one.items() if key != "id"} for one in summary.findings],
            "layers": [_layer(layer) for layer in summary.layers],
            "series": {name: [list(point) for point in points] for name, points in summary.series.items()},
            "overhead": {
                "ratio": overhead.ratio,
                "sampled_steps": overhead.sampled_steps,
                "dropped_rows": overhead.dropped_rows,
            },
            "anomalies": None if summary.anomalies is None else _anomalies(summary.anomalies),
        }
    )
    return plain


def _run(summary: RunSummary) -> dict[str, Any]:
    run = summary.run
    return {
        "id": run.id,
        "command": list(run.command),
        "backend": run.backend,
        "versions": dict(run.versions),
        "world_size": run.world_size,
        "started": run.started,
        "duration_s": run.duration_s,
        "steps": summary.steps,
        "exit_code": run.exit_code,
        "models": [{"name": m.name, "class": m.type, "parameters": m.parameters} for m in summary.models],
        "optimizers": [{"name": o.name, "class": o.type, "lr": o.lr, "updates": o.updates} for o in summary.optimizers],
        "loss": list(summary.loss_kinds),
        "accumulation": summary.accumulation,
    }


def _anomalies(report: AnomalyReport) -> dict[str, Any]:
    """The strongest, in the order of their steps."""
    from neuraldbg.analysis.anomalies.watch import as_dict

    shown = sorted(report.strongest(MOST_ANOMALIES), key=lambda one: one.step)
    return {
        "sensitivity": report.sensitivity,
        "history": report.history,
        "samples": report.samples,
        "total": report.total,
        "unseen_steps": report.unseen_steps,
        "found": [as_dict(one) for one in shown],
    }


def _layer(layer: LayerSummary) -> dict[str, Any]:
    return {
        "path": layer.path,
        "aliases": list(layer.aliases),
        "type": layer.type,
        "params": layer.params,
        "stats": {kind: stats_object(stats) for kind, stats in layer.stats.items()},
        "first_bad_step": layer.first_bad_step,
        "time_ms": {"forward": layer.forward_ms, "backward": layer.backward_ms},
        "memory_bytes": layer.memory_bytes,
        "flops": layer.flops,
        "grad_l2": layer.grad_l2,
        "update_ratio": layer.update_ratio,
    }


def stats_object(stats: TensorStats) -> dict[str, Any]:
    return {
        "count": stats.count,
        "mean": stats.mean,
        "std": stats.std,
        "min": stats.min,
        "max": stats.max,
        "l2": stats.l2,
        "zero_ratio": stats.zero_ratio,
        "nan_count": stats.nan_count,
        "inf_count": stats.inf_count,
    }


def dump(session: Mapping[str, Any], *, indent: int | None = None) -> str:
    return json.dumps(session, allow_nan=False, ensure_ascii=False, indent=indent)


def export(trace: Trace, path: Path) -> None:
    """Writes the session of a run to `path`: whole or not at all."""
    write_atomic(Path(path), [dump(session_object(trace), indent=1).encode(), b"\n"])


def write_atomic(path: Path, parts: Iterable[bytes]) -> None:
    """Writes a file whole or not at all; a path that cannot be written is a one-line UsageError."""
    partial: str | None = None
    try:
        descriptor, partial = tempfile.mkstemp(dir=path.parent or None, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            os.fchmod(file.fileno(), 0o666 & ~_umask()) if hasattr(os, "fchmod") else None
        os.replace(partial, path)
        partial = None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if partial is not None and os.path.exists(partial):
            os.unlink(partial)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
