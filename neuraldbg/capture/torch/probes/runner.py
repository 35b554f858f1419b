"""Runs the experiments when a script is over: in little time, unheard, and without a trace but their facts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from neuraldbg.capture.experiments import NAMES
from neuraldbg.capture.guard import attempt
from neuraldbg.capture.torch.probes.sample import HELD_AFTER, Samples

if TYPE_CHECKING:
    from neuraldbg.capture.torch.attach import TorchCapture

MOST_SECONDS = 5.0
LEAST_SECONDS = 1.0
SHARE = 0.25  # of the run's own time


class Probes:
    """Collects samples during the run and experiments with them at its end."""

    def __init__(self, capture: TorchCapture) -> None:
        self.core = capture.core
        self.capture = capture
        self.began = time.thread_time()
        self.samples = Samples(self.core, capture.backward.unscaled, capture.ledger)
        self.core.take_part("ending", "experiments", self._ending)

    def _ending(self) -> None:
        core = self.core
        if not core.on or core.budget.share == 0.0 or core.backwards == 0:
            self.samples.close()
            return
        core.on = False  # our own hooks take no notice of what the experiments call
        try:
            self._run()
        except KeyboardInterrupt:
            self._skipped(NAMES, "interrupted")
        finally:
            core.on = True
            self.samples.close()

    def _run(self) -> None:
        why = self._why_not()
        if why is not None:
            self._skipped(NAMES, why)
            return
        from neuraldbg.capture.torch.probes.bench import Allowance, Bench
        from neuraldbg.capture.torch.probes.stage import Stage, borrowed

        own = self.samples.specimen
        assert own is not None
        allowed = min(MOST_SECONDS, max(LEAST_SECONDS, SHARE * (time.thread_time() - self.began)))
        bench = Bench(self.core, self.samples, own, Stage(own), Allowance(allowed, MOST_SECONDS))
        with borrowed(own.roots):
            for name in NAMES:
                if bench.left_s <= 0:
                    self._skipped((name,), "no time was left for it")
                else:
                    self._one(name, bench)

    def _one(self, name: str, bench: Any) -> None:
        from neuraldbg.capture.torch.probes.bench import Skip
        from neuraldbg.capture.torch.probes.graph_nodes import Unknown

        probe: Callable[[Any], dict[str, Any]] = getattr(import_module(f"{__package__}.{name}"), name)
        began = time.monotonic()

        def told() -> dict[str, Any]:
            try:
                return {**probe(bench), "seconds": time.monotonic() - began}
            except (Skip, Unknown) as reason:
                return {"skipped": str(reason)}

        fields = attempt(told) if not self.core.guard.strict else told()
        if fields is None:
            fields = {"skipped": "the model could not be run again outside its script"}
        self.core.recorder.fact("probe", name=name, **fields)

    def _why_not(self) -> str | None:
        from neuraldbg.capture.torch.probes.graph_nodes import Unknown
        from neuraldbg.capture.torch.probes.stage import reason_against

        own = self.samples.specimen
        if self.capture.end.get("signal") or isinstance(sys.exc_info()[1], KeyboardInterrupt):
            return "the script was interrupted"
        if threading.current_thread() is not threading.main_thread():
            return "the run ended outside the main thread"
        if not self.core.leads:
            return "the first rank makes it"
        if self.core.recorder.step < HELD_AFTER:
            return f"fewer than {HELD_AFTER} updates"
        if own is None:
            return f"no training batch could be recorded: {self.samples.why_not}"
        if not own.whole:
            return "the model is gone"
        good = []
        for sample in own.samples:
            try:
                sample.tape.settle_sync()
                good.append(sample)
            except Unknown as error:
                self.samples.why_not = str(error)
        own.samples = good
        if not good:
            return f"no training batch could be recorded: {self.samples.why_not}"
        alone = (self.core.why_not_again(root) for root in own.roots)
        return next((why for why in alone if why is not None), None) or reason_against(own.roots)

    def _skipped(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            self.core.recorder.fact("probe", name=name, skipped=why)
