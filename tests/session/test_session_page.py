"""A session that serves its page: a real server, a pause that is ended from there."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn

from neuraldbg import NeuralDbg
from neuraldbg.control.server_file import read_server

PATIENCE_S = 60


def address_of(run: Path) -> str:
    until = time.monotonic() + PATIENCE_S
    while (told := read_server(run)) is None:
        assert time.monotonic() < until, "the page is not served"
        time.sleep(0.05)
    return str(told["url"])


def continue_once_paused(url: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{url}/api/state") as answer:
            if json.load(answer)["state"] == "paused":
                break
        time.sleep(0.05)
    urllib.request.urlopen(urllib.request.Request(f"{url}/api/continue", method="POST")).close()


def test_a_pause_of_a_session_is_ended_from_its_page(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    with NeuralDbg(model, out=tmp_path / "run", dashboard=True) as dbg:
        url = address_of(tmp_path / "run")
        one = dbg.breakpoints.add("root", once=True)
        visitor = threading.Thread(target=continue_once_paused, args=(url,))
        visitor.start()
        for _ in range(2):
            model(torch.randn(8, 4)).sum().backward()
        visitor.join(PATIENCE_S)
    assert one.trigger_count == 1
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)
