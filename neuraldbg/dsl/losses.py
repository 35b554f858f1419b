"""The losses of the language and what they ask of a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from neuraldbg.dsl.model import Network


@dataclass(frozen=True, slots=True)
class Loss:
    name: str  # cross_entropy, binary_cross_entropy, mse, ...
    kind: str  # what a target is: classes, binary, values
    assumed: bool = False  # the file names none, or one nobody knows

    @property
    def cross_entropy(self) -> bool:
        return self.name == "cross_entropy"


LOSSES: Final[dict[str, Loss]] = {
    "cross_entropy": Loss("cross_entropy", "classes"),
    "binary_cross_entropy": Loss("binary_cross_entropy", "binary"),
    "mse": Loss("mse", "values"),
    "mae": Loss("mae", "values"),
    "huber": Loss("huber", "values"),
    "log_cosh": Loss("log_cosh", "values"),
    "kl_divergence": Loss("kl_divergence", "values"),
    "poisson": Loss("poisson", "values"),
    "cosine": Loss("cosine", "values"),
    "hinge": Loss("hinge", "values"),
}
_NAMES: Final = {
    "categoricalcrossentropy": "cross_entropy",
    "sparsecategoricalcrossentropy": "cross_entropy",
    "crossentropy": "cross_entropy",
    "crossentropyloss": "cross_entropy",
    "softmaxcrossentropy": "cross_entropy",
    "nll": "cross_entropy",
    "nllloss": "cross_entropy",
    "binarycrossentropy": "binary_cross_entropy",
    "bce": "binary_cross_entropy",
    "bceloss": "binary_cross_entropy",
    "bcewithlogits": "binary_cross_entropy",
    "meansquarederror": "mse",
    "mseloss": "mse",
    "mse": "mse",
    "l2": "mse",
    "meanabsoluteerror": "mae",
    "mae": "mae",
    "l1": "mae",
    "l1loss": "mae",
    "huber": "huber",
    "huberloss": "huber",
    "smoothl1": "huber",
    "logcosh": "log_cosh",
    "kldivergence": "kl_divergence",
    "kld": "kl_divergence",
    "kullbackleiblerdivergence": "kl_divergence",
    "poisson": "poisson",
    "cosinesimilarity": "cosine",
    "cosine": "cosine",
    "hinge": "hinge",
}


def known_loss(name: str) -> Loss | None:
    key = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    found = _NAMES.get(key)
    return LOSSES[found] if found else None


def loss_names() -> list[str]:
    return [
        "mse",
        "mae",
        "huber",
        "binary_crossentropy",
        "categorical_crossentropy",
        "sparse_categorical_crossentropy",
        "log_cosh",
        "kl_divergence",
        "poisson",
        "cosine_similarity",
        "hinge",
    ]


def loss_of(network: Network, last_activation: str | None) -> Loss:
    """The loss of a network; where it names none that is known, the one its last activation suggests."""
    found = None if network.loss is None else known_loss(network.loss.name)
    if found is not None:
        return found
    guess = {"softmax": "cross_entropy", "log_softmax": "cross_entropy", "sigmoid": "binary_cross_entropy"}
    loss = LOSSES[guess.get(last_activation or "", "mse")]
    return Loss(loss.name, loss.kind, assumed=True)
