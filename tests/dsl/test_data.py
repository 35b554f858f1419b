"""Data: local files read without executing anything in them, and made-up data that can be learnt."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraldbg.dsl import parse
from neuraldbg.dsl.build.torch_model import build
from neuraldbg.dsl.build.training_code import task_loss
from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.train.datasets import samples_for
from neuraldbg.dsl.train.loop import Options, train
from neuraldbg.dsl.train.samples import Samples
from neuraldbg.dsl.train.synthetic import synthesize
from neuraldbg.errors import ShapeMismatch, UsageError


def graph_of(input: str, layers: str, loss: str = "categorical_crossentropy", train: str = "") -> Graph:
    text = f"network N {{ input: {input} layers: {layers} loss: {loss} optimizer: Adam(0.01) train {{ {train} }} }}"
    return check(parse(text))[0][0]


def loaded(graph: Graph, dataset: object) -> Samples:
    return samples_for(graph, task_loss(graph), str(dataset))


PICTURES = graph_of("(28, 28, 1)", "Flatten() Output(10)")


def idx(path: Path, array: Any) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    data = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_files_are_read(suffix: str, tmp_path: Path) -> None:
    idx(tmp_path / f"train-images-idx3-ubyte{suffix}", np.full((6, 28, 28), 255))
    idx(tmp_path / f"train-labels-idx1-ubyte{suffix}", np.arange(6))
    samples = loaded(PICTURES, tmp_path)
    assert samples.inputs[0].shape == (6, 28, 28, 1)
    assert float(samples.inputs[0].max()) == 1.0  # type: ignore[arg-type]
    assert samples.targets.tolist() == list(range(6))


def test_a_damaged_idx_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 10, 28, 28) + b"\1" * 5)
    with pytest.raises(UsageError, match="promises 10x28x28 values, 5 follow"):
        loaded(PICTURES, path)


def test_cifar_batches_are_read_and_channels_put_last(tmp_path: Path) -> None:
    data = np.zeros((4, 3072), dtype=np.uint8)
    data[:, :1024] = 255
    for name in ("data_batch_1", "data_batch_2"):
        (tmp_path / name).write_bytes(pickle.dumps({"data": data, "labels": [0, 1, 2, 3]}))
    samples = loaded(graph_of("(32, 32, 3)", "Flatten() Output(10)"), tmp_path)
    assert samples.inputs[0].shape == (8, 32, 32, 3)
    assert samples.inputs[0][0, 5, 7].tolist() == [1.0, 0.0, 0.0]


def test_a_pickle_that_wants_to_run_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": Evil()}))
    with pytest.raises(UsageError, match="which no dataset needs"):
        loaded(graph_of("(32, 32, 3)", "Flatten() Output(10)"), tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_arrays_with_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(UsageError, match="Object arrays"):
        loaded(PICTURES, tmp_path / "d.npz")


def test_csv_with_a_header_and_named_classes(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,b,kind\n1,2,cat\n3,4,dog\n5,6,cat\n")
    samples = loaded(graph_of("(2,)", "Output(2)"), tmp_path / "d.csv")
    assert samples.inputs[0].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert samples.targets.tolist() == [0, 1, 0]


def test_a_crooked_csv_names_the_row(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("1,2,0\n3,x,1\n")
    with pytest.raises(UsageError, match="row 2"):
        loaded(graph_of("(2,)", "Output(2)"), tmp_path / "d.csv")


def test_numpy_files_one_hot_targets_and_autoencoders(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((3, 4)), y=np.eye(3))
    assert loaded(graph_of("(4,)", "Output(3)"), tmp_path / "d.npz").targets.tolist() == [0, 1, 2]
    np.save(tmp_path / "x.npy", np.ones((3, 4)))
    alone = loaded(graph_of("(4,)", "Output(4)", "mse"), tmp_path / "x.npy")
    assert np.array_equal(alone.targets, alone.inputs[0])


def test_data_that_does_not_fit_says_both_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((3, 5)), y=np.zeros(3))
    with pytest.raises(ShapeMismatch, match="its samples are 5 and the input of the network is 4"):
        loaded(graph_of("(4,)", "Output(3)"), tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", x=np.ones((3, 4)), y=np.array([0, 1, 7]))
    with pytest.raises(ShapeMismatch, match="classes reach 7 and the network tells 3 apart"):
        loaded(graph_of("(4,)", "Output(3)"), tmp_path / "e.npz")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.ones((3, 4)), "y": np.zeros(2)}, "3 inputs and 2 targets do not make samples"),
        ({"x": np.ones((0, 4)), "y": np.zeros(0)}, "there are no targets"),
        ({"x": np.ones((3, 4))}, "there are no targets"),
        ({"x": np.ones((3, 4)), "y": np.array([0.0, 0.5, 1.0])}, "classes are whole numbers"),
        ({"x": np.ones((3, 4)), "y": np.array([0, np.nan, 1])}, "classes are whole numbers"),
        ({"x": np.ones((3, 4)), "y": np.array([0, -1, 1])}, "classes lie below 0"),
    ],
)
def test_arrays_that_make_no_samples_are_refused(arrays: dict[str, Any], says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises((UsageError, ShapeMismatch), match=says):
        loaded(graph_of("(4,)", "Output(3)"), tmp_path / "d.npz")


def test_channels_that_come_first_are_put_last_and_flat_rows_become_images(tmp_path: Path) -> None:
    first = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    graph = graph_of("(4, 5, 3)", "Flatten() Output(2)")
    np.savez(tmp_path / "d.npz", x=first, y=np.array([0, 1]))
    assert np.array_equal(loaded(graph, tmp_path / "d.npz").inputs[0], first.transpose(0, 2, 3, 1))
    np.savez(tmp_path / "e.npz", x=first.reshape(2, -1), y=np.array([0, 1]))
    assert np.array_equal(loaded(graph, tmp_path / "e.npz").inputs[0], first.reshape(2, 4, 5, 3))


def test_arrays_named_like_the_inputs_of_a_network_come_in_its_order(tmp_path: Path) -> None:
    graph = graph_of("{ a: (2,) b: (3,) }", "a: { Dense(2) } b: { Dense(2) } Add() Output(2)")
    np.savez(tmp_path / "d.npz", b=np.ones((4, 3)), y=np.zeros(4), a=np.zeros((4, 2)))
    assert [array.shape for array in loaded(graph, tmp_path / "d.npz").inputs] == [(4, 2), (4, 3)]


def test_three_kinds_are_too_many_for_a_binary_loss(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("1,2,cat\n3,4,dog\n5,6,eel\n")
    with pytest.raises(ShapeMismatch, match="lie between 0 and 1, these reach 2"):
        loaded(graph_of("(2,)", 'Output(1, "sigmoid")', "binary_crossentropy"), tmp_path / "d.csv")


def test_a_table_may_be_separated_by_semicolons(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a;b;kind\n1;2;0\n3;4;1\n")
    assert loaded(graph_of("(2,)", "Output(2)"), tmp_path / "d.csv").inputs[0].tolist() == [[1, 2], [3, 4]]


def test_a_named_dataset_that_is_not_here_is_replaced_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    samples = loaded(PICTURES, "MNIST")
    assert samples.synthetic
    assert "MNIST is not on this machine and nothing is downloaded; synthetic data" in samples.told
    with pytest.raises(UsageError, match="no such file or folder"):
        loaded(PICTURES, "my_data")


# -- made-up data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input", "layers", "loss", "limit"),
    [
        ("(12,)", 'Dense(32, "relu") Output(4, "softmax")', "categorical_crossentropy", 0.7),
        ("(12,)", 'Dense(32, "relu") Output(1, "sigmoid")', "binary_crossentropy", 0.4),
        ("(12,)", 'Dense(32, "relu") Output(2)', "mse", 0.2),
        ("(10,)", 'Embedding(5000, 16) GlobalAveragePooling1D() Output(3, "softmax")', "categorical_crossentropy", 0.6),
        ("(10,)", 'Embedding(200, 32) Output(200, "softmax")', "sparse_categorical_crossentropy", 1.0),
        ("(8, 8, 1)", 'Conv2D(8, 3, "relu") Flatten() Output(4, "softmax")', "categorical_crossentropy", 0.7),
        ("(16,)", 'Dense(12, "relu") Output(16, "sigmoid")', "mse", 0.05),
        ("(6, 5)", 'LSTM(16) Output(3, "softmax")', "categorical_crossentropy", 0.7),
    ],
)
def test_made_up_data_can_be_learnt(input: str, layers: str, loss: str, limit: float) -> None:
    graph = graph_of(input, layers, loss, "epochs: 6 batch_size: 32")
    built = build(graph)
    done = train(built, synthesize(graph, built.loss, count=512), Options(), lambda text: None)
    assert done.history[-1]["loss"] < limit
    assert done.history[-1]["loss"] < done.history[0]["loss"]


def test_made_up_data_is_the_same_every_time_and_says_what_it_is() -> None:
    first, second = (synthesize(PICTURES, task_loss(PICTURES), count=8) for _ in range(2))
    assert np.array_equal(first.inputs[0], second.inputs[0])
    assert first.told.startswith("synthetic data: 8 made-up samples")


def test_validation_data_is_held_apart_and_training_is_repeatable() -> None:
    graph = graph_of("(4,)", "Output(2)", train="epochs: 2 batch_size: 8 validation_split: 0.25")
    built = build(graph)
    samples = synthesize(graph, built.loss, count=64)
    once, again = (train(built, samples, Options(seed=5), lambda text: None).history for _ in range(2))
    assert once == again
    assert set(once[0]) == {"epoch", "loss", "val_loss"}
