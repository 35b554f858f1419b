"""Moments of a run that further watchers take part in: each moment a list of shielded callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

Notice = Callable[..., None]


@dataclass(eq=False)
class Moments:
    """What each list is called with. Most run on every step: look at `core.sampling` before doing anything costly."""

    pass_begun: list[Notice] = field(default_factory=list)  # (pass, root module, args, kwargs)
    evaluation_begun: list[Notice] = field(default_factory=list)  # (pass): without a graph, in quiet steps too
    pass_ended: list[Notice] = field(default_factory=list)  # (pass, root module, (args, kwargs), outputs)
    layer_run: list[Notice] = field(default_factory=list)  # (module, Layer, pass, (args, kwargs, output)): full steps
    backward_begun: list[Notice] = field(default_factory=list)  # (loss or None, source id): the graph is whole
    backward_elsewhere: list[Notice] = field(default_factory=list)  # the same at lines not `smooth`, in quiet steps
    backward_done: list[Notice] = field(default_factory=list)  # (loss or None)
    optimizer_created: list[Notice] = field(default_factory=list)  # (optimizer): its constructor has run
    update_begun: list[Notice] = field(default_factory=list)  # (optimizer, Known): before step() moves anything
    update_done: list[Notice] = field(default_factory=list)  # (optimizer, Known): after it did
    loading: list[Notice] = field(default_factory=list)  # (owner, state): load_state_dict is about to run
    loaded: list[Notice] = field(default_factory=list)  # (owner, state, result, source id)
    batch: list[Notice] = field(default_factory=list)  # (loader site or -1, batch)
    ending: list[Notice] = field(default_factory=list)  # (): the script is over, nothing is unhooked yet

    def clear(self) -> None:
        for moment in fields(self):
            getattr(self, moment.name).clear()
