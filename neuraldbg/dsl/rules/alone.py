"""Arguments that are wrong whatever the shapes: for the layers behind one that breaks, so that one run shows all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from neuraldbg.dsl.catalogue import CUSTOM, known_arguments
from neuraldbg.dsl.model import Layer, Reference
from neuraldbg.dsl.rules.use import Use, WrongArgument

_WHOLE: Final = ("units", "filters", "num_heads", "heads", "ff_dim", "key_dim", "input_dim", "output_dim", "num_layers")
_RATES: Final = ("rate", "dropout", "recurrent_dropout")
_NOT_APPLIED: Final[dict[str, tuple[Any, ...]]] = {  # with the values that ask for nothing
    "bias_initializer": ("zeros",),
    "gamma_initializer": ("ones",),
    "beta_initializer": ("zeros",),
    "recurrent_initializer": ("orthogonal",),
    "recurrent_activation": ("sigmoid",),
    "data_format": ("channels_last",),
    "dtype": ("float32",),
    "use_attention_mask": (),
    **dict.fromkeys(
        "bias_regularizer recurrent_regularizer activity_regularizer embeddings_regularizer kernel_constraint "
        "bias_constraint weights stateful go_backwards noise_shape attention_axes".split(),
        (),
    ),
}
_UNREAD: Final = frozenset({CUSTOM, "DynamicLayer", "QuantumLayer", "PositionalEncoding"})


def wrong_arguments(layer: Layer) -> Iterator[str]:
    """What its rule would refuse without looking at its input."""
    if layer.type in _UNREAD:
        return
    use, known = Use(layer, ((),)), known_arguments(layer.type)
    readers = [(name, use.integer) for name in _WHOLE] + [(name, use.rate) for name in _RATES]
    for name, read in [*readers, ("activation", use.activation)]:
        if name in known and layer.params.get(name) is not None:
            try:
                read(name)
            except WrongArgument as error:
                yield str(error)


def not_applied(layer: Layer) -> Iterator[str]:
    """Arguments of Keras that are read and change nothing here."""
    known = known_arguments(layer.type)
    for name, idle in _NOT_APPLIED.items():
        given = layer.params.get(name)
        plain = given.text if isinstance(given, Reference) else given
        if name in known and plain not in (None, False, *idle):
            yield f"{name} is not applied"
