"""Ways from elsewhere to a port of this machine: `ssh -R` to a host of the user's, cloudflared, ngrok, bore.

None of them is ours and none is installed by us: whichever is found is used. The server behind it wants a token of
everybody, so that an address which others may guess or see opens nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from neuraldbg.errors import UsageError

from .children import Child

SSH_VARIABLE: Final = "NEURAL_TUNNEL_SSH"
START_S: Final = 30.0  # a provider that has told no address by then is given up
KNOCK_S: Final = 3.0
_SSH_OPTIONS: Final = (
    "-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15",
    "-o", "LogLevel=INFO",
)  # fmt: skip


class NoTunnel(Exception):
    """Why there is none, in words for the user."""


@dataclass(frozen=True, slots=True)
class Provider:
    """`command` makes the words to run for a port; `address` finds the URL in what it has said so far."""

    name: str
    command: Callable[[int], list[str]]
    address: Callable[[str], str | None]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tunnel:
    """`url` has no token yet. `note`: what else to know about it."""

    provider: str
    url: str
    child: Child
    note: str | None = None


def ssh_provider(target: str) -> Provider:
    """`target` is what one types after ssh: `me@host`, with options before it where they are needed."""
    words, host = _destination(target)

    def command(port: int) -> list[str]:
        return ["ssh", *_SSH_OPTIONS, "-R", f"0:127.0.0.1:{port}", *words]

    def address(said: str) -> str | None:
        found = re.search(r"Allocated port (\d+) for remote forward", said)
        return f"http://{f'[{host}]' if ':' in host else host}:{found[1]}" if found else None

    return Provider("ssh", command, address)


def _destination(target: str) -> tuple[list[str], str]:
    """The words after ssh, and the name of the host among them."""
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise UsageError(f"cannot read {target!r} as words after ssh: {error}") from None
    if not words or words[-1].startswith("-"):
        raise UsageError(f"{target!r} names no host; give what you would type after ssh, such as me@host")
    last = words[-1]
    host = urlsplit(last).hostname if last.startswith("ssh://") else last.rpartition("@")[2]
    return words, host or last


def _matching(pattern: str, form: str = "{}") -> Callable[[str], str | None]:
    def address(said: str) -> str | None:
        found = re.search(pattern, said)
        return form.format(found[1]) if found else None

    return address


def _cloudflared() -> Provider:
    def command(port: int) -> list[str]:
        return ["cloudflared", "tunnel", "--no-autoupdate", "--url", f"http://127.0.0.1:{port}"]

    return Provider("cloudflared", command, _matching(r"(https://[a-z0-9-]+\.trycloudflare\.com)"))


def ngrok(auth_token: str | None = None) -> Provider:
    """The token of the account goes by the environment: everybody can read the words of a command."""

    def command(port: int) -> list[str]:
        return ["ngrok", "http", f"127.0.0.1:{port}", "--log", "stdout", "--log-format", "logfmt"]

    env = {"NGROK_AUTHTOKEN": auth_token} if auth_token else {}
    return Provider("ngrok", command, _matching(r"started tunnel.*\burl=(https://\S+)"), env)


def _bore() -> Provider:
    def command(port: int) -> list[str]:
        return ["bore", "local", str(port), "--to", "bore.pub"]

    return Provider("bore", command, _matching(r"listening at (\S+:\d+)", "http://{}"))


def providers(ssh_target: str | None) -> list[Provider]:
    """Those that are here, the user's own host first."""
    target = ssh_target or os.environ.get(SSH_VARIABLE)
    found = [ssh_provider(target)] if target and shutil.which("ssh") else []
    return found + [one for one in (_cloudflared(), ngrok(), _bore()) if shutil.which(one.name)]


def why_none(ssh_target: str | None) -> str:
    if ssh_target and not shutil.which("ssh"):
        return "there is no ssh on PATH to reach the given host"
    return f"none of cloudflared, ngrok and bore is on PATH, and {SSH_VARIABLE} names no host of yours for ssh -R"


def open_tunnel(found: Sequence[Provider], port: int, log: Path, *, attempts: int, seconds: float) -> Tunnel:
    """By the first of them that tells an address; NoTunnel says what each of them said last."""
    failed = []
    for provider in found:
        why = ""
        for _ in range(max(1, attempts)):
            try:
                tunnel, why = _opened(provider, port, log, min(seconds, START_S))
            except OSError as error:
                why = str(error)
                break
            if tunnel is not None:
                return tunnel
        failed.append(f"{provider.name}: {why}")
    raise NoTunnel("; ".join(failed))


def _opened(provider: Provider, port: int, log: Path, seconds: float) -> tuple[Tunnel | None, str]:
    """The tunnel, or None and what was said last; then nothing is left running, also where Ctrl-C ends the wait."""
    child = Child(provider.command(port), log, env=provider.env)
    tunnel: Tunnel | None = None
    try:
        url = child.wait_for(lambda: provider.address(child.said), seconds)
        if url is not None and child.exit_code is None:
            tunnel = Tunnel(provider.name, url, child)
        return tunnel, child.last_words()
    finally:
        if tunnel is None:
            child.end()


def answers(url: str, token: str) -> bool:
    """Whether the server can be reached there from here."""
    request = urllib.request.Request(f"{url}/health", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=KNOCK_S) as answer:
            return int(answer.status) == 200
    except (OSError, ValueError, urllib.error.URLError):
        return False
