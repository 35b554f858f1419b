"""One root forward, recorded so that it can be run again: RNG, inputs, flags, autocast, buffers, hash of the
outputs."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy.random  # here and not by the first pass, in which it would take 8 ms
import torch
from torch import Tensor, nn

from neuraldbg.capture.torch.dispatch import has_compiled_call
from neuraldbg.capture.torch.generators import LastStates
from neuraldbg.capture.torch.members import modules_of, named_buffers_of
from neuraldbg.capture.torch.nested import leaves, map_leaves, map_tensors, tensors
from neuraldbg.capture.torch.pieces import Ready, copy_of
from neuraldbg.capture.torch.stats import digest_of
from neuraldbg.capture.torch.structures import copies_of
from neuraldbg.capture.torch.tree import Layer, Model
from neuraldbg.records import Phase

UNCHECKED = -1
CASTING = ("cpu", "cuda")  # devices whose operations may be cast
any_casting: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_cpu_state: Callable[[], Tensor] = torch.default_generator.get_state
CLONE_BYTES = 4 * 2**20  # larger inputs are kept by reference, with their version counter


@dataclass(frozen=True, slots=True)
class RngState:
    """The states of every generator a forward may draw from."""

    torch_cpu: Tensor
    python: Any
    numpy: Any
    cuda: tuple[Tensor, ...] | None

    @classmethod
    def take(cls, last: LastStates | None = None) -> RngState:
        """`last`: whoever has taken them before."""
        cuda = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            cuda = tuple(torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count()))
        if last is not None:
            return cls(_cpu_state(), last.python(), last.numpy(), cuda)
        return cls(torch.get_rng_state(), random.getstate(), numpy.random.get_state(), cuda)

    def restore(self) -> None:
        torch.set_rng_state(self.torch_cpu)
        random.setstate(self.python)
        if self.numpy is not None:
            numpy.random.set_state(self.numpy)
        for device, state in enumerate(self.cuda or ()):
            torch.cuda.set_rng_state(state, device)


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """An input: a private copy when it is small, else the tensor itself and the version it had."""

    tensor: Tensor
    version: int | None  # None = our own copy

    @property
    def intact(self) -> bool | None:
        """None where nobody can tell: tensors of inference mode have no version."""
        if self.version == UNCHECKED:
            return None
        return self.version is None or self.tensor._version == self.version


class Means:
    """What makes it quicker to record pass after pass: memory for their inputs, and states that have not moved."""

    def __init__(self) -> None:
        self.memory, self.states = Ready(), LastStates()

    def keep(self, tensor: Tensor) -> KeptTensor:
        return _keep(tensor, self.memory.copy_of)


@dataclass(frozen=True, slots=True)
class Autocast:
    device_type: str
    enabled: bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class PassRecord:
    """Everything needed to run a pass again, given the parameters it ran with."""

    rng: RngState
    args: Any  # nested tuple/list/dict with KeptTensor leaves
    kwargs: Any
    training: tuple[bool, ...]  # of root.modules(), in order
    buffers: Mapping[str, Tensor]
    autocast: tuple[Autocast, ...]
    grad_enabled: bool
    backwards_before: int

    @classmethod
    def take(
        cls,
        root: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        backwards: int,
        around: tuple[tuple[bool, ...] | None, Mapping[str, Tensor] | None] = (None, None),
        means: Means | None = None,
    ) -> PassRecord:
        """`around`: training flags and copies of buffers, where somebody has taken them."""
        training, buffers = around
        if buffers is None:
            buffers = copies_of(dict(named_buffers_of(root)))
        keep = _keep if means is None else means.keep
        alone = len(args) == 1 and type(args[0]) is Tensor  # mostly
        return cls(
            rng=RngState.take(None if means is None else means.states),
            args=(keep(args[0]),) if alone else map_tensors(args, keep),
            kwargs=map_tensors(kwargs, keep) if kwargs else {},
            training=tuple([module.training for module in modules_of(root)]) if training is None else training,
            buffers=buffers,
            autocast=casting() if any_casting() else (),
            grad_enabled=torch.is_grad_enabled(),
            backwards_before=backwards,
        )

    @property
    def intact(self) -> bool:
        """False when an input that was kept by reference has been written to since, or may have been."""
        return all(leaf.intact for leaf in leaves((self.args, self.kwargs), KeptTensor))

    def copy_of(self, tensor: Tensor, args: Any) -> Tensor | None:
        """Of one of the arguments it was made of: the private copy. Nobody writes to it."""
        for given, kept in zip(args, self.args, strict=False):
            if given is tensor:
                return kept.tensor if kept.version is None else None
        return None

    def rerun(self, entry: Callable[..., Any], root: nn.Module) -> Any:
        """Run the pass again and return its outputs. Parameters are the live ones; everything else the pass touches
        (RNG, buffers, training flags) is as recorded during the run and as before afterwards."""
        with _as_recorded(self, root):
            args = map_leaves(self.args, KeptTensor, _give)
            kwargs = map_leaves(self.kwargs, KeptTensor, _give)
            return entry(*args, **kwargs)


class LightRecord(tuple[Tensor | None, tuple[Any, Any], tuple[Autocast, ...]]):
    """What is kept of a pass on every step, for a search that begins moments later: state of torch's generator, weak
    references to its inputs, autocast. Holds nothing alive. A tuple, since a constructor is called through C."""

    __slots__ = ()

    @property
    def inputs(self) -> tuple[Any, Any]:
        return self[1]

    def firm(self, root: nn.Module) -> PassRecord | None:
        """A record that can be run again, with flags and buffers as they are now; None when an input is gone or has
        been written to."""
        if not all(leaf.intact for leaf in leaves(self.inputs, WeakValue)):
            return None
        args, kwargs = map_leaves(self.inputs, WeakValue, lambda leaf: leaf.ref())
        now = PassRecord.take(root, args, kwargs, backwards=0)
        drawn_from, _, autocast = self
        rng = now.rng if drawn_from is None else replace(now.rng, torch_cpu=drawn_from)
        return replace(now, rng=rng, autocast=autocast, grad_enabled=True)


def light_record(args: tuple[Any, ...], kwargs: dict[str, Any], *, random: bool) -> LightRecord:
    alone = len(args) == 1 and type(args[0]) is Tensor and not args[0].is_inference()  # mostly
    given = (WeakValue((weakref.ref(args[0]), args[0]._version)),) if alone else _weakly(args)
    rng = torch.get_rng_state() if random else None
    return LightRecord((rng, (given, _weakly(kwargs) if kwargs else {}), casting() if any_casting() else ()))


class WeakValue(tuple[Any, int | None]):
    """A weak reference and, of a tensor, its version. A tuple is made without a frame."""

    __slots__ = ()

    @property
    def ref(self) -> Any:
        return self[0]

    @property
    def intact(self) -> bool:
        value, version = self[0](), self[1]
        return value is not None and (version is None or value._version == version)


class Pass:
    """A root forward under way or awaiting its backward. One is made at every step: what is mostly so stands in the
    class."""

    sampled = False
    looked = False  # evidence is gathered of it as well
    followed = True  # its layers could be stopped at from the first on
    unseen = False  # nobody looks into it: our hooks are away until it ends
    by_c = False  # its layers are seen by C
    own_before = 0  # our own time when it began
    updates_seen = 0
    trained = False
    record: PassRecord | None = None
    record_bytes = 0
    output_digest = 0  # of a recorded pass: what running it again must give
    entry_module: Any = None
    light: LightRecord | None = None
    arrived: dict[int, Tensor] | None = None  # gradients of its outputs, until the update
    entered: tuple[Tensor, ...] = ()  # tensors among its arguments, only while `pass_begun` is told
    around: Any = None  # Surroundings, likewise, where somebody has looked

    id: int
    entry: Layer
    model: Model
    step: int
    grad: bool
    start_ns: int
    source: int  # line

    @property
    def compiled(self) -> bool:
        """As a whole: nobody sees its layers."""
        return self.model.wrapper == "OptimizedModule" or has_compiled_call(self.model.ref())

    @property
    def phase(self) -> Phase:
        return Phase.FORWARD if self.grad else Phase.EVAL


def pass_begun(number: int, entry: Layer, step: int, grad: bool, start_ns: int, source: int) -> Pass:
    """A constructor would be called through C, which takes longer than all it does."""
    one = object.__new__(Pass)
    one.id, one.entry, one.model = number, entry, entry.model
    one.step, one.grad, one.start_ns, one.source = step, grad, start_ns, source
    return one


def output_digest(outputs: Any) -> int:
    """One hash over all tensors of a pass's outputs, in order; 0 when one of them cannot be read here."""
    return digest_of_all(tensors(outputs))


def digest_of_all(found: Iterable[Tensor]) -> int:
    total = 0
    for position, tensor in enumerate(found):
        one = digest_of(tensor)
        if one == 0:
            return 0
        total = (total * 1099511628211 + one + position) & ((1 << 64) - 1)
    return total


@contextmanager
def _as_recorded(record: PassRecord, root: nn.Module) -> Iterator[None]:
    modules = list(root.modules())
    before_rng, before_training = RngState.take(), [module.training for module in modules]
    before_buffers = [(module, dict(module._buffers)) for module in modules]
    try:
        record.rng.restore()
        _set_training(modules, record.training)
        _lend_buffers(root, record.buffers)
        with torch.set_grad_enabled(record.grad_enabled), autocast_as(record.autocast):
            yield
    finally:
        for module, buffers in before_buffers:
            module._buffers.update(buffers)
        _set_training(modules, before_training)
        before_rng.restore()


def _set_training(modules: list[nn.Module], flags: Any) -> None:
    for module, flag in zip(modules, flags, strict=True):
        module.training = flag


def _lend_buffers(root: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copies stand in for the live buffers: a graph that still holds those must not see them written to."""
    for name, value in values.items():
        owner, _, leaf = name.rpartition(".")
        root.get_submodule(owner)._buffers[leaf] = value.clone()


@contextmanager
def autocast_as(states: tuple[Autocast, ...]) -> Iterator[None]:
    """What is not among them is switched off where it is on: whoever runs something again may be inside of it."""
    with ExitStack() as around:
        known = {one.device_type: one for one in states}
        for kind in CASTING:
            one = known.get(kind)
            if one is not None and one.enabled:
                around.enter_context(torch.autocast(kind, dtype=one.dtype))
            elif torch.is_autocast_enabled(kind):
                around.enter_context(torch.autocast(kind, enabled=False))
        yield


def casting() -> tuple[Autocast, ...]:
    """Autocast as it is here and now: of what is switched on."""
    return tuple(_autocast(kind) for kind in CASTING if torch.is_autocast_enabled(kind))


def _autocast(device_type: str) -> Autocast:
    return Autocast(device_type, torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type))


def _keep(tensor: Tensor, copy: Callable[[Tensor], Tensor] = copy_of) -> KeptTensor:
    small = tensor.layout == torch.strided and tensor.numel() * tensor.element_size() <= CLONE_BYTES
    if not small or tensor.requires_grad:
        return KeptTensor(tensor.detach() if tensor.requires_grad else tensor, _version(tensor))
    return KeptTensor(copy(tensor), None)


def _weakly(value: Any) -> Any:
    """Nested arguments with every object that allows it held weakly."""
    if isinstance(value, Tensor):
        return WeakValue((weakref.ref(value), None if value.is_inference() else value._version))
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_weakly(item) for item in value])
    if kind is dict:
        return {key: _weakly(item) for key, item in value.items()}
    if value is None or kind in (int, float, bool, str):
        return value
    try:
        return WeakValue((weakref.ref(value), None))
    except TypeError:
        return value


def _version(tensor: Tensor) -> int:
    return UNCHECKED if tensor.is_inference() else tensor._version


def _give(kept: KeptTensor) -> Tensor:
    return kept.tensor.clone() if kept.version is None else kept.tensor
