"""Questions about why a run failed, asked of its trace: one object, its judgement made once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from neuraldbg.analysis import causality
from neuraldbg.analysis.catalogue import ALIASES, catalogue
from neuraldbg.analysis.causality import Coupling, SemanticEvent
from neuraldbg.analysis.diagnose import Judgement, diagnose
from neuraldbg.analysis.evidence import Thresholds
from neuraldbg.analysis.inspection import FAILURES, gradient_health
from neuraldbg.analysis.results import CausalHypothesis
from neuraldbg.errors import UnknownName
from neuraldbg.records import Diagnosis, SiteKind

if TYPE_CHECKING:
    from neuraldbg.trace import Trace


class Why:
    """The trace as it is now: make a new one to ask again later."""

    def __init__(self, trace: Trace, thresholds: Thresholds | None = None) -> None:
        self.trace = trace
        self.thresholds = thresholds or Thresholds()

    @cached_property
    def judgement(self) -> Judgement:
        return diagnose(self.trace, self.thresholds)

    def explain(self, failure: str | None = None) -> list[CausalHypothesis]:
        """Proven causes first, then what the gradients alone show and no cause covers."""
        wanted = None if failure is None else failure_name(failure)
        judged = [one for one in self.judgement.loud if wanted is None or causality.belongs_to(one, wanted)]
        limits = {"vanishing": self.thresholds.vanishing, "exploding": self.thresholds.exploding}
        seen = [one for one in gradient_health(self.trace, **limits).causes if not _covered(one, judged)]
        wide = {wanted, causality.failure_of(wanted)} if wanted is not None else set()
        return causality.hypotheses(judged) + [
            one for one in seen if wanted is None or one.evidence.get("failure") in wide
        ]

    def chain(self, failure: str | None = None) -> list[str]:
        return next((list(one.causal_chain) for one in self.explain(failure) if one.causal_chain), [])

    @cached_property
    def events(self) -> list[SemanticEvent]:
        return causality.events_of(self.trace, self.judgement)

    def coupled(self, window: int = 5) -> list[Coupling]:
        return causality.coupled(self.events, self.judgement, window=window)

    def mermaid(self) -> str:
        return causality.mermaid(self.judgement)

    def package(self) -> dict[str, Any]:
        losses: list[float] = []
        if any(site.path == "loss" and site.kind is SiteKind.SERIES for site in self.trace.sites):
            losses = self.trace.history("loss", "scalar")["value"].tolist()
        return causality.package(self.events, self.judgement, self.coupled(), losses)


def failure_name(failure: str) -> str:
    """A failure type of the older editions, or an id of the catalogue; UnknownName names the nearest."""
    if failure in FAILURES:
        return failure
    wanted = ALIASES.get(failure, failure)
    if wanted not in catalogue():
        known = [*FAILURES, *catalogue()]
        raise UnknownName("failure type", failure, known, listed_by=f"one of {', '.join(FAILURES)}:")
    return wanted


def _covered(one: CausalHypothesis, judged: list[Diagnosis]) -> bool:
    failure = str(one.evidence.get("failure"))
    return any(causality.belongs_to(each, failure) for each in judged)
