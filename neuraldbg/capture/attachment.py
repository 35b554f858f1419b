"""Watching a process whose framework is not imported yet, and the processes it spawns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraldbg.capture.importing import ImportWatch
from neuraldbg.capture.place import Place
from neuraldbg.capture.resources import ResourceSampler
from neuraldbg.errors import RunDirectoryError

if TYPE_CHECKING:
    from neuraldbg.trace import TraceWriter


NO_RECORDING = "--record full is for one process: of several ranks nothing is kept for replay"


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
    patient: bool = False  # a pause is possible: process groups are made to outlast one
    record_share: float | None = None  # of the time that it may take, with steps left out; None: every step is kept
    deterministic: bool = False  # repeatable kernels
    pausable: str | None = None  # JSON of how spawned ranks can be held; None: they cannot

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        return cls(**{**fields, "layers": tuple(fields["layers"]), "focus": tuple(fields["focus"])})


class Attachment:
    """Waits for the import of torch, then captures. `close` ends both."""

    def __init__(
        self,
        plan: Plan,
        *,
        child: bool = False,
        gate: Any = None,
        place: Place | None = None,
        joined: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self._on_join = joined  # told the rank, once the process is one of a group of several
        self.place = place
        self.gate = gate
        self.child = child
        self.capture: Any = None
        self.writer: TraceWriter | None = None
        self.recording: Any = None
        self._repeatable: Any = None
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

        plan = self.plan
        self.keras = KerasCapture(
            self._keras_recorder,
            budget=plan.budget,
            strict=plan.strict,
            gate=self.gate,
            stop_on_nan=plan.stop_on_nan,
            layers=tuple(plan.layers),
        )

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
            patient=plan.patient,
            joined=self._joined,
        )
        if plan.deterministic:
            from neuraldbg.capture.torch.repeatable import Repeatable

            self._repeatable = Repeatable()
        self.capture = TorchCapture(self._open_writer, options)
        if self._repeatable is not None:
            self.capture.core.take_part("pass_begun", "repeatable kernels", self._repeatable.before_pass)
        if plan.record_bytes and not self.child and not plan.profile:
            from neuraldbg.capture.torch.recording.disk import record_to_disk

            self.recording = record_to_disk(self.capture, Path(plan.run_dir), plan.record_bytes, plan.record_share)
        self._spawning = SpawnPatch(plan)
        if not self.child:
            _ = self.capture.core.recorder.writer  # before a child can take rank 0
            if plan.resources:
                self._sampler = ResourceSampler(self.capture.core.recorder.scalar)
                self._sampler.start()

    def _joined(self, rank: int) -> None:
        asked = self.plan.record_bytes and self.plan.record_share is None
        if self.child and asked and rank == 0 and self.writer is not None:
            self.writer.fact("note", level="warning", text=NO_RECORDING)
        if self._on_join is not None:
            self._on_join(rank)

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
            self.writer = TraceWriter(self.plan.run_dir, rank=self._number(), max_disk_bytes=self.plan.max_disk_bytes)
        except RunDirectoryError:
            return None
        if self.place is not None:
            self.writer.fact("process", **self.place.told())
        if self._of_torch:
            version = str(sys.modules["torch"].__version__)
            self.writer.fact("run", backend="pytorch", versions={"torch": version}, child=self.child)
        if self.gate is not None:
            self.gate.watched_every = self.writer.watched
        if self.child:
            self._close_with_process()
        return self.writer

    def _number(self) -> int | None:
        """The folder of this process. A launcher that starts everybody anew gets folders of their own for them."""
        place = self.place
        return None if place is None else place.rank + place.world_size * place.attempt

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
            self.keras.finish(**end)
        elif self.keras is not None:
            self.keras.close(**end)
        if self.capture is not None:
            self.capture.close(**end)
        if self.recording is not None:
            self.recording.tape.close()
        if self._repeatable is not None:
            self._repeatable.close()
        if self.writer is None and not self.child:
            self._write_only_end(end)

    def _write_only_end(self, end: dict[str, Any]) -> None:
        from neuraldbg.trace import TraceWriter

        try:
            with TraceWriter(self.plan.run_dir, rank=self._number() or 0, threaded=False) as writer:
                if self.place is not None:
                    writer.fact("process", **self.place.told())
                for text in _unwatched(self.keras):
                    writer.fact("note", level="warning", text=text)
                writer.fact("end", steps=0, backwards=0, dropped={}, **end)
        except RunDirectoryError:
            pass  # the directory vanished during the run; the viewer says what it finds


def _unwatched(keras: Any) -> list[str]:
    """Frameworks that a script used in a way nobody here can look into: said, so that nobody takes it for health."""
    if "jax" in sys.modules and "keras" not in sys.modules:
        return [
            "JAX without Keras is not watched: nothing of this training was seen (PyTorch and Keras' Model.fit are)"
        ]
    if "keras" in sys.modules or "tensorflow" in sys.modules:
        met = None if keras is None else keras.unwatched()
        known = "of TensorFlow, Keras' Model.fit and loops over tf.GradientTape are watched; of JAX, Model.fit"
        return [met or f"no training was seen: {known}"]
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
