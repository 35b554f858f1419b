"""Where torch finds our module hooks, and how it gets by without them in passes of which only the ends matter.

A module that is called while any global hook exists takes torch's long way, 2 us and more for each layer. Outside of
passes our hooks must be there: that is how a pass is noticed. In a pass that is not measured only its end is waited
for: the hooks are out of torch's tables until then, and the module that was called carries the one that waits.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import getattr_static, signature
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from neuraldbg.capture.torch.patches import Patches

_CALL = nn.Module._call_impl.__code__
_PRE, _POST = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks
_TABLES = (_PRE, _POST, torch_module._global_backward_pre_hooks, torch_module._global_backward_hooks)
traced_by_dynamo = torch.compiler.is_dynamo_compiling
MOST_SHORT_WAYS = 256  # passes: Python has a version of a class each time it changes, and caches nothing after 1,000
_SHORT_WAY = "_compiled_call_impl"  # what torch calls in place of a module's forward and hooks, if there is something
_NOTHING = id(None)
_dynamo: tuple[Any, dict[int, Any]] | None = None  # where it counts frames, and its backends
_LOOKS_AT_HOOKS = (nn.TransformerEncoderLayer,)  # leaves its fused path when it finds one on itself


class ModuleHooks:
    def __init__(self, before: Callable[..., None], after: Callable[..., None], over: Callable[..., None]) -> None:
        self._before = before
        self._after = after
        self.over = over  # at the end of a pass for which they stepped aside
        self._ids = (-1, -1)
        self.displaced = False  # out of torch's tables, or others in their place
        self.closed = False
        self._short_way: ShortWay | None = None
        self._carrier: weakref.ref[nn.Module] | None = None
        self._waiter = _Waiter(self)

    def install(self, patches: Patches) -> None:
        before = torch_module.register_module_forward_pre_hook(self._before)
        after = torch_module.register_module_forward_hook(self._after, with_kwargs=True, always_call=True)
        self._ids = (before.id, after.id)
        patches.handle(before)
        patches.handle(after)
        patches.undo(torch_module._global_forward_hooks_with_kwargs.pop, after.id, None)  # torch leaves it behind
        patches.undo(self._close)
        patches.replace(torch.export, "export", self.without(torch.export.export))

    def step_aside(self, module: nn.Module) -> bool:
        """Until this module's call ends; whether it was done. Not where somebody else has global hooks, whose place
        among ours would change, nor once anything was compiled: Dynamo's graphs are bound to the hooks that were
        there."""
        if self._carrier is not None:
            self._unhang()
        if self.displaced or len(_PRE) != 1 or len(_POST) != 1 or isinstance(module, _LOOKS_AT_HOOKS) or compiled():
            return False
        first, number = self._ids
        if first not in _PRE or number not in _POST:
            return False
        del _PRE[first], _POST[number]
        self.displaced = True
        self._carrier = weakref.ref(module)
        module._forward_hooks[number] = self._waiter
        module._forward_hooks_with_kwargs[number] = True
        module._forward_hooks_always_called[number] = True
        return True

    def come_back(self) -> None:
        """Also after a forward that was interrupted, from wherever we are called next."""
        if self.displaced:
            self.displaced = False
            if self._short_way is not None:
                self._short_way.close()
            before, after = self._ids
            _PRE[before], _POST[after] = self._before, self._after
            if self._carrier is not None:
                self._unhang()

    def without(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For what fails where modules have hooks: a strict torch.export cannot trace through those of all modules."""
        strict = getattr(signature(original).parameters.get("strict"), "default", True)

        @wraps(original)
        def undisturbed(*args: Any, **kwargs: Any) -> Any:
            first, number = self._ids
            away = kwargs.get("strict", strict) and alone() and first in _PRE and number in _POST
            taken = (_PRE.pop(first), _POST.pop(number)) if away else ()
            try:
                return original(*args, **kwargs)
            finally:
                if taken and not self.closed:
                    _PRE[first], _POST[number] = taken

        return undisturbed

    def let(self, before: Any, after: Any, short_way: ShortWay) -> None:
        """Other hooks take the place of ours until the pass ends."""
        if self._ids[0] in _PRE and self._ids[1] in _POST:
            self.displaced = True
            self._short_way = short_way
            short_way.open()
            _PRE[self._ids[0]], _POST[self._ids[1]] = before, after

    def _unhang(self) -> None:
        carrier, self._carrier = self._carrier, None
        module = None if carrier is None else carrier()
        if module is not None:
            number = self._ids[1]
            module._forward_hooks.pop(number, None)
            module._forward_hooks_with_kwargs.pop(number, None)
            module._forward_hooks_always_called.pop(number, None)

    def _close(self) -> None:
        """Before the handles take our hooks out for good."""
        self.come_back()
        self._unhang()
        self.closed = True

    def raised(self, module: nn.Module, args: Any, output: Any) -> None:
        carrier, self._carrier = self._carrier, None
        self.come_back()
        self._carrier = carrier  # torch is walking through the module's hooks: ours is taken off later
        self._after(module, args, output)


class ShortWay:
    """For modules of a pass that C sees: torch calls what C gives it, which calls the forward, in place of a function
    that walks through hooks. It stands in the class; in a module torch takes it out of what is copied or pickled."""

    def __init__(self, layers: Any) -> None:
        """`layers`: None where there is no kernel."""
        tracing = torch._C._get_tracing_state
        self._left = MOST_SHORT_WAYS
        self._of = None if layers is None else layers.straight(_TABLES, nn.Module._call_impl, tracing)

    def __get__(self, module: nn.Module | None, _: type[nn.Module]) -> Any:
        """In Python: Dynamo traces through it, and finds that nothing is there."""
        return None if module is None or traced_by_dynamo() or self._of is None else self._of(module)

    def open(self) -> None:
        """While a pass runs: Dynamo guards what stands in the class, and would compile anew when it goes."""
        asked_for = vars(nn.Module).get(_SHORT_WAY, self) is None  # by this torch, and nobody was here
        if self._of is not None and asked_for and self._left:
            self._left -= 1
            setattr(nn.Module, _SHORT_WAY, self)

    def close(self) -> None:
        if vars(nn.Module).get(_SHORT_WAY) is self:
            setattr(nn.Module, _SHORT_WAY, None)


def has_compiled_call(module: Any) -> bool:
    """Whether `Module.compile` was called of it, or its class is called in a way of its own."""
    stands = getattr_static(module, _SHORT_WAY, None)
    return stands is not None and type(stands) is not ShortWay


class _Waiter:
    """Hangs on a module while it runs. A copy of the module that is made meanwhile gets one that does nothing."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: ModuleHooks | None = None) -> None:
        self._hooks = hooks

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        hooks, began = self._hooks, perf_counter_ns()
        if hooks is None:
            return
        if sys._getframe(1).f_code is _CALL:  # torch calls it from its exception handler
            hooks.raised(module, args, output)
        else:
            hooks.come_back()
            hooks.over(began, module, args, kwargs, output)

    def __deepcopy__(self, _: Any) -> _Waiter:
        return _Waiter()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Waiter, ())


def alone() -> bool:
    """Whether no hooks but ours are in torch's tables."""
    return len(_PRE) == 1 and len(_POST) == 1


def compiled() -> bool:
    """Whether torch.compile was ever called in this process."""
    frames, backends = _dynamo or _find_dynamo()
    if frames is not None and frames.FRAME_COUNTER > 0:
        return True
    if len(backends) < 2 and _NOTHING in backends:
        return False  # stands for what is never compiled: optimizers ask for that
    return any(one is not None for one in list(backends.values()))


def _find_dynamo() -> tuple[Any, dict[int, Any]]:
    """It is imported when it is first needed. A version of torch that counts otherwise counts as compiled."""
    global _dynamo
    frames, evaluating = (sys.modules.get(f"torch._dynamo.{name}") for name in ("convert_frame", "eval_frame"))
    found = frames, getattr(evaluating, "cached_backends", {})
    if frames is not None and not hasattr(frames, "FRAME_COUNTER"):
        return SimpleNamespace(FRAME_COUNTER=1), found[1]
    if frames is not None and evaluating is not None:
        _dynamo = found
    return found
