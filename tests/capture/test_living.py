"""Objects of a class, found among all: no other thread is disturbed by it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from neuraldbg.capture import living
from neuraldbg.capture.kernels import frameless


class Base:
    pass


class Derived(Base):
    pass


BY = ["python", pytest.param("c", marks=pytest.mark.skipif(frameless.instances_of is None, reason="built without it"))]


@pytest.fixture(params=BY)
def found(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "python":
        monkeypatch.setattr(frameless, "instances_of", None)
    return living.instances_of


def test_those_of_a_class_and_of_classes_below_it(found: Any) -> None:
    one, other = Base(), Derived()
    assert found((Base,), exact=True) == [one]
    assert sorted(map(id, found((Base,), exact=False))) == sorted(map(id, (one, other)))
    assert found((), exact=False) == []


@pytest.mark.skipif(frameless.instances_of is None, reason="only C keeps every other thread from running")
def test_a_tuple_that_another_thread_fills_is_left_alone() -> None:
    wrong: list[BaseException] = []
    over = threading.Event()

    def fill() -> None:
        try:
            while not over.is_set():
                tuple(number for number in range(5000))
        except SystemError as error:  # Python's: somebody held the tuple
            wrong.append(error)

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        living.instances_of((Base,), exact=True)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(frameless.instances_of is None, reason="built without it")
def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(TypeError, match="a function, a tuple"):
        frameless.instances_of([], (Base,))
    with pytest.raises(TypeError, match="a list is to be got"):
        frameless.instances_of(lambda: 3, (Base,), True)
