"""What the form of a user's file tells: words of comments and texts tell nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import made_run

from neuraldbg.analysis.causes.loss_terms import line_of_loss, loss_terms
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.idioms import fallback_line, identifiers, keeps_best
from neuraldbg.trace import open_trace


def evidence_of(folder: Path, text: str, **loss: object) -> Evidence:
    with made_run(folder / "run") as run:
        run.writer.fact("source_file", file="train.py", text=text)
        if loss:
            run.writer.fact("loss_input", source_id=-1, term=0, look=1, labels=[], **loss)
        run.end(steps=1)
    with open_trace(run.directory) as trace:
        evidence = Evidence(trace)
        evidence.facts("source_file"), evidence.facts("loss_input"), evidence.facts("source")
    return evidence


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("if val < low:\n    low = val\n    torch.save(net.state_dict(), 'x.pt')\n", True),
        ("if val < self.low:\n    self.low = val\n    state = deepcopy(net)\n", True),
        ("# the best of all\nprint('best', val)\n", False),
        ("if epoch == 3:\n    torch.save(net.state_dict(), 'x.pt')\n", False),
    ],
)
def test_a_best_state_is_kept_where_a_comparison_decides(text: str, kept: bool, tmp_path: Path) -> None:
    assert keeps_best(evidence_of(tmp_path, text)) is kept


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\ny = [codes.get(c, 4) for c in raw]\n", "train.py:2"),
        ("y = np.where(known, codes, 4)\n", "train.py:1"),
        ("y = codes.clamp(max=4)\n", "train.py:1"),
        ("y = c if c in codes else 4\n", "train.py:1"),
        ("n = 4\ny = codes.get(c, 3)\n", None),
    ],
)
def test_the_label_of_everything_unknown_is_found_where_it_is_given(
    text: str, line: str | None, tmp_path: Path
) -> None:
    assert fallback_line(evidence_of(tmp_path, text), 4.0) == line


def test_names_are_those_of_the_code(tmp_path: Path) -> None:
    assert set(identifiers(evidence_of(tmp_path, "# cost\nreward = f('latency', x.gain)\n"))) == {
        "reward", "f", "x", "gain",
    }  # fmt: skip


LOSSES = """measure = nn.MSELoss()
other = nn.MSELoss()

def validate():
    return F.mse_loss(net(x), y)

loss = measure(net(x), y)
"""


def test_the_loss_is_the_one_that_was_computed_and_not_the_nearest(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, LOSSES, kind="mse", line="train.py:7")
    assert line_of_loss(evidence, loss_terms(evidence)[0]) == "train.py:1"
