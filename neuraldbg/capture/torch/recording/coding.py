"""Values of Python as JSON with tensors beside it, and back: nothing but data, no object of a class of the user's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neuraldbg.capture.torch.nested import NamedItems
from neuraldbg.capture.torch.passes import KeptTensor, RngState
from neuraldbg.capture.torch.recording.structure import Layout
from neuraldbg.capture.torch.recording.tensorfile import writable

_PLAIN = frozenset((bool, int, float, str, type(None)))
_HELD = (Tensor, KeptTensor)


class Unwritable(Exception):
    """A value that is not data."""


class Encoder:
    """Collects the tensors of one file; the same tensor is written once."""

    def __init__(self, host: Callable[[Tensor], Tensor] = Tensor.cpu) -> None:
        self.host = host  # brings a tensor to host memory
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[int, dict[str, Any]] = {}
        self._held: list[Tensor] = []  # an address is a name only as long as its owner lives
        self.bytes = 0
        self._layouts: dict[int, tuple[int, Layout]] = {}

    def layout(self, layout: Layout) -> int:
        """Its number among those of the file."""
        return self._layouts.setdefault(id(layout), (len(self._layouts), layout))[0]

    def told_layouts(self) -> list[Any]:
        return [[list(one.names), [list(shape) for shape in one.shapes]] for _, one in self._layouts.values()]

    def tensor(self, tensor: Tensor) -> dict[str, Any]:
        known = self._known.get(id(tensor))
        if known is not None:
            return known
        if tensor.layout == torch.sparse_coo:
            parts = [self.tensor(tensor._indices()), self.tensor(tensor._values())]
            return {"coo": parts, "size": list(tensor.shape), "coalesced": tensor.is_coalesced()}
        if tensor.layout == torch.sparse_csr:
            parts = [self.tensor(each) for each in (tensor.crow_indices(), tensor.col_indices(), tensor.values())]
            return {"csr": parts, "size": list(tensor.shape)}
        if tensor.layout != torch.strided or tensor.dtype not in writable or type(tensor) not in _TENSORS:
            raise Unwritable(f"a tensor of {tensor.dtype} and {tensor.layout}")
        name = str(len(self.tensors))
        host = self.host(tensor.detach())
        self.tensors[name] = host
        self.bytes += host.numel() * host.element_size()
        found: dict[str, Any] = {"tensor": name}
        if tensor.device.type != "cpu":
            found["device"] = str(tensor.device)
        self._known[id(tensor)] = found
        self._held.append(tensor)
        return found

    def value(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, _HELD):
            return self.tensor(value.tensor if isinstance(value, KeptTensor) else value)
        if isinstance(value, NamedItems):
            return {"named": f"{value.kind.__module__}:{value.kind.__qualname__}", "of": self.value(list(value.items))}
        if type(value) is tuple:
            return {"tuple": [self.value(item) for item in value]}
        if type(value) is list:
            return [self.value(item) for item in value]
        if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
            return {"dict": [[key, self.value(item)] for key, item in value.items()]}
        if isinstance(value, torch.dtype | torch.device):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if isinstance(value, torch.Size):
            return {"tuple": list(value)}
        raise Unwritable(f"a {type(value).__module__}.{type(value).__qualname__}")


_TENSORS = (Tensor, torch.nn.Parameter)


class Decoder:
    """Reads what an Encoder wrote, with the tensors of the same file."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        kind: Callable[[str], Any] | None = None,
        layouts: Sequence[Any] = (),
    ) -> None:
        self._tensors = tensors
        self.layouts = [Layout(tuple(names), tuple(tuple(each) for each in shapes)) for names, shapes in layouts]
        self._kind = kind or _class_of

    def tensor(self, told: dict[str, Any]) -> Tensor:
        if "coo" in told:
            indices, values = (self.tensor(part) for part in told["coo"])
            return torch.sparse_coo_tensor(
                indices, values, told["size"], is_coalesced=told["coalesced"], check_invariants=False
            )
        if "csr" in told:
            rows, columns, values = (self.tensor(part) for part in told["csr"])
            return torch.sparse_csr_tensor(rows, columns, values, told["size"], check_invariants=False)
        found = self._tensors[told["tensor"]]
        return found.to(told["device"]) if "device" in told else found

    def value(self, told: Any, leaf: Callable[[Tensor], Any] = lambda tensor: tensor) -> Any:
        if isinstance(told, list):
            return [self.value(item, leaf) for item in told]
        if not isinstance(told, dict):
            return told
        if "tuple" in told:
            return tuple(self.value(item, leaf) for item in told["tuple"])
        if "dict" in told:
            return {key: self.value(item, leaf) for key, item in told["dict"]}
        if "named" in told:
            return NamedItems(self._kind(told["named"]), tuple(self.value(told["of"], leaf)))
        if "dtype" in told:
            return getattr(torch, told["dtype"])
        if "device" in told and "tensor" not in told:
            return torch.device(told["device"])
        return leaf(self.tensor(told))


def _class_of(text: str) -> Any:
    """The class of a named tuple, where its module has been imported already: nothing is imported for a recording."""
    module, _, name = text.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple)):
        raise Unwritable(f"a {name} of {module}, which is not there")
    return found


class Repeats:
    """Lists that are the same as the last time in the file are written once: of a call, whose parameters it changed;
    of an update, the settings of its optimizer."""

    FIELDS = {"call": ("name", "of"), "update": ("optimizer", "groups")}

    def __init__(self) -> None:
        self._last: dict[tuple[Any, Any], Any] = {}

    def shortened(self, told: dict[str, Any]) -> dict[str, Any]:
        place = self._place(told)
        if place is not None and place[1] in told:
            key, name = place
            if key in self._last and self._last[key] == told[name]:
                del told[name]
            else:
                self._last[key] = told[name]
        return told

    def whole(self, told: dict[str, Any]) -> dict[str, Any]:
        place = self._place(told)
        if place is None:
            return told
        key, name = place
        if name in told:
            self._last[key] = told[name]
        elif key in self._last:
            return {**told, name: self._last[key]}
        return told

    def _place(self, told: dict[str, Any]) -> tuple[tuple[Any, Any], str] | None:
        who, name = self.FIELDS.get(told["kind"], (None, None))
        return None if who is None or name is None else ((told["kind"], told[who]), name)


class Generators:
    """States of generators; one that has not moved since the last pass is written once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._last: dict[str, tuple[Any, Any]] = {}

    def told(self, state: RngState) -> dict[str, Any]:
        torch_state = self._same("torch", state.torch_cpu, torch.equal)
        found = {"torch": torch_state, "python": self._same("python", state.python, tuple.__eq__)}
        if state.numpy is not None:
            found["numpy"] = self._same("numpy", state.numpy, _same_numpy)
        if state.cuda is not None:
            found["cuda"] = [self._encoder.tensor(each) for each in state.cuda]
        return found

    def _same(self, name: str, state: Any, equal: Callable[[Any, Any], bool]) -> Any:
        known = self._last.get(name)
        if known is not None and (known[0] is state or equal(known[0], state)):
            return known[1]
        told = {"torch": self._torch, "python": self._python, "numpy": self._numpy}[name](state)
        self._last[name] = (state, told)
        return told

    def _torch(self, state: Tensor) -> Any:
        return self._encoder.tensor(state)

    def _python(self, state: Any) -> Any:
        return [state[0], self._encoder.tensor(torch.tensor(state[1])), state[2]]

    def _numpy(self, state: Any) -> Any:
        if state[0] != "MT19937":
            return None
        return [self._encoder.tensor(torch.tensor(state[1].astype("int64"))), *state[2:]]


def _same_numpy(one: Any, other: Any) -> bool:
    return bool(one[0] == other[0] and one[2:] == other[2:] and (one[1] == other[1]).all())


def generators_from(told: dict[str, Any], decoder: Decoder) -> RngState:
    version, numbers, gauss = told["python"]
    python = (version, tuple(decoder.tensor(numbers).tolist()), gauss)
    numpy = None
    if told.get("numpy") is not None and "numpy" in sys.modules:
        keys, *rest = told["numpy"]
        numpy = ("MT19937", decoder.tensor(keys).numpy().astype("uint32"), *rest)
    cuda = tuple(decoder.tensor(each) for each in told["cuda"]) if "cuda" in told else None
    return RngState(decoder.tensor(told["torch"]).clone(), python, numpy, cuda)
