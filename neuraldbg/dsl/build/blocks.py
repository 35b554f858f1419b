"""Layers that PyTorch does not have ready. `neural compile` writes the ones it needs into the file it makes, so each
stands by itself: nothing but torch, nn and F, and no other class of this file."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    """Attention with its own width per head, as in Keras."""

    def __init__(self, width: int, memory: int, heads: int, key: int, value: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.query = nn.Linear(width, heads * key, bias=bias)
        self.key = nn.Linear(memory, heads * key, bias=bias)
        self.value = nn.Linear(memory, heads * value, bias=bias)
        self.out = nn.Linear(heads * value, width, bias=bias)

    def forward(self, x: Tensor, memory: Tensor | None = None, causal: bool = False) -> Tensor:
        seen = x if memory is None else memory
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(seen), self.value(seen))
        )
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class PositionalEncoding(nn.Module):
    """Adds sines and cosines of the position."""

    table: Tensor

    def __init__(self, length: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        position = torch.arange(length).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(length, width)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate)[:, : width // 2]
        self.register_buffer("table", table)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(x + self.table[: x.shape[1]])
        return out


class LearnedPositions(nn.Module):
    """Adds a vector of its own to every position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class GaussianNoise(nn.Module):
    """Adds noise while training."""

    def __init__(self, stddev: float) -> None:
        super().__init__()
        self.stddev = stddev

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) * self.stddev if self.training else x


class SqueezeExcitation(nn.Module):
    """Weighs channels by what the whole input holds of them. Channels first."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        whole = x.flatten(2).mean(-1)
        weight: Tensor = torch.sigmoid(self.excite(torch.relu(self.squeeze(whole))))
        return x * weight.reshape(*weight.shape, *(1,) * (x.dim() - 2))


class Inception(nn.Module):
    """Windows of 1, 3 and 5 and a pool, side by side. Channels first."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Conv2d(channels, filters, k, padding=k // 2) for k in (1, 3, 5))
        self.pooled = nn.Conv2d(channels, filters, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = [tower(x) for tower in self.towers]
        pool = F.max_pool2d(x, 3, stride=1, padding=1)
        return torch.relu(torch.cat([*parts, self.pooled(pool)], 1))


class Capsules(nn.Module):
    """Vectors whose lengths lie below 1."""

    def __init__(self, features: int, number: int, width: int) -> None:
        super().__init__()
        self.number = number
        self.project = nn.Linear(features, number * width)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.project(x.flatten(1)).unflatten(-1, (self.number, -1))
        squared = vectors.square().sum(-1, keepdim=True)
        squashed: Tensor = vectors * squared / (1 + squared) / (squared + 1e-8).sqrt()
        return squashed


class GraphConv(nn.Module):
    """Mixes nodes by weights of their own, then features."""

    def __init__(self, nodes: int, features: int, units: int) -> None:
        super().__init__()
        self.joined = nn.Parameter(torch.zeros(nodes, nodes))
        self.project = nn.Linear(features, units)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.softmax(self.joined, -1) @ self.project(x)
        return out


class GraphAttention(nn.Module):
    """Every node attends to all nodes."""

    def __init__(self, width: int, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.parts = nn.ModuleList(nn.Linear(width, units * heads) for _ in range(3))
        self.out = nn.Linear(units * heads, units)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.parts)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class ConvRecurrent(nn.Module):
    """LSTM or GRU over images: (batch, time, height, width, channels), the state keeps the size of the image."""

    def __init__(self, kind: str, channels: int, filters: int, kernel: tuple[int, int], sequences: bool) -> None:
        super().__init__()
        self.kind, self.filters, self.sequences = kind, filters, sequences
        gates = 4 if kind == "LSTM" else 3
        self.gates = nn.Conv2d(channels + filters, gates * filters, kernel, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        frames = x.permute(1, 0, 4, 2, 3)
        state = frames.new_zeros(frames.shape[1], self.filters, *frames.shape[3:])
        memory = state
        outputs = []
        for frame in frames:
            a, b, c, *d = self.gates(torch.cat((frame, state), 1)).chunk(4 if self.kind == "LSTM" else 3, 1)
            if self.kind == "LSTM":
                memory = torch.sigmoid(a) * memory + torch.sigmoid(b) * torch.tanh(c)
                state = torch.sigmoid(d[0]) * torch.tanh(memory)
            else:
                keep = torch.sigmoid(a)
                state = keep * state + (1 - keep) * torch.tanh(c * torch.sigmoid(b))
            outputs.append(state)
        return torch.stack(outputs, 1).permute(0, 1, 3, 4, 2) if self.sequences else state.permute(0, 2, 3, 1)


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)


class LogCosh(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        gap = outputs - targets
        return (gap + F.softplus(-2 * gap) - math.log(2.0)).mean()


class KLDivergence(nn.Module):
    """Between probabilities."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.kl_div(outputs.clamp(min=1e-7).log(), targets, reduction="batchmean")


class CosineLoss(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -F.cosine_similarity(outputs, targets, dim=-1).mean()


class Hinge(nn.Module):
    """Of targets 0 and 1."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - (2 * targets - 1) * outputs).clamp(min=0).mean()
