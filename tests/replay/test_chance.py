"""A script that draws from somewhere nobody can seed: what only happened by chance is not called a proof."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from neuraldbg.capture.torch.patches import Patches
from neuraldbg.replay import arm, whatif
from neuraldbg.replay.candidates import Candidate
from neuraldbg.replay.outcomes import Ending

FALLS = Ending(np.linspace(2.0, 0.1, 80))
STAYS = Ending(np.full(80, 2.0))


@dataclass(frozen=True)
class Bench:
    """Runs nothing: tells the endings that it is given, in turn."""

    endings: list[Ending]
    seeded: bool = False
    names: list[tuple[str, bool]] = field(default_factory=list)

    def arm(self, name: str, _: Candidate) -> Ending:
        self.names.append((name, self.seeded))
        return self.endings.pop(0)


def test_a_script_whose_runs_differ_even_with_a_seed_has_two_controls() -> None:
    bench: Any = Bench([STAYS, FALLS, STAYS, FALLS])
    controls, used = whatif._controls(bench, lambda _: None)
    assert controls == [STAYS, FALLS]
    assert used.seeded
    assert [seeded for _, seeded in bench.names] == [False, False, True, True]
    bench = Bench([STAYS, FALLS, STAYS, STAYS])
    assert whatif._controls(bench, lambda _: None)[0] == [STAYS]


@pytest.mark.parametrize(("others", "verdict"), [([], "verified"), ([STAYS], "verified"), ([FALLS], "no_effect")])
def test_a_cure_holds_against_every_control(others: list[Ending], verdict: str) -> None:
    found = whatif.Experiment(STAYS, seeded=True, others=others)
    bench: Any = Bench([])
    trial = whatif._Trial(bench, found, whatif.Asked(), lambda _: None)
    assert trial._verdict(Candidate(("missing_zero_grad",), ("zero_after",)), FALLS, set()) == verdict


def test_a_seed_reaches_generators_that_are_made_without_one() -> None:
    real = np.random.default_rng
    drawn = []
    for _ in range(2):
        patches = Patches()
        before = np.random.get_state()
        arm._seed_python(patches)
        made = [np.random.default_rng(), np.random.default_rng(), np.random.default_rng(5)]
        drawn.append([float(each.random()) for each in made])
        patches.close()
        np.random.set_state(before)
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in itertools.pairwise(drawn[0]))
    assert drawn[0][2] == float(real(5).random())
    assert np.random.default_rng is real
