"""A training as a user writes it, for replay.py: a GPT in bf16 or a CNN. It keeps a few tensors to compare with.

python replayed.py gpt|cnn DEVICE UPDATES FILE [small]
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

KEPT = (20, 33, 57)  # updates of which everything is kept; of shorter runs what there is


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropped = 0.1 if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropped)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 8) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class CNN(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(inplace=True),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x).flatten(1)))


class Kept:
    """What the script itself sees of one layer; nothing waits for the device."""

    def __init__(self, layer: Any) -> None:
        self.step, self.layer, self.found = 0, layer, {}
        layer.register_forward_hook(self.ran)

    def ran(self, _: Any, args: Any, output: Tensor) -> None:
        if self.step not in KEPT:
            return
        self.keep("input", args[0])
        self.keep("output", output)
        self.keep("weight", self.layer.weight)
        output.register_hook(lambda gradient: self.keep("gradient", gradient))

    def keep(self, name: str, tensor: Tensor) -> None:
        self.found[f"{name} {self.step}"] = tensor.detach().clone()

    def before_update(self) -> None:
        if self.step in KEPT:
            self.keep("weight_gradient", self.layer.weight.grad)


def gpt(device: str, small: bool) -> tuple[nn.Module, Any, Any]:
    vocab, width, layers, batch, length = (97, 32, 2, 2, 16) if small else (4096, 512, 8, 16, 256)
    model = GPT(vocab, width, layers, length).to(device)

    def loss() -> Tensor:
        ids = torch.randint(0, vocab, (batch, length + 1), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return model, model.blocks[0].mlp[0], loss


def cnn(device: str, small: bool) -> tuple[nn.Module, Any, Any]:
    width, batch, side = (4, 4, 8) if small else (64, 128, 32)
    model = CNN(width).to(device)

    def loss() -> Tensor:
        images = torch.randn(batch, 3, side, side, device=device)
        return nn.functional.cross_entropy(model(images), torch.randint(0, 10, (batch,), device=device))

    return model, model.body[0], loss


def train(name: str, device: str, updates: int, file: str, small: bool) -> None:
    model, layer, loss_of = (gpt if name == "gpt" else cnn)(device, small)
    kept = Kept(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began = 0.0
    for kept.step in range(updates):
        if kept.step == updates // 3 and device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")  # whoever makes this loop wait now is an error
        if kept.step == updates // 3:
            began = time.perf_counter()
        optimizer.zero_grad()
        loss_of().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        kept.before_update()
        optimizer.step()
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    took = (time.perf_counter() - began) / (updates - updates // 3)
    torch.save({"truth": kept.found, "step_ms": took * 1e3}, file)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:] == ["small"])
