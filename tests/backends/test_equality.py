"""The same weights give the same outputs on PyTorch, Keras and ONNX Runtime: to 1e-4 of the largest output."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuraldbg.dsl import parse_file
from neuraldbg.dsl.build.keras_script import build_keras
from neuraldbg.dsl.build.keras_weights import copy_weights
from neuraldbg.dsl.build.onnx_model import TOLERANCE, difference, run_onnx, to_onnx
from neuraldbg.dsl.build.torch_model import build
from neuraldbg.dsl.check import check
from neuraldbg.dsl.graph import Graph
from neuraldbg.dsl.train.synthetic import synthesize

PROGRAMS = Path(__file__).parents[1] / "programs" / "dsl"
KERAS = os.environ.get("KERAS_BACKEND", "tensorflow")
NETWORKS = [
    "autoencoder.neural:ConvAutoencoder",
    "cells.neural:Cells",
    "decoder_only.neural:DecoderOnly",
    "encoder_decoder.neural:EncoderDecoder",
    "five_networks.neural:C",
    "gan.neural:Generator",
    "gan.neural:Discriminator",
    "inception.neural:InceptionLike",
    "lstm_sentiment.neural:Sentiment",
    "merges.neural:Merges",
    "mobilenet.neural:MobileLike",
    "multi_input.neural:Mixed",
    "nested_macros.neural:Nested",
    "norms.neural:Norms",
    "patch_blocks.neural:PatchBlocks",
    "special_layers.neural:Capsules",
    "special_layers.neural:GraphNet",
    "squeezed.neural:Squeezed",
    "tabular.neural:Churn",
    "time_series.neural:Forecast",
    "two_texts.neural:TwoTexts",
    "unet.neural:UNetLike",
    "vae.neural:VAE",
    "video.neural:Video",
    "wavenet.neural:WaveLike",
]


@cache
def trained(network: str) -> tuple[Graph, Any, Any, Any]:
    """A model whose every weight has left its start, its inputs, and what PyTorch makes of them."""
    file, _, name = network.partition(":")
    graph = check(parse_file(PROGRAMS / file), only=name)[0][0]
    torch.manual_seed(0)
    built = build(graph, file)
    model = built.make()
    samples = synthesize(graph, built.loss, count=6)
    built.train(model, [[torch.as_tensor(a) for a in (*samples.inputs, samples.targets)]], epochs=1, report=str)
    with torch.no_grad():
        outputs = model.eval()(*(torch.as_tensor(each) for each in samples.inputs)).numpy()
    assert np.ptp(outputs) > 0  # a constant would agree with anything
    return graph, model, list(samples.inputs), outputs


@pytest.mark.parametrize("network", NETWORKS)
def test_keras_computes_what_pytorch_computes(network: str) -> None:
    graph, model, inputs, expected = trained(network)
    made = build_keras(graph, network, backend=KERAS).make()
    copy_weights(graph, model, made)
    outputs = np.asarray(made.predict_on_batch(inputs if len(inputs) > 1 else inputs[0]))
    assert difference(expected, outputs) < TOLERANCE


@pytest.mark.parametrize("network", NETWORKS)
def test_onnx_runtime_computes_what_pytorch_computes(network: str) -> None:
    graph, model, inputs, expected = trained(network)
    exported, _ = to_onnx(graph, model, inputs)
    assert difference(expected, run_onnx(graph, exported, inputs)) < TOLERANCE


def test_a_weight_that_differs_is_noticed() -> None:
    graph, model, inputs, expected = trained("tabular.neural:Churn")
    made = build_keras(graph, "tabular", backend=KERAS).make()
    copy_weights(graph, model, made)
    layer = made.layers[1]
    layer.set_weights([1.01 * each for each in layer.get_weights()])
    assert difference(expected, np.asarray(made.predict_on_batch(inputs[0]))) > TOLERANCE
