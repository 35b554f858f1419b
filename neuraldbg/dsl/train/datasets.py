"""`--dataset`: a path, or the name of a dataset that may lie on this machine. Nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.losses import Loss
from neuraldbg.dsl.train.formats import read_path
from neuraldbg.dsl.train.samples import Samples, fitted
from neuraldbg.dsl.train.synthetic import synthesize
from neuraldbg.errors import UsageError

_NAMED = {
    "mnist": ("MNIST/raw", "mnist", "MNIST"),
    "fashionmnist": ("FashionMNIST/raw", "fashion-mnist", "FashionMNIST"),
    "cifar10": ("cifar-10-batches-py", "cifar10", "CIFAR10"),
    "cifar100": ("cifar-100-python", "cifar100", "CIFAR100"),
    "imagenet": ("imagenet/train", "ImageNet/train", "imagenet"),
}


def samples_for(graph: Graph, loss: Loss, dataset: str | None, *, seed: int = 0) -> Samples:
    """The dataset asked for; made-up data where none is, or where a named one is not on this machine."""
    if dataset is None:
        return synthesize(graph, loss, seed=seed)
    shape = graph.inputs[0].shape
    path = Path(dataset).expanduser()
    if path.exists():
        return fitted(read_path(path, shape), graph, loss)
    key = dataset.lower().replace("-", "").replace("_", "")
    if key not in _NAMED:
        raise UsageError(f"--dataset {dataset}: no such file or folder, and no dataset of that name is known here")
    for folder in _places():
        for name in _NAMED[key]:
            if (folder / name).is_dir():
                return fitted(read_path(folder / name, shape), graph, loss)
    made = synthesize(graph, loss, seed=seed)
    told = f"{dataset} is not on this machine and nothing is downloaded; {made.told}"
    return Samples(made.inputs, made.targets, told, synthetic=True)


def _places() -> list[Path]:
    cache = os.environ.get("NEURAL_CACHE_DIR")
    return [*([Path(cache)] if cache else []), Path("data"), Path("."), Path.home() / ".cache" / "neural"]
