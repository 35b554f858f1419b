"""The viewer: a second process that watches a run and has the last word, also when the trainer was killed.

`python -m neuraldbg.surfaces.viewer RUN_DIR --parent-fd N [--live] [--export FILE] [--json] [--fail-on LEVEL]
[--host ADDR --port N]`

Descriptor N is the read end of a pipe whose write end only the trainer holds: its end of file is the end of the run.
A trainer that waits for us at a terminal says so with the last thing it writes (STAY): the page then stays open.
No framework is imported here; numpy and rich only once there is something to draw or print, the web packages once
somebody knocks at the port.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from neuraldbg.control.server_file import STAY
from neuraldbg.surfaces.live_analysis import EAGER, FIRST_LOOK_S, LEAST_PAUSE_S, LiveAnalysis
from neuraldbg.surfaces.shipment import begin_shipment

if TYPE_CHECKING:
    import argparse

    from neuraldbg.analysis.summary import RunSummary
    from neuraldbg.surfaces.terminal.live import LiveText
    from neuraldbg.surfaces.web.doorway import LazyService

UNHEALTHY, COULD_NOT_JUDGE = 6, 7
TICK_S = 0.2


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    _ignore_interrupt()
    run_dir = Path(options.run_dir)
    page = _open_page(run_dir, options)
    way = _open_browser(page, run_dir) if options.browser else None
    trainer = Trainer(options.parent_fd)
    shipment = begin_shipment(run_dir, _say)
    if shipment is not None:
        # a cluster warns all processes before it kills them: what is there goes now, and the trainer's end is awaited
        signal.signal(signal.SIGTERM, lambda *_: shipment.hurry())
    try:
        code = _watch_and_conclude(run_dir, options, trainer)
        if shipment is not None:
            shipment.finish()
        if page is not None and trainer.stays:
            _say(f"the page stays at {page.address} until Ctrl-C")
            trainer.wait_until_it_leaves()
    finally:
        if way is not None:
            way.unlink(missing_ok=True)
        if page is not None:
            page.close()
    if shipment is not None and shipment.stuck:
        sys.stdout.flush()
        os._exit(code)  # the library of the store would wait for its answer
    return code


def _watch_and_conclude(run_dir: Path, options: argparse.Namespace, trainer: Trainer) -> int:
    pace = EAGER if options.eager else {"first_look_s": options.first_look, "least_pause_s": options.least_pause}
    analysis = LiveAnalysis(run_dir, **pace, say=_say)
    _give_way()
    if options.live and _can_draw():
        _watch(run_dir, trainer, analysis)
    else:
        while not trainer.ended(timeout_s=analysis.wait_s()):
            analysis.tend()
    from neuraldbg.errors import NeuralDbgError

    try:
        return _conclude(run_dir, options, analysis)
    except NeuralDbgError as error:
        _say(f"no report: {error}")
    except BrokenPipeError:
        _quiet_streams()
    return COULD_NOT_JUDGE if options.fail_on else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    import argparse

    parser = argparse.ArgumentParser(prog="neuraldbg.surfaces.viewer")
    parser.add_argument("run_dir")
    parser.add_argument("--parent-fd", type=int, required=True)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--max-disk", type=int)  # bytes
    parser.add_argument("--first-look", type=float, default=FIRST_LOOK_S)  # seconds; tests have less patience
    parser.add_argument("--least-pause", type=float, default=LEAST_PAUSE_S)
    parser.add_argument("--eager", action="store_true")  # a breakpoint waits for what is found
    parser.add_argument("--export")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fail-on", choices=("warning", "critical"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)  # none: no page
    parser.add_argument("--browser", action="store_true")  # opened once
    parser.add_argument("--push-every", type=float, default=1.0)  # seconds
    parser.add_argument("--history", type=int, default=100)  # executions that the inspector lists
    parser.add_argument("--points", type=int, default=1000)  # of a chart
    parser.add_argument("--theme", default="dark")
    parser.add_argument("--charts", default="")  # separated by commas; none: all
    return parser.parse_args(argv)


def _open_page(run_dir: Path, options: argparse.Namespace) -> LazyService | None:
    if options.port is None:
        return None
    from neuraldbg.errors import NeuralDbgError
    from neuraldbg.surfaces.web.doorway import Doorway, LazyService, answer_promptly

    answer_promptly()
    try:
        door = Doorway(options.host, options.port)
    except NeuralDbgError as error:
        _say(f"no page: {error}")
        return None
    _say(door.line)
    settings = {"interval_s": options.push_every, "history": options.history, "points": options.points}
    settings |= {"theme": options.theme, **({"charts": tuple(options.charts.split(","))} if options.charts else {})}
    return LazyService(door, run_dir, settings, _say)


def _open_browser(page: LazyService | None, run_dir: Path) -> Path | None:
    if page is None:
        return None
    from neuraldbg.surfaces.browser import open_page

    return open_page(page.address, run_dir)


def _ignore_interrupt() -> None:
    """Ctrl-C belongs to the script; the report comes when the script is done with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTTOU", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None:
            signal.signal(number, signal.SIG_IGN)


def _give_way() -> None:
    """The training comes first: this thread analyses in what it leaves of the machine. The page has its own threads."""
    with suppress(OSError, AttributeError):
        os.nice(10)


class Trainer:
    """The process that started us, at the other end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pid = os.getppid()
        self._last_word = b""
        self._left = False

    def ended(self, *, timeout_s: float | None) -> bool:
        """Waits until the other end of the pipe is closed; False when the time is over before."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                if until is not None and not _readable(self._descriptor, max(0.0, until - time.monotonic())):
                    return False
                word = os.read(self._descriptor, 4096)
            except (OSError, ValueError):  # never was a pipe, or is no longer one: nothing to wait for
                return True
            if not word:
                return True
            self._last_word = word

    @property
    def stays(self) -> bool:
        """It waits at a terminal with somebody who may look at the page."""
        return self._last_word == STAY

    def wait_until_it_leaves(self) -> None:
        """SIGTERM is its farewell; a trainer that was killed has left too."""
        signal.signal(signal.SIGTERM, self._leave)
        while not self._left and os.getppid() == self._pid:
            time.sleep(TICK_S)

    def _leave(self, *_: object) -> None:
        self._left = True


def _readable(descriptor: int, timeout_s: float) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    poll = select.poll()  # `select` refuses descriptors above 1023, which a busy trainer may have
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _can_draw() -> bool:
    from neuraldbg.surfaces.terminal.live import can_draw

    return can_draw(sys.stderr.fileno(), os.environ.get("TERM"))


def _watch(run_dir: Path, trainer: Trainer, analysis: LiveAnalysis) -> None:
    """Keeps the live line until the trainer is gone. The line may fail; the report may not, so nothing escapes."""
    from neuraldbg.errors import NeuralDbgError
    from neuraldbg.surfaces.terminal.held import Held
    from neuraldbg.surfaces.terminal.live import LONGEST_REST_S, REDRAW_S, BottomRow

    started = time.monotonic()
    live: LiveText | None = None
    pause_s = REDRAW_S
    with closing(Held(run_dir)) as held, BottomRow(sys.stderr.fileno(), color=not os.environ.get("NO_COLOR")) as row:
        while not trainer.ended(timeout_s=pause_s):
            where, worked_s = held.where(), 0.0
            try:
                live = live or _follow(run_dir)
                now, began_s = time.monotonic(), time.thread_time()
                row.show(live.text(now_s=now, running_s=now - started, verdict=analysis.headline, held=where))
                worked_s = time.thread_time() - began_s
            except (NeuralDbgError, OSError):
                live = None  # nothing readable yet
            # Reading must never cost the training a core: rest at least twenty times as long as it worked. Not as long
            # as it took: on a busy machine, and while this process begins, that would freeze the line for minutes.
            pause_s = max(REDRAW_S, min(20 * worked_s, LONGEST_REST_S))
            if not analysis.wait_s():
                analysis.tend()


def _follow(run_dir: Path) -> LiveText:
    from neuraldbg.surfaces.terminal.live import LiveText
    from neuraldbg.trace import open_trace

    return LiveText(open_trace(run_dir))


def _conclude(run_dir: Path, options: argparse.Namespace, analysis: LiveAnalysis) -> int:
    from neuraldbg.analysis.anomalies.watch import watch_of
    from neuraldbg.analysis.findings import strict
    from neuraldbg.analysis.summary import summarise
    from neuraldbg.surfaces.liveness import wait_for_ranks
    from neuraldbg.surfaces.reports.session import dump, session_of, write_atomic
    from neuraldbg.surfaces.web.judgement import of_summary
    from neuraldbg.trace import open_trace
    from neuraldbg.trace.findings import write_findings, write_verdict

    trace = open_trace(run_dir)
    wait_for_ranks(trace)
    watch = analysis.watch or watch_of(trace)
    watch.look(trace)
    summary = summarise(trace, alive=False, anomalies=watch.report())
    write_findings(run_dir, [strict(one) for one in summary.findings])
    write_verdict(run_dir, of_summary(summary).verdict)
    if options.json:
        print("\n" + dump(session_of(summary)), flush=True)  # the script may have left its last line open
    else:
        from neuraldbg.surfaces.terminal.console import make_console
        from neuraldbg.surfaces.terminal.report import render_report

        if sys.stderr.isatty():
            print(file=sys.stderr)  # a progress bar may have left its line open
        render_report(summary, make_console(sys.stderr), run_dir=run_dir)
    if options.export:
        from neuraldbg.errors import UsageError

        try:
            write_atomic(Path(options.export), [dump(session_of(summary), indent=1).encode(), b"\n"])
        except UsageError as error:
            _say(str(error))
    if watch.samples:
        watch.save(run_dir, most_bytes=options.max_disk)  # last: nobody waits for it
    trace.rollups.update()
    return exit_code(summary, options.fail_on)


def exit_code(summary: RunSummary, fail_on: str | None) -> int:
    """0, or with --fail-on: 6 = unhealthy, 7 = could not judge. Says why when it is not 0."""
    state = summary.verdict.state
    if fail_on is None or state == "healthy" or (state == "warning" and fail_on == "critical"):
        return 0
    if state == "undecided":
        _say(f"exit code {COULD_NOT_JUDGE}: --fail-on {fail_on} was asked and the run could not be judged")
        return COULD_NOT_JUDGE
    _say(f"exit code {UNHEALTHY}: the verdict is {state} and --fail-on {fail_on} was asked")
    return UNHEALTHY


def _say(text: str) -> None:
    print(f"neuraldbg: {text}", file=sys.stderr, flush=True)


def _quiet_streams() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)


if __name__ == "__main__":
    sys.exit(main())
