"""Other tools around the same step, each as its own pages show it and at every step; in a venv that has them."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

Program = tuple[Any, Any, Any]
Make = Callable[..., Callable[[], None]]


def naive(program: Program, make: Make) -> Callable[[], None]:
    """What people write by hand: hooks that ask for four numbers of every output, gradient and parameter."""
    model, _, _ = program

    def four(tensor: torch.Tensor) -> tuple[float, ...]:
        values = tensor.detach().float()
        return values.mean().item(), values.std().item(), values.min().item(), values.max().item()

    def forward(_: Any, __: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            four(output)
            output.register_hook(lambda gradient: four(gradient) and None)

    for module in model.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(forward)
    step = make(program)

    def watched() -> None:
        step()
        for parameter in model.parameters():
            four(parameter)

    return watched


def detect_anomaly(program: Program, make: Make) -> Callable[[], None]:
    return make(program, lambda: torch.autograd.detect_anomaly(check_nan=True))


def profiler(program: Program, make: Make) -> Callable[[], None]:
    return make(program, lambda: torch.profiler.profile(record_shapes=True, profile_memory=True))


def wandb_watch(program: Program, make: Make) -> Callable[[], None]:
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(prefix="neuraldbg-peer-"), settings={"silent": True})
    run.watch(program[0], log="all", log_freq=1)
    step = make(program)

    def watched() -> None:
        step()
        run.log({})

    return watched


def tensorboard(program: Program, make: Make) -> Callable[[], None]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tempfile.mkdtemp(prefix="neuraldbg-peer-"))
    step, state = make(program), {"step": 0}

    def watched() -> None:
        step()
        for name, parameter in program[0].named_parameters():
            writer.add_histogram(name, parameter, state["step"])
            writer.add_histogram(f"{name}.grad", parameter.grad, state["step"])
        state["step"] += 1

    return watched


def underflow_overflow(program: Program, make: Make) -> Callable[[], None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    kept = DebugUnderflowOverflow(program[0])
    step = make(program)
    return lambda: (step(), kept)[0]


def neuraldbg_1_3_2(program: Program, make: Make) -> Callable[[], None]:
    from neuraldbg import NeuralDbg

    watcher = NeuralDbg(program[0]).__enter__()
    step = make(program)

    def watched() -> None:
        step()
        watcher.step_iteration()

    return watched


def _session(program: Program) -> Any:
    """Attached as people attach it; PYTHONPATH is not ours to set here."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from neuraldbg.debug import debug_session

    return debug_session(program[0], output_dir=tempfile.mkdtemp(prefix="neuraldbg-peer-"), alert_log=False)


def toolkit(program: Program, make: Make) -> Callable[[], None]:
    """A debug session attached to the model, without hooks."""
    session, step = _session(program), make(program)
    return lambda: (step(), session)[0]


def toolkit_hooks(program: Program, make: Make, *, matching: bool = True) -> Callable[[], None]:
    """The same with 100 hooks of a pattern each: one for every layer, which inspects what it hands out at every
    forward, and others that fit none."""
    session = _session(program)
    from neuraldbg.debug import HookAction, HookBuilder, HookTrigger

    modules = program[0].named_modules()
    layers = [name for name, module in modules if name and not any(True for _ in module.children())]
    patterns = [f"^{name}$".replace(".", r"\.") for name in layers if matching][:100]
    patterns += [rf"^absent{number}\.(attention|mlp).*" for number in range(100 - len(patterns))]
    for pattern in patterns:
        hook = HookBuilder(pattern).trigger(HookTrigger.EveryForward).action(HookAction.InspectTensor)
        session.hooks.register_hook(hook.layer_patterns([pattern]).build())
    step = make(program)
    return lambda: (step(), session)[0]


PEERS = {
    "toolkit": toolkit,
    "toolkit_hooks": toolkit_hooks,
    "toolkit_hooks_elsewhere": partial(toolkit_hooks, matching=False),
    "naive": naive,
    "detect_anomaly": detect_anomaly,
    "profiler": profiler,
    "wandb": wandb_watch,
    "tensorboard": tensorboard,
    "underflow_overflow": underflow_overflow,
    "neuraldbg_1_3_2": neuraldbg_1_3_2,
}


def step_of(name: str, program: Program, make: Make) -> Callable[[], None]:
    with contextlib.suppress(AttributeError):
        torch._logging.set_logs(all=40)
    return PEERS[name](program, make)
