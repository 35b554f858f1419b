"""Batches as the loader hands them out: how long the loop waited, and which batch it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from neuraldbg.capture.guard import attempt
from neuraldbg.capture.identity import IdentityTable
from neuraldbg.capture.torch.core import Core, cannot_look, now_ns
from neuraldbg.capture.torch.nested import tensors
from neuraldbg.capture.torch.stats import identity_of
from neuraldbg.capture.torch.worker_seeds import WorkerSeeds
from neuraldbg.records import Call, Phase, SiteKind

_MASK = (1 << 64) - 1


class BatchWatch:
    def __init__(self, core: Core, seeds: WorkerSeeds) -> None:
        self.core = core
        self.seeds = seeds
        self._sites: IdentityTable[int] = IdentityTable()  # loader -> site
        self._site_of: IdentityTable[int] = IdentityTable()  # iterator -> site
        self._known: dict[tuple[Any, ...], int] = {}
        self.iterators: Counter[int] = Counter()  # site -> times the loader was begun
        self._begins = core.guard.shield("seeds of workers")(seeds.loader_begins)
        self._begun = core.guard.shield("loaders")(self._iterating)
        self._seen = core.guard.shield("batches")(self._batch)
        self._waits = core.guard.shield("waiting for batches")(self._wait_begins)

    def wrap_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Remember which loader an iterator belongs to: two loaders may share one dataset."""

        @wraps(original)
        def __iter__(loader: DataLoader[Any]) -> Any:
            looks = self.core.on and not cannot_look()
            if looks:
                self._begins(loader)
            iterator = original(loader)
            if looks:
                self._begun(loader, iterator)
            return iterator

        return __iter__

    def _iterating(self, loader: Any, iterator: Any) -> None:
        """The loader may be gone before its first batch (`for batch in DataLoader(...)`): it is written down now."""
        site = self._sites.get(loader)
        if site is None:
            site = self._sites[loader] = self._introduce(loader)
        self._site_of[iterator] = site
        self.iterators[site] += 1
        self.seeds.loader_began(site, self.iterators[site])

    def data_sets(self) -> Iterator[tuple[str, Any]]:
        """Those that batches are drawn from now, by the names of their loaders, which may be in no variable."""
        for iterator, site in self._site_of.items():
            dataset = getattr(iterator, "_dataset", None)
            if dataset is not None:
                yield f"{self.core.recorder.sites[site].path}.dataset", dataset

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def __next__(iterator: Any) -> Any:
            core = self.core
            if cannot_look() or not core.on:
                return original(iterator)
            start = now_ns()
            if core.clock.on:
                self._waits(start)
            batch = original(iterator)
            self._seen(iterator, batch, start)
            return batch

        return __next__

    def _wait_begins(self, now: int) -> None:
        self.core.clock.wait_began(now)

    def _batch(self, iterator: Any, batch: Any, start: int) -> None:
        core = self.core
        end = now_ns()
        core.clock.waited(end)
        site = self._site_of.get(iterator)
        site = -1 if site is None else site
        digest = 0
        for tensor in tensors(batch):
            digest = (digest * 1099511628211 + identity_of(tensor)) & _MASK
        waited = end - start
        core.recorder.call(Call.BATCH, site, value=waited / 1e9, digest=digest, duration_ns=waited)
        if core.sampling:
            core.recorder.span(site, Phase.DATA, (start, waited))
        for notice in core.moments.batch:
            notice(site, batch)
        core.own_ns += now_ns() - end

    def _introduce(self, loader: Any) -> int:
        recorder = self.core.recorder
        key = (recorder.frames.line(), type(loader.dataset).__name__, loader.batch_size)
        known = self._known.get(key)
        if known is not None:
            return known  # built anew each epoch
        name = self.core.tree.unique_name(loader, "loader")
        site = self._known[key] = recorder.add_site(
            name, SiteKind.LOADER, op=type(loader.dataset).__name__, source=recorder.frames.line()
        )
        streaming = isinstance(loader.dataset, IterableDataset)
        recorder.fact(
            "loader",
            site=site,
            name=name,
            workers=loader.num_workers,
            batch_size=loader.batch_size,
            length=None if streaming else attempt(lambda: len(loader.dataset)),
            shuffled=None if streaming else not isinstance(loader.sampler, SequentialSampler),
            sampler=type(loader.sampler).__name__,
            batch_sampler=type(loader.batch_sampler).__name__,
            replacement=bool(getattr(loader.sampler, "replacement", False)),
        )
        return site
