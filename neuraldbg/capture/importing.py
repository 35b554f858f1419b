"""Acting the moment a script has imported a framework, without importing it ourselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch(MetaPathFinder):
    """Calls `then()` once, right after the module `name` has been imported for the first time."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then
        self._searching = False

    def install(self) -> None:
        if self.name in sys.modules:
            self.then()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name or self._searching:
            return None
        self._searching = True
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if finder is self or find is None else find(name, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = _Notifying(spec.loader, self)
                    return spec  # type: ignore[no-any-return]
            return None
        finally:
            self._searching = False


class _Notifying(Loader):
    """The real loader, plus a word when it is done. Everything else is asked of the real one."""

    def __init__(self, loader: Any, watch: ImportWatch) -> None:
        self._loader = loader
        self._watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watch.remove()
        self._watch.then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
