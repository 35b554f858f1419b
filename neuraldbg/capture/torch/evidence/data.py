"""What is known of the data: which set the batches come from, which rows repeat, how large inputs and targets are."""

from __future__ import annotations

from typing import Any

from neuraldbg.capture.torch.evidence.data_inputs import Inputs
from neuraldbg.capture.torch.evidence.data_loaders import LoaderRows
from neuraldbg.capture.torch.evidence.data_losses import LossCalls
from neuraldbg.capture.torch.evidence.data_sets import DataSets


class DataEvidence:
    """The parts share what they know: evaluation losses ask whether a row was trained on, data sets ask for targets."""

    def __init__(self, capture: Any) -> None:
        self.sets = DataSets(capture)
        self.losses = LossCalls(capture, self.sets)
        self.loaders = LoaderRows(capture)
        self.inputs = Inputs(capture)
