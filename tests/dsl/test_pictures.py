"""`--dataset FOLDER`: one folder of pictures a class; and the picture of a network."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from neuraldbg.dsl import parse
from neuraldbg.dsl.build.torch_model import build
from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.picture import as_png
from neuraldbg.dsl.train.datasets import samples_for
from neuraldbg.dsl.train.loop import Options, train
from neuraldbg.dsl.train.samples import Samples
from neuraldbg.errors import BackendMissing, NeuralDbgError, UsageError


def network(input: str) -> Graph:
    layers = 'Flatten() Output(2, "softmax") loss: categorical_crossentropy optimizer: Adam(0.05)'
    return check(parse(f"network N {{ input: {input} layers: {layers} train {{ epochs: 8 batch_size: 8 }} }}"))[0][0]


def read(folder: Path, input: str) -> Samples:
    graph = network(input)
    return samples_for(graph, build(graph).loss, str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Bright cats, dark dogs, of several sizes, kinds and modes; and a file that is no picture."""
    random = np.random.default_rng(0)
    for name, level, ending, mode in (("cats", 200, "png", "RGB"), ("dogs", 40, "jpg", "L")):
        (tmp_path / name).mkdir()
        for number in range(6):
            size = (9 + number, 12, 3) if mode == "RGB" else (9 + number, 12)
            pixels = np.clip(random.normal(level, 10, size), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.{ending}")
    (tmp_path / "cats" / "notes.md").write_text("not a picture")
    return tmp_path


@pytest.mark.parametrize(("input", "channels"), [("(6, 8, 3)", 3), ("(6, 8, 1)", 1)])
def test_folders_are_classes_and_pictures_are_brought_to_the_input(folder: Path, input: str, channels: int) -> None:
    samples = read(folder, input)
    assert samples.inputs[0].shape == (12, 6, 8, channels)
    assert samples.targets.tolist() == [0] * 6 + [1] * 6
    cats, dogs = np.split(np.asarray(samples.inputs[0], dtype=np.float64), 2)
    assert cats.mean() == pytest.approx(200 / 255, abs=0.05)
    assert dogs.mean() == pytest.approx(40 / 255, abs=0.05)


def test_a_network_learns_from_them(folder: Path) -> None:
    graph = network("(6, 8, 3)")
    built = build(graph)
    done = train(built, samples_for(graph, built.loss, str(folder)), Options(), lambda _: None)
    assert done.history[-1]["loss"] < 0.5 * done.history[0]["loss"]


def test_without_pillow_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(BackendMissing, match=r"pip install 'neural-debugger\[images\]'") as caught:
        read(folder, "(6, 8, 3)")
    assert caught.value.exit_code == 4


def test_pictures_need_an_input_that_is_one(folder: Path) -> None:
    with pytest.raises(UsageError, match="pictures need an input of"):
        read(folder, "(48,)")


@pytest.mark.parametrize("damage", [b"", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"GIF89a"])
def test_a_damaged_picture_is_named(folder: Path, damage: bytes) -> None:
    (folder / "dogs" / "broken.png").write_bytes(damage)
    with pytest.raises(NeuralDbgError, match=r"broken\.png: cannot be read as a picture"):
        read(folder, "(6, 8, 3)")


def test_a_picture_that_unfolds_beyond_reason_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 80)  # those of the folder have 108 and more
    with pytest.raises(UsageError, match="refused"):
        read(folder, "(6, 8, 3)")


def test_a_folder_without_pictures_says_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    with pytest.raises(UsageError, match="one folder of pictures a class is expected"):
        read(tmp_path, "(6, 8, 3)")


# -- the picture of a network ------------------------------------------------------------------------------------------


def test_a_network_is_drawn_with_a_box_for_every_step() -> None:
    graph = network("(6, 8, 3)")
    with Image.open(io.BytesIO(as_png(graph))) as picture:
        pixels = np.asarray(picture)
    assert len(graph.steps) == 2
    left = (pixels[:, 20] != 255).any(-1)  # along the left sides of the boxes
    assert int((np.diff(left.astype(int)) == 1).sum()) == 1 + len(graph.steps)


def test_without_pillow_a_picture_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(BackendMissing, match=r"neural-debugger\[images\]"):
        as_png(network("(6, 8, 3)"))
