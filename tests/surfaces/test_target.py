"""`neural debug` takes its own options and hands the rest to the script as it stands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraldbg.errors import UsageError
from neuraldbg.surfaces.cli.debug import command
from neuraldbg.surfaces.cli.target import Split, need_values, refuse_unsupported, split_target

VALUES = {"--out": 1, "--budget": 1, "--layers": 1, "--compare": 2, "--headless": 0}
anything = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
words = st.one_of(
    anything, st.sampled_from(["--", "-m", "--help", "-h", "--out", "--version", "--json", "train.py", "-"])
)
own_options = st.lists(
    st.one_of(
        st.just(("--headless",)),
        st.tuples(st.sampled_from(["--out", "--budget", "--layers"]), words),
        st.tuples(st.just("--compare"), words, words),
        st.builds(lambda value: (f"--out={value}",), anything),
    ),
    max_size=4,
).map(lambda options: [word for option in options for word in option])


@given(own_options, st.lists(words, max_size=6))
def test_whatever_follows_a_script_is_the_scripts(own: list[str], rest: list[str]) -> None:
    assert split_target([*own, "train.py", *rest], VALUES) == Split(tuple(own), "train.py", tuple(rest))


@given(own_options, st.lists(words, max_size=6))
def test_whatever_follows_a_module_is_the_modules(own: list[str], rest: list[str]) -> None:
    meant = Split(tuple(own), "package.module", tuple(rest), module=True)
    assert split_target([*own, "-m", "package.module", *rest], VALUES) == meant
    assert split_target([*own, "-mpackage.module", *rest], VALUES) == meant
    assert split_target([*own, "--", "-m", "package.module", *rest], VALUES) == meant
    assert split_target([*own, "python3", "-m", "package.module", *rest], VALUES) == meant


@given(own_options, st.lists(words, max_size=6))
def test_a_double_dash_ends_our_options(own: list[str], rest: list[str]) -> None:
    assert split_target([*own, "--", "--odd-name.py", *rest], VALUES) == Split(tuple(own), "--odd-name.py", tuple(rest))


@given(st.lists(words, max_size=8))
def test_no_word_is_lost_or_invented(given_words: list[str]) -> None:
    try:
        split = split_target(given_words, VALUES)
    except UsageError:
        return
    kept = [*split.own, *([split.target] if split.target is not None else []), *split.args]
    separators = ("--", "-m")
    if not any(word.startswith(("-m", "python", "pypy")) for word in given_words):
        assert [word for word in kept if word not in separators] == [w for w in given_words if w not in separators]


@pytest.mark.parametrize("python", ["python", "python3", "python3.11", "/usr/bin/python3"])
def test_the_interpreter_in_front_is_skipped(python: str) -> None:
    assert split_target([python, "train.py", "-c"], VALUES) == Split((), "train.py", ("-c",))


def test_options_may_follow_a_dsl_file() -> None:
    split = split_target(["--headless", "m.neural", "--compare", "a", "b"], VALUES)
    assert split == Split(("--headless", "--compare", "a", "b"), "m.neural")


def test_an_unknown_option_stays_ours_to_refuse() -> None:
    assert split_target(["--budgt", "1%", "train.py"], VALUES) == Split(("--budgt",), "1%", ("train.py",))


def test_every_option_of_the_command_is_known_to_the_splitter() -> None:
    names = {name for parameter in command.params for name in parameter.opts}
    assert {"--out", "--budget", "--layers", "--max-disk", "--export", "--fail-on", "--compare", "--json"} <= names


@pytest.mark.parametrize("target", ["deepspeed", "mpirun", "srun"])
def test_launchers_that_are_no_programs_of_ours_say_what_to_write(target: str) -> None:
    with pytest.raises(UsageError, match=rf"{target} .*neuraldbg train\.py"):
        refuse_unsupported(target)


@pytest.mark.parametrize("target", ["torchrun", "accelerate", "train.py"])
def test_launchers_that_are_python_are_run(target: str) -> None:
    refuse_unsupported(target)


@pytest.mark.parametrize(
    ("own", "says"),
    [(["--port"], "--port needs a value"), (["--headless", "--compare", "a.json"], "--compare needs 2 values")],
)
def test_an_option_that_waits_for_its_value_does_not_take_the_target_for_it(own: list[str], says: str) -> None:
    need_values(["--port", "1", "--port=2", "--headless"], {"--port": 1, "--compare": 2})
    with pytest.raises(UsageError, match=says):
        need_values(own, {"--port": 1, "--compare": 2})
