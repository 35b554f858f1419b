"""Does not compile."""
import torch

def train(model:
    return model
