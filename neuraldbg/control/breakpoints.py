"""The breakpoints of one run: what stops where, and how often it did. Safe to change from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from neuraldbg.control.conditions import Condition, parse_condition
from neuraldbg.errors import UnknownBreakpoint, UsageError, nearest
from neuraldbg.records import Breakpoint, Phase

ANYWHERE = ("step",)
FORWARD_KEYS = (
    "execution_time",  # seconds
    "memory",  # MB
    "flops",
    "mean_activation",
    "std_activation",
    "min_activation",
    "max_activation",
    "norm_activation",
    "zero_ratio",
    "dead_ratio",
    "nan_count",
    "inf_count",
)
BACKWARD_KEYS = ("grad_norm", "grad_mean", "grad_std", "grad_min", "grad_max", "grad_nan_count", "grad_inf_count")
STEP_KEYS = ("loss", "lr")
LAYER_KEYS = (*FORWARD_KEYS, *BACKWARD_KEYS)
ORDER = (Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
KEYS = (*ANYWHERE, *FORWARD_KEYS, *BACKWARD_KEYS, *STEP_KEYS)
PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "step": Phase.UPDATE, "update": Phase.UPDATE}
MOST = 1000


@dataclass(eq=False)
class Watched:
    """A breakpoint and what became of it."""

    id: int
    spec: Breakpoint
    condition: Condition | None
    hit_count: int = 0  # how often it was reached and its condition held
    trigger_count: int = 0  # how often training really stopped there
    last_hit_step: int | None = None
    failed: str | None = None  # what its condition raised; it is off since
    pending: bool = True  # no model has run yet that has a layer it means
    layers: tuple[str, ...] = ()  # the layers it means, once they are known

    def told(self) -> str:
        """In one line, as the prompt lists it."""
        spec = self.spec
        state = "on " if spec.enabled else "off"
        phase = "step" if spec.phase is Phase.UPDATE else spec.phase.value
        when = f" if {spec.condition}" if spec.condition else ""
        note = f"  [{self.failed}]" if self.failed else "  [no such layer yet]" if self.pending else ""
        return f"{self.id:>3} {state} {spec.layer} {phase}{when}  hits {self.hit_count}{note}"

    def as_dict(self) -> dict[str, Any]:
        phase = "step" if self.spec.phase is Phase.UPDATE else self.spec.phase.value
        return {
            "id": self.id,
            **asdict(self.spec),
            "phase": phase,
            "layer_name": self.spec.layer,
            "hit_count": self.hit_count,
            "trigger_count": self.trigger_count,
            "last_hit_step": self.last_hit_step,
            "failed": self.failed,
            "pending": self.pending,
            "layers": list(self.layers),
        }


@dataclass(repr=False)
class Breakpoints:
    """The set of one run. `changed` is called after every change of it."""

    resolve: Callable[[str], dict[int, str]] | None = None  # the sites and layers a pattern means; None: not known yet
    changed: Callable[[], None] = lambda: None
    _all: dict[int, Watched] = field(default_factory=dict)
    _next: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _by_site: dict[int, tuple[Watched, ...]] = field(default_factory=dict)

    def add(  # noqa: PLR0913  all that a breakpoint has
        self,
        layer: str,
        condition: str | None = None,
        *,
        phase: str | None = None,
        enabled: bool = True,
        group: str | None = None,
        once: bool = False,
        pending: bool = False,
    ) -> Watched:
        """The same layer, phase and condition again is the same breakpoint. Raises UsageError and its kinds; `pending`:
        not for a layer that does not exist, the breakpoint waits for it."""
        name = _layer_name(layer)
        parsed = None if condition is None or not condition.strip() else parse_condition(condition, KEYS)
        where = _phase(phase, parsed)
        if not pending:
            self._must_exist(name)
        with self._lock:
            text = None if parsed is None else parsed.text
            spec = Breakpoint(name, text, where, enabled, group, once)
            for one in self._all.values():
                if (one.spec.layer, one.spec.condition, one.spec.phase) == (name, text, where):
                    one.spec, one.failed = spec, None
                    break
            else:
                if len(self._all) >= MOST:
                    raise UsageError(f"there are {MOST} breakpoints already: remove some first")
                one = Watched(self._next, spec, parsed)
                self._next += 1
                self._all[one.id] = one
        self._touched()
        return one

    def remove(self, which: int | str) -> list[Watched]:
        """By id, or all of one layer name."""
        with self._lock:
            found = self._found(which)
            for one in found:
                del self._all[one.id]
        self._touched()
        return found

    def change(self, which: int | str, **fields: Any) -> Watched:
        """Other values for `enabled`, `condition`, `group`, `once` or `phase`; counts stay."""
        unknown = set(fields) - {"enabled", "condition", "group", "once", "phase"}
        if unknown:
            raise UsageError(f"a breakpoint has no {sorted(unknown)[0]!r}: enabled, condition, group, once, phase")
        with self._lock:
            one = self._found(which)[0]
            condition, phase = one.condition, fields.pop("phase", None)
            if "condition" in fields:
                text = fields.pop("condition")
                condition = None if text is None or not str(text).strip() else parse_condition(text, KEYS)
            keep = "step" if one.spec.phase is Phase.UPDATE else one.spec.phase.value
            where = _phase(phase or (keep if condition is one.condition else None), condition)
            text = None if condition is None else condition.text
            one.spec = replace(one.spec, condition=text, phase=where, **fields)
            one.condition, one.failed = condition, None
        self._touched()
        return one

    def set_group(self, group: str, *, enabled: bool) -> list[Watched]:
        with self._lock:
            found = [one for one in self._all.values() if one.spec.group == group]
            if not found:
                groups = sorted({one.spec.group for one in self._all.values() if one.spec.group})
                near = nearest(group, groups)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {groups or 'none'}"
                raise UnknownBreakpoint(f"no group {group!r} of breakpoints; {hint}", near)
            for one in found:
                one.spec = replace(one.spec, enabled=enabled)
        self._touched()
        return found

    def clear(self) -> None:
        with self._lock:
            self._all.clear()
        self._touched()

    def fail(self, one: Watched, why: str) -> None:
        """A condition that raised is off from now on."""
        one.failed, one.spec = why, replace(one.spec, enabled=False)
        self._touched()

    def all(self) -> list[Watched]:
        with self._lock:
            return list(self._all.values())

    @property
    def any_enabled(self) -> bool:
        return any(one.spec.enabled for one in self._all.values())

    def __iter__(self) -> Iterator[Watched]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return "\n".join(one.told() for one in self.all()) or "no breakpoints"

    def at(self, site: int) -> tuple[Watched, ...]:
        """Those that are on and mean this layer."""
        return self._by_site.get(site, ())

    def lost(self) -> list[Watched]:
        """Those that mean no layer that is known."""
        return [one for one in self._all.values() if not one.layers]

    def settle(self) -> None:
        """Look up the layers again, once a model is known."""
        if self._settled():
            self.changed()

    def _settled(self) -> bool:
        """Whether one of them means other layers than before."""
        if self.resolve is None:
            return False
        before = [(one.id, one.layers) for one in self.all()]
        by_site: dict[int, list[Watched]] = {}
        for one in self.all():
            found = self.resolve(one.spec.layer)
            one.pending, one.layers = not found, tuple(found.values())
            for site in found if one.spec.enabled else ():
                by_site.setdefault(site, []).append(one)
        self._by_site = {site: tuple(each) for site, each in by_site.items()}
        return before != [(one.id, one.layers) for one in self.all()]

    def _must_exist(self, name: str) -> None:
        """Once the layers are known a name that means none of them is refused. Before, it is taken as it is."""
        if self.resolve is None or self.resolve(name):
            return
        known = self.resolve("*").values()
        near = nearest(name, known)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(list(known)[:8])}"
        raise UnknownBreakpoint(f"no layer {name!r} in this run; {hint}", near)

    def _found(self, which: int | str) -> list[Watched]:
        found = [one for one in self._all.values() if which in (one.id, one.spec.layer)] or self._by_other_name(which)
        if not found:
            near = nearest(str(which), [one.spec.layer for one in self._all.values()])
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise UnknownBreakpoint(f"no breakpoint {which!r}{hint}", near)
        return found

    def _by_other_name(self, which: int | str) -> list[Watched]:
        """Those of the very layers that this name means too: Conv2D_2 for conv2."""
        meant = self.resolve(which) if self.resolve is not None and isinstance(which, str) else {}
        return [one for one in self._all.values() if meant and set(one.layers) == set(meant.values())]

    def _touched(self) -> None:
        self._settled()
        self.changed()


def split_break(text: str) -> tuple[str, str | None, str | None]:
    """`LAYER [forward|backward|step] [if CONDITION]`, as it is typed: layer, phase, condition."""
    place, sign, condition = f"{text} ".partition(" if ")
    if sign and not condition.strip():
        raise UsageError(f"{text.strip()!r} lacks its condition: LAYER if CONDITION")
    words = place.split()
    phase = words.pop() if len(words) > 1 and words[-1] in PHASES else None
    return " ".join(words), phase, condition.strip() or None


def _layer_name(layer: Any) -> str:
    if not isinstance(layer, str) or not layer.strip():
        raise UsageError("a breakpoint needs the name of a layer")
    if len(layer) > 300:
        raise UsageError("that is too long for the name of a layer")
    return layer.strip()


def _phase(name: str | None, condition: Condition | None) -> Phase:
    """Where it stops: as asked, and not before the last value is known that its condition names."""
    keys: Iterable[str] = condition.keys if condition is not None else ()
    of_layer = sorted(key for key in keys if key in LAYER_KEYS)
    earliest = Phase.FORWARD
    if any(key in BACKWARD_KEYS or key == "loss" for key in keys):
        earliest = Phase.BACKWARD  # where the loss of the step and all values of a layer are known
    if "lr" in keys or ("loss" in keys and not of_layer):
        earliest = Phase.UPDATE
    asked = _asked(name) if name is not None else earliest
    if asked is Phase.UPDATE and of_layer:
        raise UsageError(f"{of_layer[0]} is a value of a layer: after an update there are loss, lr and step")
    if ORDER.index(asked) < ORDER.index(earliest):
        late = sorted(key for key in keys if key in (*BACKWARD_KEYS, *STEP_KEYS))
        raise UsageError(f"{late[0]} is not known in {name}: leave the phase out")
    return asked


def _asked(name: str) -> Phase:
    if name not in PHASES:
        near = nearest(name, PHASES)
        raise UsageError(f"no phase {name!r}; {f'did you mean {near[0]!r}?' if near else 'forward, backward or step'}")
    return PHASES[name]
