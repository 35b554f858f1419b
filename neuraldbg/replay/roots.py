"""The outermost calls of models, as changes need them: once at the first pass of each, and at every pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from neuraldbg.capture.torch.patches import Patches


class Passes:
    """Tells of the passes of models (modules with parameters that no other module has called)."""

    def __init__(self, torch: Any, patches: Patches) -> None:
        self._here = threading.local()
        self._known: WeakSet[Any] = WeakSet()
        self.first: list[Callable[[Any], None]] = []  # (model): before its first pass
        self.entering: list[Callable[[Any, Any], Any]] = []  # (model, args) -> args or None
        self.leaving: list[Callable[[Any, Any], None]] = []  # (model, output)
        hooks = torch.nn.modules.module
        patches.handle(hooks.register_module_forward_pre_hook(self._before))
        patches.handle(hooks.register_module_forward_hook(self._after, always_call=True))

    @property
    def depth(self) -> int:
        return getattr(self._here, "depth", 0)

    def _before(self, module: Any, args: Any) -> Any:
        self._here.depth = self.depth + 1
        if self.depth > 1 or next(module.parameters(), None) is None:
            return None
        if module not in self._known:
            self._known.add(module)
            for each in self.first:
                each(module)
        changed = None
        for edit in self.entering:
            made = edit(module, args if changed is None else changed)
            changed = made if made is not None else changed
        return changed

    def _after(self, module: Any, _: Any, output: Any) -> None:
        if self.depth == 1 and next(module.parameters(), None) is not None:
            for each in self.leaving:
                each(module, output)
        self._here.depth = max(self.depth - 1, 0)
