"""Watching a process whose framework is not imported yet, and the processes it spawns."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.capture.importing import ImportWatch
from neuraldbg.capture.resources import ResourceSampler
from neuraldbg.errors import RunDirectoryError

if TYPE_CHECKING:
    from neuraldbg.trace import TraceWriter


@dataclass(frozen=True, slots=True)
class Plan:
    """What a process needs to know to be watched; travels to spawned children as JSON."""

    run_dir: str
    budget: float | None = 0.01
    layers: tuple[str, ...] = ()
    max_disk_bytes: int = 2_000_000_000
    recording: bool = True
    strict: bool = False
    stop_on_nan: bool = False
    arm_step: int | None = None
    focus: tuple[str, ...] = ()  # groups that the user restricted the run to
    profile: bool = False  # times of layers and phases, no statistics
    memory: bool = False  # of a profiled run: also what layers allocate and keep
    resources: bool = False  # sample what the machine uses: where somebody looks at the run
    record_bytes: int = 0  # that a recording of every step may take; 0: none is made

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        return cls(**{**fields, "layers": tuple(fields["layers"]), "focus": tuple(fields["focus"])})


class Attachment:
    """Waits for the import of torch, then captures. `close` ends both."""

    def __init__(self, plan: Plan, *, child: bool = False, gate: Any = None) -> None:
        self.plan = plan
        self.gate = gate
        self.child = child
        self.capture: Any = None
        self.writer: TraceWriter | None = None
        self.recording: Any = None
        self._pid = os.getpid()
        self.keras: Any = None
        self._of_torch = False
        self._watch = ImportWatch("torch", self._torch_imported)
        self._keras_watch = ImportWatch("keras", self._keras_imported)
        self._spawning: Any = None
        self._sampler: ResourceSampler | None = None

    def start(self) -> None:
        self._watch.install()
        if not self.child:
            self._keras_watch.install()

    def _keras_imported(self) -> None:
        """On PyTorch, Keras layers are modules like any others."""
        keras = sys.modules["keras"]
        if getattr(keras, "backend", None) is None or keras.backend.backend() not in ("tensorflow", "jax"):
            return
        from neuraldbg.capture.keras.attach import KerasCapture

        self.keras = KerasCapture(self._keras_recorder, budget=self.plan.budget, strict=self.plan.strict)

    def _keras_recorder(self) -> Any:
        """A model trains with Keras. Where torch is watched too, both write into one trace."""
        if self.capture is not None:
            recorder = self.capture.core.recorder
        else:
            from neuraldbg.capture.torch.recorder import Recorder

            recorder = Recorder(self._open_writer)
            if self.plan.resources:
                self._sampler = ResourceSampler(recorder.scalar)
                self._sampler.start()
        backend = sys.modules["keras"].backend.backend()
        names = ("keras", "tensorflow" if backend == "tensorflow" else "jax")
        versions = {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}
        recorder.fact("run", backend=backend, versions=versions, child=self.child)
        return recorder

    def _torch_imported(self) -> None:
        if self.keras is not None and self.keras.began:
            return  # the trace is that of a training with Keras, already under way
        self._of_torch = True
        from neuraldbg.capture.torch.attach import Options, TorchCapture
        from neuraldbg.capture.torch.spawn import SpawnPatch

        plan = self.plan
        options = Options(
            budget=plan.budget,
            layers=plan.layers,
            recording=plan.recording,
            strict=plan.strict,
            stop_on_nan=plan.stop_on_nan,
            arm_step=plan.arm_step,
            focus=plan.focus,
            profile=plan.profile,
            memory=plan.memory,
            gate=self.gate,
        )
        self.capture = TorchCapture(self._open_writer, options)
        if plan.record_bytes and not self.child and not plan.profile:
            from neuraldbg.capture.torch.recording.disk import record_to_disk

            self.recording = record_to_disk(self.capture, Path(plan.run_dir), plan.record_bytes)
        self._spawning = SpawnPatch(plan)
        if not self.child:
            _ = self.capture.core.recorder.writer  # before a child can take rank 0
            if plan.resources:
                self._sampler = ResourceSampler(self.capture.core.recorder.scalar)
                self._sampler.start()

    def fact(self, type: str, **fields: Any) -> None:
        """Something to be told with the run that no hook could see."""
        if self.capture is not None:
            self.capture.core.recorder.fact(type, **fields)
        elif self.keras is not None and self.keras.began:
            self.keras.recorder.fact(type, **fields)

    def _open_writer(self) -> TraceWriter | None:
        from neuraldbg.trace import TraceWriter

        if self.child and _is_loader_worker():
            return None
        try:
            self.writer = TraceWriter(self.plan.run_dir, max_disk_bytes=self.plan.max_disk_bytes)
        except RunDirectoryError:
            return None
        if self._of_torch:
            version = str(sys.modules["torch"].__version__)
            self.writer.fact("run", backend="pytorch", versions={"torch": version}, child=self.child)
        if self.gate is not None:
            self.gate.watched_every = self.writer.watched
        if self.child:
            self._close_with_process()
        return self.writer

    def _close_with_process(self) -> None:
        """A spawned child leaves through os._exit: only multiprocessing's own finalizers run there."""
        from multiprocessing.util import Finalize

        Finalize(None, self.close, exitpriority=0)

    def close(self, **end: Any) -> None:
        """Leave the process as it was found. Writes how it ended, also for a script that never met a framework."""
        self._watch.remove()
        self._keras_watch.remove()
        if os.getpid() != self._pid:
            return
        if self._sampler is not None:
            self._sampler.close()
        if self._spawning is not None:
            self._spawning.close()
        if self.keras is not None and self.capture is not None:
            self.keras.finish()
        elif self.keras is not None:
            self.keras.close(**end)
        if self.capture is not None:
            self.capture.close(**end)
        if self.recording is not None:
            self.recording.tape.close()
        if self.writer is None and not self.child:
            self._write_only_end(end)

    def _write_only_end(self, end: dict[str, Any]) -> None:
        from neuraldbg.trace import TraceWriter

        try:
            with TraceWriter(self.plan.run_dir, rank=0, threaded=False) as writer:
                for text in _unwatched():
                    writer.fact("note", level="warning", text=text)
                writer.fact("end", steps=0, backwards=0, dropped={}, **end)
        except RunDirectoryError:
            pass  # the directory vanished during the run; the viewer says what it finds


def _unwatched() -> list[str]:
    """Frameworks that a script used in a way nobody here can look into: said, so that nobody takes it for health."""
    if "jax" in sys.modules and "keras" not in sys.modules:
        return [
            "JAX without Keras is not watched: nothing of this training was seen (PyTorch and Keras' Model.fit are)"
        ]
    if "keras" in sys.modules or "tensorflow" in sys.modules:
        return ["no Model.fit was seen: training loops of your own in TensorFlow or JAX are not watched"]
    return []


def attach_child(plan: str) -> None:
    """Runs in a spawned child before the script is imported there."""
    Attachment(Plan.from_json(plan), child=True).start()


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def package_parent() -> str:
    """The folder that must be importable in a child."""
    return str(Path(__file__).resolve().parents[2])
