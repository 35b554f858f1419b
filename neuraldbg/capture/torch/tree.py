"""Who belongs to whom: modules, their parents, the models at the top, and their sites in the trace."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.members import (
    is_usual,
    named_modules_of,
    named_parameters_of,
    own_parameters,
    parameters_of,
)
from neuraldbg.capture.torch.recorder import Recorder
from neuraldbg.capture.torch.stats import device_name, dtype_name
from neuraldbg.records import SiteKind

LATELY = 64  # passes of a model within which a thread that called it may be in its backward
REBUILT_APART = 8  # models of one class and shape that get sites of their own
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}


def unwrap(module: nn.Module) -> tuple[nn.Module, str | None]:
    """The user's own module inside DDP, DataParallel, FSDP or torch.compile, and the class of the outermost wrapper."""
    wrapper = None
    while True:
        attribute = _WRAPPERS.get(type(module).__name__)
        inner = None if attribute is None else getattr(module, attribute, None)
        if not isinstance(inner, nn.Module):
            return module, wrapper
        wrapper = wrapper or type(module).__name__
        module = inner


@dataclass(eq=False)
class Layer:
    """What the hooks need to know of one module."""

    site: int
    model: Model
    path: str
    watched: bool  # statistics of its output are taken
    located: bool = False  # source line, shapes and flops are known
    wanted: bool = True  # matches the user's --layers
    wrapper: bool = False  # DDP and its like: the model inside is the layer
    leaf: bool = False  # has no modules inside


@dataclass(eq=False)
class Model:
    """A module that user code calls and that is nobody's child."""

    site: int
    name: str
    ref: weakref.ref[nn.Module]
    passes: int = 0
    wrapper: str | None = None
    lazy: bool = False  # some parameters get their shape in the first pass
    rebuilt: bool = False
    random: bool | None = None  # whether its passes draw random numbers on the host; None = not seen yet
    mode: tuple[bool, bool] | None = None  # of its last pass: with gradients, in training mode
    threads: dict[int, int] = field(default_factory=dict)  # that have called it -> its last pass by that one
    modules: dict[str, int] = field(default_factory=dict)  # path -> site, also in the next
    parameters: dict[str, int] = field(default_factory=dict)


class ModuleTree:
    """Learns parent links while models are being built, and walks each model once when it is first called."""

    def __init__(self, recorder: Recorder, *, only: nn.Module | None = None) -> None:
        self.recorder = recorder
        self.only = None if only is None else weakref.ref(unwrap(only)[0])
        self.trainers: set[int] = set()  # threads
        self._parent: IdentityTable[weakref.ref[nn.Module]] = IdentityTable()
        self._defined: IdentityTable[str] = IdentityTable()
        self.layers: IdentityTable[Layer] = IdentityTable()
        self.models: IdentityTable[Model] = IdentityTable()
        self._criteria: IdentityTable[bool] = IdentityTable()
        self.parameter_site: IdentityTable[int] = IdentityTable()
        self._leaves: list[weakref.ref[Tensor]] = []
        self.names: dict[str, int] = {}
        self._alike: dict[Any, list[Model]] = {}  # class and shapes -> models, living and gone
        self.layer_filter: Any = None
        self.wanted_layers = 0
        self.unwanted: set[int] = set()  # parameter sites of layers that --layers leaves out
        self.on_change: Callable[[], None] | None = None  # told when what is known of a module may be wrong
        self.on_depth: Callable[[int], None] = lambda _: None  # told how deeply the modules of a model are nested

    # -- links -----------------------------------------------------------------------------------------------------

    def child_registered(self, parent: nn.Module, _: str, child: nn.Module | None) -> None:
        if child is None:
            return
        if child not in self._parent:
            self._parent[child] = weakref.ref(parent)
        if child not in self._defined:
            line = self.recorder.frames.line(2)
            if line is not None:
                self._defined[child] = line
        self._criteria.pop(child)
        self.layers.pop(child)  # a model that is taken into another one is walked again
        if self.on_change is not None:
            self.on_change()

    def top(self, module: nn.Module) -> nn.Module:
        """The outermost module that holds this one, wrappers taken off."""
        seen = 0
        while seen < 100:
            ref = self._parent.get(module)
            parent = None if ref is None else ref()
            if parent is None or all(child is not module for child in parent.children()):
                break
            module, seen = parent, seen + 1
        return unwrap(module)[0]

    # -- models ----------------------------------------------------------------------------------------------------

    def find(self, module: nn.Module) -> Layer | None:
        """The layer of a called module; None for criteria and for models outside this session."""
        layer = self.layers.get(module)
        if layer is not None:
            return layer
        if module in self._criteria:
            return None
        inner, wrapper = unwrap(module)
        root = self.top(inner)
        if not self._is_model(root):
            self._criteria[module] = True
            return None
        self.walk(root, module if wrapper else None)
        return self.layers.get(inner)

    def _is_model(self, root: nn.Module) -> bool:
        if self.only is not None:
            wanted = self.only()
            return wanted is not None and any(module is wanted for module in root.modules())
        if type(root).__name__ == "ONNXTracedModule":
            return False  # what torch.onnx wraps a model in while it exports
        if getattr(root, "_is_replica", False) or type(root).__module__.startswith("torch.nn.utils."):
            return False  # a copy of DataParallel's; the machinery of a parametrization
        return any(True for _ in root.parameters()) or _holds_modules(root)

    def walk(self, root: nn.Module, wrapper: nn.Module | None = None) -> Model:
        """Give every module and parameter of a model its site."""
        named = named_parameters_of(root)
        model = self.models.get(root)
        if model is None:
            model = self._new_model(root, wrapper, named)
        if wrapper is not None and wrapper not in self.layers:
            self.layers[wrapper] = Layer(model.site, model, "", watched=False, wrapper=True)
        deepest, layers, parents = 0, self.layers, self._parent
        for path, module in named_modules_of(root):
            deepest = max(deepest, path.count("."))
            for child in module._modules.values():  # a copied or unpickled model was not seen being put together
                if child is not None and child not in parents:
                    parents[child] = weakref.ref(module)
            if module not in layers:
                layers[module] = self._new_layer(model, _strip(path), module, root)
        self.on_depth(deepest)
        for path, parameter in named:
            if is_lazy(parameter):
                model.lazy = True
            elif parameter not in self.parameter_site:
                site = self.parameter_site[parameter] = self._parameter_of(model, _strip(path), parameter)
                if self.layer_filter is not None:
                    owner = layers.get(attempt(partial(root.get_submodule, path.rpartition(".")[0])))
                    if owner is not None and not owner.wanted:
                        self.unwanted.add(site)
        return model

    def pass_ended(self, model: Model) -> None:
        """Lazy parameters have their shapes after the first pass."""
        root = model.ref()
        if model.lazy and root is not None:
            model.lazy = False
            self.walk(root)
            total, trainable = _sizes(parameters_of(root))
            self.recorder.refine_site(model.site, parameters=total)
            self._write_model(root, model, total, trainable)

    def _rebuilt(self, root: nn.Module, alike: list[Model]) -> Model | None:
        """A loop that builds its model anew each time would fill the trace with sites: after the first few, a new
        model takes the sites of one that is gone and had the same class and shapes."""
        gone = next((model for model in alike if model.ref() is None), None)
        if gone is None or len(alike) < REBUILT_APART:
            return None
        gone.ref, gone.rebuilt, gone.threads = weakref.ref(root), True, {}
        self.models[root] = gone
        self.recorder.fact("model_rebuilt", site=gone.site, name=gone.name)
        return gone

    def _new_model(self, root: nn.Module, wrapper: nn.Module | None, named: list[tuple[str, Tensor]]) -> Model:
        shapes = tuple([part for path, p in named if not is_lazy(p) for part in (path, *p.shape)])
        alike = self._alike.setdefault((type(root), shapes), [])
        again = self._rebuilt(root, alike)
        if again is not None:
            return again
        name = self.unique_name(root, type(root).__name__.lower(), wrapper)
        total, trainable = _sizes([p for _, p in named] if is_usual(root) else parameters_of(root))
        source = self.recorder.frames.line()
        site = self.recorder.add_site(
            name,
            SiteKind.MODEL,
            op=type(root).__name__,
            source=source,
            defined=self._defined.get(root),
            parameters=total,
        )
        wrapped = None if wrapper is None else type(wrapper).__name__
        model = self.models[root] = Model(site, name, weakref.ref(root), wrapper=wrapped)
        alike.append(model)
        self._write_model(root, model, total, trainable)
        return model

    def _write_model(self, root: nn.Module, model: Model, total: int, trainable: int) -> None:
        self.recorder.fact(
            "model",
            **{"class": type(root).__name__},
            site=model.site,
            name=model.name,
            parameters=total,
            trainable=trainable,
            wrapper=model.wrapper,
            source=self.recorder.sites[model.site].source,
        )

    def _new_layer(self, model: Model, path: str, module: nn.Module, root: nn.Module) -> Layer:
        inner = module._modules
        has_children = bool(inner) and any(child is not None for child in inner.values())
        if module is root:
            return Layer(model.site, model, "", watched=True, leaf=not has_children)
        own = _sizes(own_parameters(module))[0]
        site = model.modules.get(path) if model.rebuilt else None
        if site is None:
            site = model.modules[path] = self.recorder.add_site(
                path,
                SiteKind.MODULE,
                op=type(module).__name__,
                model=model.site,
                defined=self._defined.get(module),
                parameters=own,
            )
        watched = not has_children or bool(own)
        wanted = self.layer_filter is None or any(
            self.layer_filter(name, type(module).__name__) for name in (path, f"{model.name}.{path}")
        )
        self.wanted_layers += wanted
        return Layer(site, model, path, watched=watched and wanted, wanted=wanted, leaf=not has_children)

    def _parameter_of(self, model: Model, path: str, parameter: Tensor) -> int:
        site = model.parameters.get(path) if model.rebuilt else None  # a replaced parameter is another one
        if site is None:
            site = model.parameters[path] = self._parameter(model, path, parameter)
        return site

    def _parameter(self, model: Model, path: str, parameter: Tensor) -> int:
        return self.recorder.add_site(
            path,
            SiteKind.PARAMETER,
            op="frozen" if not parameter.requires_grad else None,
            model=model.site,
            shape=tuple(parameter.shape),
            dtype=dtype_name(parameter.dtype),
            device=device_name(parameter.device),
            parameters=parameter.numel(),
        )

    # -- raw tensors -----------------------------------------------------------------------------------------------

    def adopt_leaf(self, leaf: Tensor) -> int:
        """A trainable leaf tensor that belongs to no module gets a site under the name of its variable."""
        site: int | None = self.parameter_site.get(leaf)
        if site is None:
            self._leaves.append(weakref.ref(leaf))
            site = self.parameter_site[leaf] = self.recorder.add_site(
                self.unique_name(leaf, "tensor"),
                SiteKind.PARAMETER,
                shape=tuple(leaf.shape),
                dtype=dtype_name(leaf.dtype),
                device=device_name(leaf.device),
                parameters=leaf.numel(),
            )
        return site

    def unique_name(self, target: object, fallback: str, wrapper: object = None, names: list[str] | None = None) -> str:
        """The user's name for an object (or for what it is wrapped in), made unique in this run; `names` that are
        known already."""
        frames = self.recorder.frames
        candidates: list[str] = names or attempt(lambda: frames.names_of(target)) or []
        if wrapper is not None and not candidates:
            candidates = attempt(lambda: frames.names_of(wrapper)) or []
        for name in candidates:
            if name not in self.names:
                self.names[name] = 1
                return name
        base = candidates[0] if candidates else fallback
        while True:
            self.names[base] = self.names.get(base, 0) + 1
            name = base if self.names[base] == 1 else f"{base}#{self.names[base]}"
            if name == base or name not in self.names:
                return name

    def readable(self) -> Iterator[tuple[nn.Module, Model]]:
        """Models whose gradients this thread may read: a backward of another one writes to those of its model while
        nobody holds the interpreter, and who reads them meanwhile crashes."""
        others = self._others()
        return ((root, model) for root, model in self.models.items() if not (others and _called_by(model, others)))

    def trains(self, thread: int) -> None:
        """It begins to. As long as there was one, nobody counted who called which model when."""
        self.trainers.add(thread)
        if len(self.trainers) > 1:
            for model in self.models.values():
                model.threads = dict.fromkeys(model.threads, model.passes)

    def _others(self) -> set[int]:
        """Threads that train beside this one."""
        if len(self.trainers) < 2:
            return set()
        return (self.trainers & sys._current_frames().keys()) - {threading.get_ident()}

    def alone(self) -> bool:
        """Whether this thread may read all of them."""
        return len(self.trainers) < 2 or len(list(self.readable())) == len(self.models)

    def trainable(self) -> list[tuple[int, Tensor]]:
        """Site and tensor of every trainable parameter of every live model that this thread may read, each once."""
        found: list[tuple[int, Tensor]] = []
        seen: set[int] = set()
        for root, _ in self.readable():
            mine = [p for p in parameters_of(root) if p.requires_grad and id(p) not in seen]
            found += [(site, p) for p in mine if (site := self.parameter_site.get(p)) is not None]
            seen.update(map(id, mine))
        for ref in self._leaves if not self._others() else ():
            leaf = ref()
            if leaf is not None:
                found.append((self.parameter_site[leaf], leaf))
        return found


def _called_by(model: Model, threads: set[int]) -> bool:
    """Lately: who called it once, to see its shapes, and left it to another thread is not minded for good."""
    return any(model.passes - model.threads.get(thread, -LATELY) < LATELY for thread in threads)


def _strip(path: str) -> str:
    """Module paths without the wrappers' names in the middle."""
    if "_orig_mod" not in path and "_wrapped_module" not in path:
        return path
    parts = [
        part
        for part in path.split(".")
        if part not in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    ]
    return ".".join(parts)


def _holds_modules(root: nn.Module) -> bool:
    """Whether a module without registered parameters keeps modules in plain lists or attributes (forward-forward
    style)."""
    for value in vars(root).values():
        if isinstance(value, nn.Module):
            return True
        if isinstance(value, list | tuple) and any(
            isinstance(item, nn.Module) and _has_weights(item) for item in value
        ):
            return True
    return False


def _sizes(parameters: list[Tensor]) -> tuple[int, int]:
    """Elements of all of them, and of those that are trained; lazy ones have none yet."""
    total = trainable = 0
    for parameter in parameters:
        if not is_lazy(parameter):
            size = parameter.numel()
            total += size
            trainable += size if parameter.requires_grad else 0
    return total, trainable


def _has_weights(module: nn.Module) -> bool:
    return any(isinstance(parameter, torch.Tensor) for parameter in module.parameters())
