"""Threads that a script leaves behind: those that work are waited for, those of an executor that have nothing to do
are not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from neuraldbg.script import wait_for_threads


def test_an_executor_that_nobody_shut_down_is_not_waited_for() -> None:
    pool = ThreadPoolExecutor(2)
    try:
        pool.submit(int).result()
        waiting = threading.Thread(target=wait_for_threads, daemon=True)
        waiting.start()
        waiting.join(20)
        assert not waiting.is_alive()
        assert pool.submit(lambda: 3).result() == 3  # it can still be used
    finally:
        pool.shutdown()


def test_what_an_executor_has_left_to_do_is_waited_for() -> None:
    pool, go_on, done = ThreadPoolExecutor(1), threading.Event(), []
    try:
        for number in range(3):
            pool.submit(lambda number=number: (go_on.wait(20), done.append(number)))
        waiting = threading.Thread(target=wait_for_threads, daemon=True)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        go_on.set()
        waiting.join(20)
        assert not waiting.is_alive()
        assert done == [0, 1, 2]
    finally:
        pool.shutdown()
