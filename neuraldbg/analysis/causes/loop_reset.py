"""State that should live across steps and is made anew, and graphs that should not and are kept."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuraldbg.analysis.catalogue import cause
from neuraldbg.analysis.causes.loop_reading import STUCK, STUCK_CAUSES, Fact, anywhere, place, text_at
from neuraldbg.analysis.detectors.loss_curve import main_loss
from neuraldbg.analysis.evidence import Evidence
from neuraldbg.analysis.places import parsed
from neuraldbg.records import Call, Finding, Severity

FEWEST = 3
AS_BEFORE, STEADILY = 0.6, 0.7  # of the first loss, and share of falls: below, a new model builds on the last ones
KEPT = 12  # graphs alive long after their update, before it is a leak
_EPOCH = re.compile(r"^_?(n_?)?(e|ep|epochs?|epoch_?(i|idx|num|nr|number)?)$")
_STEP = re.compile(r"^_?(global_)?(steps?|it|iters?|iterations?|batch|i)(_?(i|idx|num|nr|number))?$")
_TRIAL = re.compile(
    r"fold|seed|trial|run|repeat|rep\b|cv|split|member|ensemble|task|round|phase|stage|client|agent|model|lr|config|"
    r"param|hyper|width|depth|hidden|size|name|exp|method|k$|cfg|opt"
)


@dataclass(frozen=True, slots=True)
class Loop:
    """The innermost loop around a line, over all the functions on the stack."""

    source: str  # the line inside it
    names: tuple[str, ...]
    over_range: bool
    inner_names: tuple[str, ...]  # of loops inside it
    depth_of_step: int | None  # loops inside it around optimizer.step(); None where it is elsewhere

    @property
    def of_epochs(self) -> bool:
        return any(_EPOCH.match(name) for name in self.names) and not self.holds_epochs

    @property
    def holds_epochs(self) -> bool:
        return any(_EPOCH.match(name) for name in self.inner_names)

    @property
    def of_steps(self) -> bool:
        return any(_STEP.match(name) for name in self.names)

    @property
    def of_trials(self) -> bool:
        return any(_TRIAL.search(name) for name in self.names)


def _loop(evidence: Evidence, stack: list[str]) -> Loop | None:
    """Of the line that makes something, or of the nearest call that leads to it."""
    for source in stack:
        where = place(source)
        tree = None if where is None else _tree(evidence, where.file)
        if where is None or tree is None:
            continue
        loops = [node for node in _scope(tree, where.line) if isinstance(node, ast.For | ast.While)]
        if loops:
            return _described(evidence, loops[-1], source)
    return None


def _tree(evidence: Evidence, file: str) -> ast.Module | None:
    text = evidence.text(file)
    return None if text is None else parsed(text)


def _scope(tree: ast.Module, line: int) -> list[ast.AST]:
    """Loops around a line inside the innermost function that holds it, outermost first."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.Lambda)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and not (isinstance(node, ast.For | ast.While) and node.lineno == line)
    ]
    around.sort(key=lambda node: (node.lineno, -(node.end_lineno or 0)))
    last = max((i for i, node in enumerate(around) if isinstance(node, ast.FunctionDef | ast.Lambda)), default=-1)
    return list(around[last + 1 :])


def _described(evidence: Evidence, loop: ast.AST, source: str) -> Loop:
    file = source.rpartition(":")[0]
    names: tuple[str, ...] = ()
    over_range = False
    if isinstance(loop, ast.For):
        names = tuple(node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name))
        over_range = isinstance(loop.iter, ast.Call) and getattr(loop.iter.func, "id", "") in ("range", "trange")
    inner = [node for node in ast.walk(loop) if isinstance(node, ast.For) and node is not loop]
    inner_names = tuple(n.id for node in inner for n in ast.walk(node.target) if isinstance(n, ast.Name))
    step = place(evidence.line_of(Call.STEP))
    depth = None
    end = getattr(loop, "end_lineno", 0) or 0
    if step is not None and step.file == file and getattr(loop, "lineno", 0) <= step.line <= end:
        depth = sum(node.lineno <= step.line <= (node.end_lineno or 0) for node in inner)
    return Loop(source, names, over_range, inner_names, depth)


def _stateful(fact: Fact) -> bool:
    """Whether an optimizer loses anything when it is made anew."""
    if fact["class"] != "SGD":
        return True
    return any(item.startswith("('momentum'") and not item.endswith((" 0)", " 0.0)")) for item in fact["settings"])


def _remade(evidence: Evidence) -> Iterator[Fact]:
    last = {(fact["what"], fact["class"], fact["source"]): fact for fact in evidence.facts("made_again")}
    yield from (fact for fact in last.values() if fact["count"] >= FEWEST)


@cause(
    "state_reset_in_loop",
    group="loop",
    auto="S",
    explains=(*STUCK, *STUCK_CAUSES, "oscillating_loss", "missing_warmup", "loss_spike"),
)
def state_reset_in_loop(evidence: Evidence) -> Iterator[Finding]:
    """The model or the optimizer is created again inside the training loop.

    Finds: a line in the epoch or step loop that makes the model anew, so that training starts over each time, or that
    makes the optimizer anew over the same, untouched parameters, so that its momentum and Adam statistics are lost.
    Why it matters: a new model forgets everything; a new optimizer takes the large, badly scaled first steps again and
    again.
    Decides by: identities: new models of one class from one line with the old ones gone, or new optimizers with equal
    settings over the very tensors the last one had left; and the loop around that line. Loops over folds, seeds, tasks
    or settings, and stateless SGD, are left alone.
    Usual cures: create model, optimizer and scheduler once, before the loop.
    """
    facts = sorted(_remade(evidence), key=lambda fact: fact["what"] != "model")
    for fact in facts:
        loop = _loop(evidence, fact["stack"])
        severity = _model_reset(evidence, fact, loop) if fact["what"] == "model" else _optimizer_reset(fact, loop)
        if severity is None:
            continue
        model = fact["what"] == "model"
        each = float(np.median(fact["updates"])) if fact["updates"] else 0.0
        lost = "everything it learned" if model else "its momentum and running statistics"
        yield Finding(
            "state_reset_in_loop",
            severity,
            f"{fact['class']} is created {fact['count']} times inside the loop, every {each:g} updates: {lost} is lost",
            step=int(next((count for count in fact["updates"] if count), 1)),
            source=loop.source if loop else fact["source"],
            evidence={
                "what": fact["what"],
                "class": fact["class"],
                "times": fact["count"],
                "updates_each": each,
                "loop_over": ", ".join(loop.names) if loop else "unknown",
                "text": text_at(evidence, loop.source if loop else fact["source"]).strip()[:120],
            },
            confidence=0.5 if severity is Severity.INFO else 0.95 if model else 0.92,
            inference="the line belongs before the loop",
        )
        return


def _model_reset(evidence: Evidence, fact: Fact, loop: Loop | None) -> Severity | None:
    """A model of its own for each fold or setting is trained for several epochs: a loop of epochs lies inside."""
    trained = [count for count in fact["updates"] if count > 0]
    if len(trained) < FEWEST or fact["gone"] < 0.5 * (min(fact["count"], 64) - 2) or loop is None or loop.of_trials:
        return None
    if not (loop.of_epochs or (loop.of_steps and max(trained) <= 1)):
        return None
    return Severity.CRITICAL if _starts_over(evidence, trained) else Severity.INFO


def _starts_over(evidence: Evidence, trained: list[int]) -> bool:
    """Whether the loss is back where it began with each new model. Where it is not, models build on each other, as in
    boosting."""
    values = main_loss(evidence).values
    begins = [at for at in [0, *np.cumsum(trained[:-1]).tolist()] if at < len(values)]
    if len(begins) < 4 or max(trained) <= 1:
        return True
    first = values[begins]
    falls = float((np.diff(first) < 0).mean())
    return not (falls >= STEADILY and first[-1] < AS_BEFORE * first[0])


def _optimizer_reset(fact: Fact, loop: Loop | None) -> Severity | None:
    again = fact["count"] - 1
    if fact["untouched"] < 0.6 * again or not _stateful(fact) or (loop is not None and loop.of_trials):
        return None
    if fact["same_settings"] < 0.6 * again:
        return None
    every_step = max(fact["updates"][:-1], default=0) <= 1
    if (loop is not None and loop.of_epochs) or (every_step and fact["count"] >= 8):
        return Severity.WARNING
    return Severity.INFO


@cause(
    "retained_graph_memory_leak",
    group="loop",
    auto="S",
    explains=("memory_growth", "missing_no_grad_in_eval"),
)
def retained_graph_memory_leak(evidence: Evidence) -> Iterator[Finding]:
    """Tensors are kept across steps together with their graph.

    Finds: graphs of forward passes that are still alive many updates later, more with every update.
    Why it matters: a tensor keeps everything it was computed from: activations, inputs, nodes. Memory grows with every
    step until the process is killed.
    Decides by: marks that die with a graph, counted at updates; the variable, list or attribute that holds them is
    looked up in the running frames.
    Usual cures: append loss.item() or output.detach(), and sum numbers instead of tensors.
    """
    facts = evidence.facts("graphs_kept")
    curve = evidence.curve("graphs_kept")
    if not facts or not curve:
        return
    most = max(facts, key=lambda fact: fact["count"])
    top = float(curve.values.max())
    if most["count"] < KEPT and top < KEPT:
        return
    if max(most["count"], top) < 0.25 * most["followed"]:
        return
    alive = int(max(most["count"], top))
    steady = curve.values[-1] >= 0.8 * top
    holder = next((fact["holder"] for fact in reversed(facts) if fact["holder"]), None)
    name = str(holder["name"]) if holder else None
    line = _keeping_line(evidence, name)
    what = f"{name} keeps" if name else "something keeps"
    yield Finding(
        "retained_graph_memory_leak",
        Severity.WARNING if steady else Severity.INFO,
        f"{what} tensors with their graphs from step to step: {alive} graphs were alive long after their update",
        step=1,
        source=line,
        evidence={
            **({"variable": str(name), "kind": str(holder["kind"])} if holder else {}),
            "graphs_alive": alive,
            "passes_followed": most["followed"],
            "text": text_at(evidence, line).strip()[:120],
        },
        confidence=0.5 if not steady else 0.95 if name else 0.85,
        inference="each graph holds the activations and inputs of its pass",
    )


def _keeping_line(evidence: Evidence, name: str | None) -> str | None:
    """`history.append(out)`, `total += loss`, `total = total + loss`"""
    if name is None:
        return None
    last = re.escape(name.rpartition(".")[2]).replace("'", "[\"']")
    for pattern in (rf"\b{last}\.(append|extend|add|appendleft|insert)\(", rf"\b{last}\s*(\[[^\]]*\]\s*)?\+=",
                    rf"\b{last}\s*=\s*.*\b{last}\b\s*\+", rf"\b{last}\[[^\]]*\]\s*="):  # fmt: skip
        line = anywhere(evidence, re.compile(pattern))
        if line is not None:
            return line
    return None
