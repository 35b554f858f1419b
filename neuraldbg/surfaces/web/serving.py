"""Serving: uvicorn on a socket that is already bound, in this thread or in one of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from neuraldbg.surfaces.web.app import make_app
from neuraldbg.surfaces.web.asking import Settings
from neuraldbg.surfaces.web.doorway import Doorway
from neuraldbg.surfaces.web.guard import Peer, Policy
from neuraldbg.surfaces.web.runs import ServedRuns

GRACE_S = 3


class Connection(H11Protocol):
    """Knows its peer: the socket tables of the kernel are asked once a connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peer": Peer(self.client, _whole(self.server))}


def _whole(address: tuple[str, int | None] | None) -> tuple[str, int] | None:
    return None if address is None or address[1] is None else (address[0], address[1])


class _Server(uvicorn.Server):
    """A signal that ends it ends the whole process next: what has to be taken back is taken back before."""

    def __init__(self, config: uvicorn.Config, door: Doorway) -> None:
        super().__init__(config)
        self._door = door

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._door.tell_no_more()
        await super().shutdown(sockets)


class Service:
    """One server over some runs. `run` returns when it is told to stop, by a signal or by `stop`."""

    def __init__(self, door: Doorway, paths: Sequence[Path], settings: Settings) -> None:
        self._door = door
        self._runs = ServedRuns(paths)
        policy = Policy(door.host, door.port, door.token, behind_proxy=door.behind_proxy)
        options: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False}
        config = uvicorn.Config(
            make_app(self._runs, policy, settings),
            http=Connection,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            ws_max_size=65_536,
            **options,
        )
        self._server = _Server(config, door)

    def open(self) -> None:
        """Opens the runs now: UsageError and TraceError for what cannot be read."""
        self._runs.open()

    def run(self) -> None:
        try:
            self._server.run(sockets=[self._door.listener])
        finally:
            self._runs.close()

    def stop(self) -> None:
        self._server.should_exit = True
