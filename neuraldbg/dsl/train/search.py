"""`--hpo`: what a file leaves open, searched with Optuna (bayesian, random or grid)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuraldbg.dsl.check import check
from neuraldbg.dsl.model import Choice
from neuraldbg.dsl.settings import plan_of
from neuraldbg.dsl.train.job import Job
from neuraldbg.errors import BackendMissing, DslError

POINTS = 5  # of a range without a step, in a grid


def search_best(job: Job, trials: int | None) -> Job:
    """The same job with its choices decided by the best trial."""
    choices = [choice for graph in job.graphs for choice in graph.network.choices]
    if not choices:
        print("nothing in the file is left to a search")
        return job
    try:
        import optuna
    except ImportError:
        raise BackendMissing("--hpo needs Optuna, which is not installed: pip install 'neural-debugger[hpo]'") from None
    plan = plan_of(job.graphs[0].network)[0]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=_sampler(optuna, plan.search_method, choices, job.options.seed))
    study.optimize(lambda trial: _score(job, trial), n_trials=trials or plan.trials)
    best = study.best_trial
    told = ", ".join(f"{key.partition('@')[0]}={value}" for key, value in best.params.items())
    print(f"best of {len(study.trials)} trials, loss {best.value:.4g}: {told}")
    return _decided(job, lambda choice: _from(choice, best.params.get(_key(choice))))


def _sampler(optuna: Any, method: str, choices: list[Choice], seed: int) -> Any:
    if method == "grid":
        return optuna.samplers.GridSampler({_key(c): points(c) for c in choices}, seed=seed)
    if method == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed)


def points(choice: Choice) -> list[Any]:
    """The values of a choice in a grid."""
    if choice.kind == "categorical":
        return [str(each) if not isinstance(each, int | float | str) else each for each in choice.options]
    low, high = float(choice.start or 0), float(choice.end or 0)
    if choice.kind == "log_range":
        return [low * (high / low) ** (n / (POINTS - 1)) for n in range(POINTS)]
    step = choice.step or (high - low) / (POINTS - 1) or 1
    values = [low + n * step for n in range(int((high - low) / step + 1e-9) + 1)]
    whole = isinstance(choice.start, int) and isinstance(choice.end, int)
    return [int(value) for value in values] if whole else values


def _key(choice: Choice) -> str:
    return f"{choice.path}@{choice.line}:{choice.column}"


def _suggest(choice: Choice, trial: Any) -> Any:
    key = _key(choice)
    if choice.kind == "categorical":
        return _from(choice, trial.suggest_categorical(key, points(choice)))
    log = choice.kind == "log_range"
    if isinstance(choice.start, int) and isinstance(choice.end, int):
        step = int(choice.step or 1)
        return trial.suggest_int(key, choice.start, choice.end, **({"log": True} if log else {"step": step}))
    return trial.suggest_float(key, choice.start, choice.end, log=log, step=None if log else choice.step)


def _from(choice: Choice, value: Any) -> Any:
    """The option a trial names; options that are no plain value are named by their text."""
    if value is None:
        return choice.first
    return next((each for each in choice.options if each == value or str(each) == value), value)


def _decided(job: Job, choose: Any) -> Job:
    program = job.program.resolved(choose)
    graphs, problems = check(program, only=job.options.network)
    return Job(job.path, program, graphs, problems, job.options, job.backend)


def _score(job: Job, trial: Any) -> float:
    """Worse than anything where the choices do not fit together."""
    try:
        one = _decided(replace(job, done=[]), lambda choice: _suggest(choice, trial))
    except DslError as error:
        print(f"trial {trial.number}: {error}")
        return float("inf")
    one.run()
    return sum(done.score for done in one.done)
