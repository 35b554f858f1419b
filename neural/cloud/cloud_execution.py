"""Debugging on a machine without a screen: the run and its server as processes, and a way to see them from elsewhere.

```python
executor = CloudExecutor()
dashboard_info = executor.start_debug_dashboard(dsl_code, setup_tunnel=True)
print(dashboard_info["tunnel_url"])
executor.cleanup()
```
"""

from __future__ import annotations

import getpass
import logging
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import weakref
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from neuraldbg.errors import NeuralDbgError, UsageError
from neuraldbg.trace.rundir import RUN_FILE, RUNS_FOLDER

from .children import Child, own_command, own_environment
from .tunnels import NoTunnel, Provider, Tunnel, answers, ngrok, open_tunnel, providers, why_none

log = logging.getLogger("neuraldbg")
SERVING: Final = re.compile(r"serving on (http://\S+?)/\?token=(\S+)")
ENVIRONMENTS: Final = {  # a variable that only this one sets
    "kaggle": "KAGGLE_KERNEL_RUN_TYPE",
    "colab": "COLAB_RELEASE_TAG",
    "sagemaker": "SM_CURRENT_HOST",
    "azure": "AZUREML_RUN_ID",
    "lightning": "LIGHTNING_CLOUD_PROJECT_ID",
}


class CloudFailure(NeuralDbgError):
    """Something that was started did not come up; says why."""


@dataclass(slots=True)
class Session:
    """A run that is debugged, the server of its page, and the tunnel to it."""

    id: str
    run_dir: Path
    trainer: Child
    server: Child | None = None
    url: str = ""
    token: str = ""
    tunnels: list[Tunnel] = field(default_factory=list)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def log_of(self, what: str) -> Path:
        return self.run_dir.with_name(f"{self.id}.{what}.log")

    def with_token(self, url: str) -> str:
        return f"{url.rstrip('/')}/?token={self.token}"

    def end(self) -> None:
        for child in (*(tunnel.child for tunnel in self.tunnels), self.server, self.trainer):
            if child is not None:
                child.end()
        self.tunnels.clear()


def _end_all(sessions: dict[str, Session], owner: int) -> None:
    while sessions and os.getpid() == owner:  # a forked child has the list, and nothing to end
        sessions.popitem()[1].end()


class CloudExecutor:
    """`timeout`: seconds that a run or a command may take to come up or to be done. `retry_attempts`: of a tunnel.

    `ssh_host` is what one types after ssh (`me@host`; also NEURAL_TUNNEL_SSH): the tunnel is then `ssh -R` to it.
    What was started ends with `cleanup()`, with the `with` block, or with this process.
    """

    def __init__(
        self,
        environment: str | None = None,
        timeout: float = 300,
        retry_attempts: int = 3,
        *,
        ssh_host: str | None = None,
    ) -> None:
        self.environment = environment or detect_environment()
        self.timeout, self.retry_attempts, self.ssh_host = timeout, retry_attempts, ssh_host
        self._sessions: dict[str, Session] = {}
        self._at_exit = weakref.finalize(self, _end_all, self._sessions, os.getpid())

    def __enter__(self) -> CloudExecutor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Ends every run, server and tunnel that was started. Recorded runs stay in ./neuraldbg_runs."""
        _end_all(self._sessions, os.getpid())

    # -- the dashboard -------------------------------------------------------------------------------------------------

    def start_debug_dashboard(
        self, dsl_code: str, backend: str | None = None, setup_tunnel: bool = True, port: int = 8050
    ) -> dict[str, Any]:
        """Debugs the network and serves its page: `{session_id, dashboard_url, process_id, tunnel_url, status:
        "running", backend, ...}`, or `{status: "failed", error}` with nothing left running. Without a tunnel
        `tunnel_url` is None, `tunnel_reason` says why and `ssh_command` what to type instead."""
        session: Session | None = None
        try:
            found = providers(self.ssh_host) if setup_tunnel else []
            session = self._debugged(dsl_code, backend or "pytorch")
            self._came_up(session)
            self._served(session, port)
        except (NeuralDbgError, OSError) as error:
            if session is not None:
                self._sessions.pop(session.id, session).end()
            return {"status": "failed", "error": str(error)}
        reason = self._tunnelled(session, found) if setup_tunnel else "no tunnel was asked for"
        return {
            "session_id": session.id,
            "dashboard_url": session.with_token(session.url),
            "process_id": session.trainer.pid,
            "tunnel_url": session.with_token(session.tunnels[-1].url) if session.tunnels else None,
            "tunnel_provider": session.tunnels[-1].provider if session.tunnels else None,
            "tunnel_reason": reason,
            "ssh_command": f"ssh -L {session.port}:127.0.0.1:{session.port} {_here()}",
            "run_directory": str(session.run_dir),
            "status": "running",
            "backend": backend or "pytorch",
        }

    def setup_ngrok_tunnel(self, port: int = 8050, auth_token: str | None = None) -> str | None:
        """The public address of a dashboard of ours on `port`, its token in it; None where that cannot be, and the log
        says why."""
        session = next((one for one in self._sessions.values() if one.port == port), None)
        if session is None:
            ports = ", ".join(str(one.port) for one in self._sessions.values()) or "none"
            reason: str | None = f"no dashboard of this executor is on port {port} (there is {ports})"
        elif not shutil.which("ngrok"):
            reason = "there is no ngrok on PATH"
        else:
            reason = self._tunnelled(session, [ngrok(auth_token)])
        if session is not None and reason is None:
            return session.with_token(session.tunnels[-1].url)
        log.warning("no tunnel: %s", reason)
        return None

    def _debugged(self, dsl_code: str, backend: str) -> Session:
        """The run as a process. Its directory is there once the network is checked and built."""
        text = _text(dsl_code)
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{now}-cloud-{secrets.token_hex(2)}"
        runs = Path.cwd() / RUNS_FOLDER
        runs.mkdir(exist_ok=True)
        model, run_dir, said = runs / f"{name}.neural", runs / name, runs / f"{name}.log"
        model.write_text(text, encoding="utf-8")
        # it serves a page of its own too, on a port nobody is told: only a run that is served waits at a breakpoint
        words = (
            "--no-animations",
            "debug",
            "--no-browser",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--out",
            str(run_dir),
        )
        trainer = Child(own_command(*words, "--backend", backend, str(model)), said, env=own_environment())
        session = self._sessions[name] = Session(name, run_dir, trainer)  # from here on `cleanup` ends it
        return session

    def _came_up(self, session: Session) -> None:
        trainer, said = session.trainer, session.run_dir.with_name(f"{session.id}.log")
        if not trainer.wait_for(lambda: (session.run_dir / RUN_FILE).is_file() or None, self.timeout):
            why = f"did not come up in {self.timeout:g} s" if trainer.exit_code is None else trainer.last_words()
            raise CloudFailure(f"the run: {why}; all it said is in {said}")

    def _served(self, session: Session, port: int) -> None:
        words = ("view", str(session.run_dir), "--host", "127.0.0.1", "--port", str(port), "--behind-proxy")
        session.server = server = Child(own_command(*words), session.log_of("server"), env=own_environment())
        found = server.wait_for(lambda: SERVING.search(server.said), self.timeout)
        if found is None:
            raise CloudFailure(f"the server: {server.last_words()}; all it said is in {session.log_of('server')}")
        session.url, session.token = found[1], found[2]

    def _tunnelled(self, session: Session, found: list[Provider]) -> str | None:
        """Why there is no tunnel, or what else to know about it; None where there is nothing to say."""
        if not found:
            return why_none(self.ssh_host)
        try:
            tunnel = open_tunnel(
                found, session.port, session.log_of("tunnel"), attempts=self.retry_attempts, seconds=self.timeout
            )
        except NoTunnel as error:
            return str(error)
        session.tunnels.append(tunnel)
        if tunnel.provider == "ssh" and not answers(tunnel.url, session.token):
            host, far = urlsplit(tunnel.url).hostname, urlsplit(tunnel.url).port
            tunnel = replace(tunnel, url=f"http://127.0.0.1:{far}", note=_only_there(str(host), far or 0))
            session.tunnels[-1] = tunnel
        return tunnel.note

    def start_nocode_interface(self, port: int = 8051, setup_tunnel: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """There is none: answers so."""
        return {
            "status": "failed",
            "error": "there is no no-code interface here; start_debug_dashboard(dsl_code) shows a network in training",
        }

    # -- one command ---------------------------------------------------------------------------------------------------

    def compile_model(self, dsl_code: str, backend: str | None = None, output_file: str | None = None) -> str:
        """The network as a script; gives its path. UsageError says what is wrong with the code."""
        model = self._file(dsl_code)
        target = Path(output_file) if output_file else model.with_suffix(".py")
        self._done("compile", str(model), "--backend", backend or "pytorch", "-o", str(target))
        return str(target)

    def visualize_model(self, dsl_code: str, output_format: str = "svg", output_file: str | None = None) -> str:
        """A drawing of the network (svg, dot, html, text); gives its path."""
        model = self._file(dsl_code)
        target = Path(output_file) if output_file else model.with_suffix(f".{output_format}")
        self._done("visualize", str(model), "--format", output_format, "-o", str(target))
        return str(target)

    def run_model(
        self, model_path: str, dataset: str | None = None, epochs: int | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Trains a `.neural` file, or runs a compiled script, without the debugger: `{success, exit_code, stdout,
        stderr, model_path, dataset}`."""
        given = {"--dataset": dataset, "--epochs": epochs, "--batch-size": batch_size}
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
        if Path(model_path).suffix == ".py" and options:
            raise UsageError(f"{options[0]} is for .neural files; {model_path} is a script with its own settings")
        script = Path(model_path).suffix == ".py"
        command = [sys.executable, model_path] if script else own_command("run", model_path, *options)
        done = self._run(command)
        told = {"model_path": model_path, "dataset": dataset, "stdout": done.stdout, "stderr": done.stderr}
        return {"success": done.returncode == 0, "exit_code": done.returncode, **told}

    def get_environment_info(self) -> dict[str, Any]:
        """Where this runs and what it has; unknown is None."""
        return {
            "environment": self.environment,
            "is_cloud": self.environment != "local",
            "python_version": platform.python_version(),
            "platform": platform.platform(),
            "cpu_count": os.cpu_count(),
            "gpus": _gpus(),
            "tunnels": [one.name for one in providers(self.ssh_host)],
            "sessions": list(self._sessions),
        }

    def _file(self, dsl_code: str) -> Path:
        text = _text(dsl_code)
        runs = Path.cwd() / RUNS_FOLDER
        runs.mkdir(exist_ok=True)
        path = runs / f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.neural"
        path.write_text(text, encoding="utf-8")
        return path

    def _done(self, *words: str) -> None:
        done = self._run(own_command(*words))
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise UsageError("\n".join(lines) or f"neural {words[0]} ended with {done.returncode}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **own_environment()}
        try:
            return subprocess.run(command, capture_output=True, text=True, env=env, timeout=self.timeout, check=False)
        except subprocess.TimeoutExpired:
            raise CloudFailure(
                f"{command[-1]} was not done in {self.timeout:g} s; CloudExecutor(timeout=) gives more"
            ) from None


def _text(dsl_code: Any) -> str:
    if isinstance(dsl_code, str):
        return dsl_code
    raise UsageError(f"dsl_code is the text of a network, not a {type(dsl_code).__name__}; Path(...).read_text()?")


def detect_environment() -> str:
    """By what only that place sets; `local` elsewhere."""
    return next((name for name, variable in ENVIRONMENTS.items() if os.environ.get(variable)), "local")


def _only_there(host: str, port: int) -> str:
    return (
        f"{host} lets its own users in only (GatewayPorts no): open it there, or from your machine "
        f"`ssh -L {port}:127.0.0.1:{port} {host}`"
    )


def _here() -> str:
    """This machine, as somebody elsewhere would name it to ssh."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "USER"
    return f"{user}@{socket.gethostname()}"


def _gpus() -> list[str] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(at))) for at in range(count)]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
