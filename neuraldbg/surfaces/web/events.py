"""The stream: what changed, pushed to every page. A slow reader gets the newest frame and not all of them.

To the page: `layers` (what the numbers of a frame stand for), `frame`, `step` (between two frames), `state`, `hit`,
`finding`, `breakpoints` (there are others now); and under the names of the original server `state_change` and
`execution_progress`. From the page: the original server's `{"command": ...}`, and after a lost connection
`{"last_step": n}`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup
from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from neuraldbg.analysis.findings import strict
from neuraldbg.errors import NeuralDbgError, UsageError, nearest
from neuraldbg.surfaces.live_analysis import NOT_READABLE
from neuraldbg.surfaces.web import data
from neuraldbg.surfaces.web.answers import refusal
from neuraldbg.surfaces.web.asking import Settings
from neuraldbg.surfaces.web.original_routes import progress_of, status_of
from neuraldbg.surfaces.web.runs import ServedRun, ServedRuns
from neuraldbg.trace import Trace

MOST_WAITING = 256
_ONCE = ("breakpoints", "frame", "step")  # of these only the newest waits
STATE_S = 0.9  # changes are told at once; this is for a trainer that says nothing any more
FINDINGS_S = 0.9  # the analysis finds something every few seconds at most
Message = dict[str, Any]
router = APIRouter()


class Box:
    """What one page has yet to be sent: one frame, the newest, a step after it, and the last so many of the rest."""

    def __init__(self) -> None:
        self._newest: dict[str, Message] = {}
        self._others: deque[Message] = deque(maxlen=MOST_WAITING)
        self._ready = asyncio.Event()

    def put(self, message: Message) -> None:
        if message["type"] == "frame":
            self._newest.pop("step", None)
        if message["type"] in _ONCE:
            self._newest[message["type"]] = message
        else:
            self._others.append(message)
        self._ready.set()

    async def get(self) -> Message:
        while True:
            if self._others:
                return self._others.popleft()
            for kind in _ONCE:
                if kind in self._newest:
                    return self._newest.pop(kind)
            self._ready.clear()
            await self._ready.wait()


class Watch:
    """Looks at one run and says what changed since the last look. Runs in a thread; one look at a time."""

    def __init__(self, run: ServedRun, interval_s: float) -> None:
        self.run = run
        self.hurry = False  # the trainer has told that its state is another
        self._interval_s, self._state_due_s = interval_s, 0.0
        self.last: dict[str, Message] = {}  # the newest message of every type that a new page needs
        self._layers: list[str] = []
        self._sites: list[Any] = []
        self._step: int | None = None
        self._last: int | None = None
        self._findings: dict[str, Any] = {}

    def look(self) -> list[Message]:
        found: list[Message] = []
        now = time.monotonic()
        parts = [self._frame]
        if self.hurry or now >= self._state_due_s:  # every question costs the trainer a fifth of a millisecond
            self.hurry, self._state_due_s = False, now + STATE_S
            parts.append(self._state)
        for part in parts:
            with suppress(*NOT_READABLE):  # half-written files: looked at again in a moment
                found += part()
        for message in found:
            if message["type"] in ("layers", "frame", "state"):
                self.last[message["type"]] = message
        return found

    def _state(self) -> list[Message]:
        state = self.run.state(every_s=self._interval_s)
        message = {"type": "state", "run": self.run.name, **state}
        told = self.last.get("state")
        # the step of a run that goes on is told by the frames
        if told is not None and {**told, "step": 0} == {**message, "step": 0} and state["state"] != "paused":
            return []
        if told == message:
            return []
        change = {"type": "state_change", "run": self.run.name, **status_of(self.run, state)}
        progress = {"type": "execution_progress", "run": self.run.name, "progress": progress_of(state)}
        return [message, change, progress]

    def _frame(self) -> list[Message]:
        with self.run.following() as trace:
            step, last = data.settled_step(trace), trace.last_step
            if step is None or step == self._step:
                return self._progress(trace, last)
            sites = data.frame_layers(trace)
            names = [trace.canonical(site) for site in sites]
            found = data.frame(trace, sites, step)
            scalars = data.latest_scalars(trace, step)
        self._step, self._last = step, last
        told: Message = {"type": "frame", "run": self.run.name, "step": step, "last_step": last}
        frame = {**told, "metrics": data.encoded(found), "scalars": scalars}
        if names == self._layers:
            return [frame]
        self._layers = names
        metrics = list(data.FRAME_METRICS)
        return [{"type": "layers", "run": self.run.name, "layers": names, "metrics": metrics, "form": "float32"}, frame]

    def _progress(self, trace: Trace, last: int | None) -> list[Message]:
        """Between two steps whose layers were measured: how far the run is, and the series of the last whole step."""
        if last is None or last == self._last:
            return []
        self._last, whole = last, last if trace.ended else max(last - 1, 0)
        told: Message = {"type": "step", "run": self.run.name, "step": whole, "last_step": last}
        return [{**told, "scalars": data.latest_scalars(trace, whole)}]

    def look_for_findings(self) -> list[Message]:
        """Apart from the rest: of a long run that nobody has analysed it takes a minute."""
        with suppress(*NOT_READABLE):
            return self._new_findings()
        return []

    def _new_findings(self) -> list[Message]:
        now = {str(one.get("id")): one for one in self.run.findings()}
        fresh = [one for number, one in now.items() if self._findings.get(number) != one]
        gone = [number for number in self._findings if number not in now]
        self._findings = now
        found: list[Message] = [{"type": "finding", "run": self.run.name, "finding": one} for one in fresh]
        found += [{"type": "finding", "run": self.run.name, "withdrawn": number} for number in gone]
        return found

    def everything(self) -> list[Message]:
        """For a page that has just come."""
        found = [self.last[kind] for kind in ("layers", "state", "frame") if kind in self.last]
        return found + [
            {"type": "finding", "run": self.run.name, "finding": one} for one in list(self._findings.values())
        ]


class Stream:
    """The pages that watch one run, and the task that watches it for them while there are any."""

    def __init__(self, run: ServedRun, interval_s: float) -> None:
        self._watch = Watch(run, interval_s)
        self._interval_s = interval_s
        self._boxes: set[Box] = set()
        self._task: asyncio.Task[None] | None = None
        self._seeking: asyncio.Task[None] | None = None  # findings
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        run.line.listeners.append(self._heard)

    def attach(self) -> Box:
        box = Box()
        for message in self._watch.everything():
            box.put(message)
        self._boxes.add(box)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._produce())
        return box

    def detach(self, box: Box) -> None:
        self._boxes.discard(box)
        if not self._boxes and self._task is not None:
            self._task.cancel()
            self._task = None  # who comes before it has ended gets one of its own
            if self._seeking is not None:
                self._seeking.cancel()

    def again(self, box: Box) -> None:
        for message in self._watch.everything():
            box.put(message)

    def _heard(self, event: dict[str, Any]) -> None:
        """In the thread of the line to the trainer."""
        with suppress(RuntimeError):  # the loop is closed: nobody watches any more
            self._loop.call_soon_threadsafe(self._tell, event)

    def _tell(self, event: dict[str, Any]) -> None:
        if event.get("event") == "hit":
            rest = {name: value for name, value in event.items() if name != "event"}
            self._put({"type": "hit", "run": self._watch.run.name, **rest})
        elif event.get("event") == "breakpoints":
            self._put({"type": "breakpoints", "run": self._watch.run.name})
        else:
            self._watch.hurry = True  # paused, running: the state is looked at now
            self._woken.set()

    def _put(self, message: Message) -> None:
        for box in self._boxes:
            box.put(message)

    async def _produce(self) -> None:
        due = findings_due = self._loop.time()
        while True:
            self._woken.clear()
            began = self._loop.time()
            due = max(due + self._interval_s, began)  # by the clock: what looking and waking take does not add up
            await self._look(self._watch.look)
            if began >= findings_due and (self._seeking is None or self._seeking.done()):
                findings_due = began + FINDINGS_S
                self._seeking = asyncio.create_task(self._look(self._watch.look_for_findings))  # no frame waits for it
            with suppress(asyncio.TimeoutError):
                # what looking took is part of the interval, but the trainer's machine is never looked at all the time
                await asyncio.wait_for(self._woken.wait(), max(due - self._loop.time(), self._interval_s / 4))
            if self._woken.is_set():
                due = self._loop.time()  # a look in between takes none of the others away

    async def _look(self, part: Callable[[], list[Message]]) -> None:
        for message in await asyncio.to_thread(part):
            self._put(message)


class Streams:
    def __init__(self, runs: ServedRuns, settings: Settings) -> None:
        self._runs, self._settings = runs, settings
        self._streams: dict[str, Stream] = {}

    async def of(self, name: str | None) -> Stream:
        run = self._runs.get(name)
        if run.name not in self._streams:
            await asyncio.to_thread(lambda: run.line)  # opens the run, which may take a moment
            if run.name not in self._streams:
                self._streams[run.name] = Stream(run, self._settings.interval_s)
        return self._streams[run.name]


@router.websocket("/api/events")
async def events(socket: WebSocket, run: str | None = None) -> None:
    await socket.accept()
    try:
        stream = await socket.app.state.streams.of(run)
    except NeuralDbgError as error:
        await socket.send_text(json.dumps({"type": "error", "error": str(error)}))
        await socket.close(1008)
        return
    box = stream.attach()
    try:
        # Reading as well as writing: a page that leaves, or a server that stops, is only seen by who reads.
        async with anyio.create_task_group() as both:
            both.start_soon(_first_ends, both, _write(socket, box))
            both.start_soon(_first_ends, both, _read(socket, box, stream, run))
    finally:
        stream.detach(box)


async def _first_ends(both: TaskGroup, work: Coroutine[Any, Any, None]) -> None:
    await work
    both.cancel_scope.cancel()


async def _write(socket: WebSocket, box: Box) -> None:
    with suppress(WebSocketDisconnect, RuntimeError, OSError):
        while True:
            await socket.send_text(json.dumps(strict(await box.get()), allow_nan=False))


async def _read(socket: WebSocket, box: Box, stream: Stream, run: str | None) -> None:
    with suppress(WebSocketDisconnect, RuntimeError, OSError, KeyError):
        while True:
            try:
                message = json.loads(await socket.receive_text())
            except ValueError as error:
                box.put({"type": "error", "error": f"this is not JSON: {error}"})
                continue
            if isinstance(message, dict) and "last_step" in message:
                stream.again(box)
            elif isinstance(message, dict) and "command" in message:
                box.put(await asyncio.to_thread(obey, socket.app.state.runs.get(run), message))
            else:
                box.put({"type": "error", "error": 'send {"command": ...} or {"last_step": ...}'})


# -- commands in the words of the original server ----------------------------------------------------------------------

COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "pause": ("pause", {}),
    "continue": ("continue", {}),
    "start": ("continue", {}),
    "stop": ("abort", {}),
    "step": ("step", {"unit": "layer"}),
    "step_over": ("step", {"unit": "layer"}),
    "step_into": ("step", {"unit": "layer"}),
    "step_out": ("step", {"unit": "step"}),
}
WITH_A_LAYER = {"add_breakpoint": "add", "remove_breakpoint": "remove"}


def obey(run: ServedRun, message: Message) -> Message:
    """The answer to a command; it never raises."""
    name = str(message["command"])
    try:
        return {"type": "done", "command": name, "answer": _done(run, name, message)}
    except NeuralDbgError as error:
        status, reason, details = refusal(error)
        return {"type": "error", "command": name, "status": status, "error": reason, **details}


def _done(run: ServedRun, name: str, message: Message) -> Any:
    if name in COMMANDS:
        verb, arguments = COMMANDS[name]
        return run.call(verb, **arguments)
    if name in WITH_A_LAYER:
        layer, condition = message.get("layer_name"), message.get("condition")
        if not isinstance(layer, str) or not isinstance(condition, str | None):
            raise UsageError(f"{name} needs a layer_name: a script's lines have no breakpoints here")
        more = {"condition": condition} if name == "add_breakpoint" else {}
        return run.call(WITH_A_LAYER[name], layer_name=layer, **more)
    if name == "clear_all_breakpoints":
        return [run.call("remove", id=one["id"]) for one in run.call("breakpoints")]
    known = (*COMMANDS, *WITH_A_LAYER, "clear_all_breakpoints")
    near = nearest(name, known, 1)
    raise UsageError(f"no command {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {known}"))
