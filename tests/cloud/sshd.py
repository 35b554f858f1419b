"""A real sshd on a port of this machine, with keys of its own and no more rights than who runs the tests."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import eventually


def find_sshd() -> str:
    found = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        why = "no sshd here (apt-get install openssh-server)"
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)
    return found


@contextmanager
def sshd(folder: Path, *options: str) -> Iterator[str]:
    """Gives what one types after ssh to get there."""
    program = find_sshd()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = _free_port()
    config = folder / "sshd_config"
    lines = [
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {folder / 'host'}",
        f"AuthorizedKeysFile {folder / 'authorized'}",
        f"PidFile {folder / 'pid'}",
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "AllowTcpForwarding yes",
        *options,
    ]
    config.write_text("\n".join(lines) + "\n")
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # it refuses to start without
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([program, "-D", "-e", "-f", str(config)], stderr=log)
    try:
        eventually(lambda: _listens(port) or server.poll() is not None)
        assert server.poll() is None, (folder / "log").read_text()
        own = f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={folder / 'known'} -o IdentitiesOnly=yes -F /dev/null"
        yield f"-p {port} -i {folder / 'user'} {own} {getpass.getuser()}@127.0.0.1"
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
