"""Who may ask: the checks every request and every WebSocket handshake passes before anything else sees it.

A page in the same browser must not be able to speak to us (Host and Origin), nor another user of the same machine (the
uid of the peer's socket), nor anybody over the network without the token.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 65_536
EVERYWHERE = ("0.0.0.0", "::")
WRITES = ("POST", "PUT", "PATCH", "DELETE")
Address = tuple[str, int]
ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
}


# -- the peer of a loopback connection ---------------------------------------------------------------------------------


class Peer:
    """The other end of one connection. Looked up once, while the connection stands."""

    def __init__(self, remote: Address | None, local: Address | None) -> None:
        self._remote, self._local = remote, local

    @cached_property
    def uid(self) -> int | None:
        """Of the process at the other end; None where it cannot be known."""
        if self._remote is None or self._local is None:
            return None
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            try:
                with open(table, encoding="ascii") as rows:
                    found = uid_in(rows, self._remote, self._local)
            except (OSError, ValueError):
                continue
            if found is not None:
                return found
        return None


def uid_in(rows: Iterable[str], remote: Address, local: Address) -> int | None:
    """The owner of the socket whose own end is our peer and whose far end is ours.

    A socket that nobody holds any more is listed with uid 0 and inode 0: it says nothing about who opened it.
    """
    ends = {(_spelled(*remote, mapped=mapped), _spelled(*local, mapped=mapped)) for mapped in (False, True)}
    for row in rows:
        columns = row.split()
        if len(columns) > 9 and (columns[1], columns[2]) in ends and columns[9] != "0":
            return int(columns[7])
    return None


def _spelled(host: str, port: int, *, mapped: bool) -> str:
    """An address as the kernel's tables write it: words of 32 bits in the machine's own order."""
    address = ipaddress.ip_address(host.partition("%")[0])
    packed = address.packed
    if mapped and address.version == 4:
        packed = b"\0" * 10 + b"\xff\xff" + packed
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


# -- the policy --------------------------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _uid_of(scope: Scope) -> int | None:
    peer = scope.get("state", {}).get("peer")
    if not isinstance(peer, Peer):  # a server that somebody else has started around our app
        ends = [scope.get(end) for end in ("client", "server")]
        peer = Peer(*((str(end[0]), int(end[1])) if end and end[1] else None for end in ends))
    return peer.uid


@dataclass(frozen=True)
class Policy:
    """`host` is the address we are bound to. `behind_proxy`: requests come through a tunnel or proxy, whose process is
    often the owner's own and whose name we do not know: then everybody needs the token, and any host name will do,
    since a page of another name has no cookie of ours."""

    host: str = "127.0.0.1"
    port: int = 8050
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    uid_of: Callable[[Scope], int | None] = _uid_of
    behind_proxy: bool = False

    @property
    def cookie(self) -> str:
        return f"neuraldbg_{self.port}"  # browsers share cookies between the ports of a host

    @property
    def open_to_owner(self) -> bool:
        return is_loopback(self.host) and sys.platform == "linux" and not self.behind_proxy

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset({"localhost", "127.0.0.1", "::1", self.host.lower(), *self._own_names()})

    def _own_names(self) -> tuple[str, ...]:
        return () if is_loopback(self.host) else (socket.gethostname().lower(),)

    def refuses(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason; None where the request may pass."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_our_name(host):
            return 403, f"this server is not {host!r}: ask for {self.host}, or name it with --host"
        origin = headers.get("origin")
        if origin is not None and not _same_place(origin, host):
            return 403, f"pages of {origin!r} may not ask here"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return 403, "other sites may not ask here"
        if not self.knows(scope, headers):
            return 401, "a token is needed: Authorization: Bearer TOKEN, or open the address that was printed once"
        return _bad_body(headers) if scope["type"] == "http" and scope["method"] in WRITES else None

    def knows(self, scope: Scope, headers: Headers) -> bool:
        if self.open_to_owner and self.uid_of(scope) == os.getuid():
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer.strip()):
            return True
        return self.token_in_query(scope) or self._is_token(_cookie(headers, self.cookie))

    def token_in_query(self, scope: Scope) -> bool:
        given = [value for name, value in _query(scope) if name == "token"]
        return any(self._is_token(value) for value in given)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def _is_our_name(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in self.names or (self.behind_proxy and name):
            return True
        return self.host in EVERYWHERE and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_place(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def _bad_body(headers: Headers) -> tuple[int, str] | None:
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > LARGEST_BODY:
        return 413, f"a request has at most {LARGEST_BODY} bytes"
    if "transfer-encoding" in headers:
        return 411, "a request says how long it is: Content-Length"
    has_body = length not in ("0", "")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if (has_body or kind) and kind != "application/json":
        return 415, f"a write needs Content-Type: application/json, this is {kind or 'none'}"
    return None


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


# -- at the door -------------------------------------------------------------------------------------------------------


class Guard:
    """ASGI middleware: HTTP and WebSocket alike."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._policy.refuses(scope)
        if refused is not None:
            await _refuse(scope, send, *refused)
            return
        introduced = self._policy.token_in_query(scope)
        if introduced and scope["type"] == "http" and scope["method"] == "GET" and _is_page(scope):
            await self._without_token(scope, send)
            return
        await self._app(scope, receive, self._sealed(send, introduced=introduced))

    def _sealed(self, send: Send, *, introduced: bool) -> Send:
        async def passed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers.setdefault(name, value)
                if introduced:
                    headers.append("set-cookie", self._set_cookie())
            await send(message)

        return passed

    def _set_cookie(self) -> str:
        return f"{self._policy.cookie}={self._policy.token}; Path=/; HttpOnly; SameSite=Strict"

    async def _without_token(self, scope: Scope, send: Send) -> None:
        """The token is worth a cookie, and then it leaves the address line and the history. Who was sent here by a file
        or another page goes on from a page of ours: a strict cookie is not shown where such a one is redirected."""
        rest = urlencode([(name, value) for name, value in _query(scope) if name != "token"])
        place = scope.get("raw_path", b"/").partition(b"?")[0].decode("latin-1")
        target, cookie = place + (f"?{rest}" if rest else ""), ("set-cookie", self._set_cookie())
        if Headers(scope=scope).get("sec-fetch-site") in ("cross-site", "same-site"):
            page = (
                f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(target)}"><title>NeuralDbg</title>'
            )
            await _respond(send, "http.response", 200, page.encode(), [("content-type", "text/html"), cookie])
            return
        await _respond(send, "http.response", 303, b"", [("location", target), cookie])


def _is_page(scope: Scope) -> bool:
    return not str(scope["path"]).startswith(("/api", "/openapi"))


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [("content-type", "application/json")]
    headers += [("www-authenticate", "Bearer")] if status == 401 else []
    headers += [("connection", "close")] if status == 413 else []
    if scope["type"] == "http":
        await _respond(send, "http.response", status, body, headers)
    elif "websocket.http.response" in scope.get("extensions", {}):
        await _respond(send, "websocket.http.response", status, body, headers)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})


async def _respond(send: Send, kind: str, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in (*headers, *ALWAYS.items())]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": f"{kind}.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})
