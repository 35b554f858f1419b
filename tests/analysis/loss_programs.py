"""Small trainings, each with a mistake in its loss, and beside it the same training without."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from loss_batches import bright, clicks
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Program = Callable[[], None]


def run(
    model: nn.Module,
    batch: Callable[[], Batch],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int = 12,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    lr: float = 1e-2,
) -> None:
    moved = optimizer(model.parameters(), lr=lr)
    for _ in range(steps):
        x, y = batch()
        loss = loss_of(model(x), y)
        moved.zero_grad()
        loss.backward()
        moved.step()


def mlp(*last: nn.Module, out: int = 4, wide: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, wide), nn.ReLU(), nn.Linear(wide, out), *last)


def classes(n: int = 32) -> Batch:
    x = torch.randn(n, 6)
    return x, x[:, :4].argmax(1)


def numbers(n: int = 32) -> Batch:
    x = torch.randn(n, 6)
    return x, x[:, :1] * 2 + x[:, 1:2]


def tags(n: int = 32) -> Batch:
    x = torch.randn(n, 6)
    return x, (x[:, :4] > 0.3).float()


class Heads(nn.Module):
    """A head per tag, each squashed or not, joined side by side; or members whose votes are averaged."""

    def __init__(self, squash: Callable[[Tensor], Tensor], *, voting: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.squash, self.voting = squash, voting
        self.heads = nn.ModuleList(nn.Linear(6, 4 if voting else 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        made = [self.squash(head(x)) for head in self.heads]
        return torch.stack(made).mean(0) if self.voting else torch.cat(made, 1)


class Tokens(nn.Module):
    """An embedding, one attention written by hand, scores per position or of the mean."""

    def __init__(self, *, dim: int = -1, causal: bool = False, hide: str = "", pooled: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 16)
        self.positions = nn.Embedding(32, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 20)
        self.dim, self.causal, self.hide, self.pooled = dim, causal, hide, pooled

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
        if self.hide:
            hidden = ids == 0 if self.hide == "padding" else ids != 0
            scores = scores.masked_fill(hidden[:, None], -1e9)
        mixed = scores.softmax(self.dim) @ v
        return self.out(mixed.mean(1) if self.pooled else h + mixed)


class Bag(nn.Module):
    """The mean of the word vectors; with a mask, of the real words only."""

    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out, self.masked = nn.Embedding(20, 8), nn.Linear(8, 20), masked

    def forward(self, ids: Tensor) -> Tensor:
        h, real = self.embed(ids), (ids != 0).float()[..., None]
        return self.out((h * real).sum(1) / real.sum(1) if self.masked else h.mean(1))


def words() -> Batch:
    """Padded to another width each time."""
    return first_word(padded(length=int(torch.randint(9, 24, ()))))


class Reader(nn.Module):
    """A recurrent network with scores per position."""

    def __init__(self, *, both_ways: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.rnn = nn.GRU(8, 8, batch_first=True, bidirectional=both_ways)
        self.out = nn.Linear(16 if both_ways else 8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(ids))[0])


def text(n: int = 16, length: int = 10) -> Tensor:
    return torch.randint(1, 20, (n, length))


def padded(n: int = 16, length: int = 24, *, left: bool = False) -> Tensor:
    ids = text(n, length)
    lengths = torch.randint(3, 9, (n, 1))
    ids[torch.arange(length)[None] >= lengths] = 0
    return ids.flip(1) if left else ids


def next_tokens(moved: int = 1) -> Callable[[], Batch]:
    def batch() -> Batch:
        ids = text(16, 12)
        return ids[:, : 12 - moved] if moved else ids, ids[:, moved:]

    return batch


def per_token(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.transpose(1, 2), target)


def first_word(ids: Tensor) -> Batch:
    return ids, ids[:, 1] % 20


def notes() -> Batch:
    return first_word(padded())


def coins() -> Batch:
    return torch.randn(32, 6), torch.rand(32, 1).round()


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.spread, self.decoder = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.mean(x), self.spread(x)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp()), mean, logvar


def vae(sign: float) -> Program:
    def program() -> None:
        model = Vae()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(12):
            x = torch.randn(32, 6)
            made, mean, logvar = model(x)
            divergence = sign * 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp(), dim=1).mean()
            loss = (made - x).pow(2).sum(1).mean() + 0.1 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return program


def table(*, leaking: bool) -> Callable[[], Batch]:
    def batch() -> Batch:
        x = torch.randn(32, 5)
        y = x[:, 0] + x[:, 1] + 0.5 * torch.randn(32)
        return torch.cat([x, (3 * y + 1 if leaking else torch.randn(32))[:, None]], 1), y[:, None]

    return batch


def rare(share: float) -> Callable[[], Batch]:
    def batch() -> Batch:
        y = (torch.rand(64) < share).long()
        return torch.randn(64, 6) + 0.3 * y[:, None], y

    return batch


def species(n: int = 64) -> Batch:
    y = torch.randint(0, 5, (n,))
    return torch.randn(n, 6) + y[:, None] % 3, y.float()[:, None]


def stars(n: int = 64) -> Batch:
    x, y = species(n)
    return x, y + 1


def missing_marked(n: int = 64) -> Batch:
    x, y = numbers(n)
    y[:3] = -999.0
    return x, y


def left_padded(widths: tuple[int, ...]) -> Program:
    def program() -> None:
        model = Tokens(pooled=True, hide="padding")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(12):
            ids = padded(length=widths[step % len(widths)], left=True)
            loss = F.cross_entropy(model(ids), ids[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return program


def mean_square(out: Tensor, y: Tensor) -> Tensor:
    return ((out - y) ** 2).mean()


def pinball(out: Tensor, y: Tensor) -> Tensor:
    off = y - out
    return torch.maximum(0.8 * off, -0.2 * off).mean()


def simple(*arguments: object, **settings: object) -> Program:
    return lambda: run(*arguments, **settings)  # type: ignore[arg-type]


FAULTY: dict[str, list[Program]] = {
    "softmax_before_cross_entropy": [
        simple(mlp(nn.Softmax(1)), classes, F.cross_entropy),
        simple(mlp(), classes, lambda out, y: F.cross_entropy(out.softmax(1).clamp(1e-6), y, label_smoothing=0.1)),
    ],
    "sigmoid_before_bce_with_logits": [
        simple(mlp(nn.Sigmoid()), tags, F.binary_cross_entropy_with_logits),
        simple(mlp(), tags, lambda out, y: nn.BCEWithLogitsLoss()(torch.sigmoid(out), y)),
        simple(Heads(torch.sigmoid), tags, F.binary_cross_entropy_with_logits),
        simple(Heads(torch.sigmoid, voting=True), tags, F.binary_cross_entropy_with_logits),
    ],
    "missing_log_softmax": [
        simple(mlp(), classes, F.nll_loss, steps=20),
        simple(mlp(nn.Softmax(1)), classes, nn.NLLLoss()),
    ],
    "wrong_activation_last_layer": [
        simple(mlp(nn.ReLU(), out=1), numbers, F.mse_loss),
        simple(mlp(nn.Sigmoid(), out=1), numbers, mean_square),
        simple(mlp(nn.Softmax(1), out=1), coins, F.binary_cross_entropy),
        simple(mlp(nn.Tanh()), classes, F.cross_entropy),
    ],
    "broadcast_shape_bug": [
        simple(mlp(out=1), lambda: (numbers()[0], torch.randn(32)), mean_square),
        simple(mlp(out=1), numbers, lambda out, y: (y - out.squeeze()).abs().mean()),
        simple(mlp(out=1), lambda: (numbers()[0], torch.randn(32)), pinball),
        simple(mlp(out=1), numbers, lambda out, y: F.softplus(-y.sign() * out.squeeze()).mean()),
    ],
    "wrong_softmax_dim": [
        simple(mlp(nn.LogSoftmax(0)), classes, F.nll_loss),
        simple(Tokens(dim=1, pooled=True), lambda: first_word(text()), F.cross_entropy),
    ],
    "loss_sign_flipped": [
        simple(mlp(), classes, lambda out, y: -F.cross_entropy(out, y)),
        simple(mlp(), classes, lambda out, y: F.log_softmax(out, 1).gather(1, y[:, None]).mean()),
        vae(+1.0),
    ],
    "loss_reduction_scale": [
        simple(mlp(out=1), lambda: numbers(256), lambda out, y: F.mse_loss(out, y, reduction="sum"),
               optimizer=torch.optim.SGD, lr=0.05),
    ],
    "padding_not_masked": [
        simple(Reader(), lambda: (lambda ids: (ids, (ids * 7) % 20))(padded(64)), per_token, steps=30),
        simple(Bag(masked=False), words, F.cross_entropy),
    ],
    "target_leakage": [
        simple(mlp(out=1), table(leaking=True), F.mse_loss),
        simple(Reader(both_ways=True), next_tokens(), per_token),
    ],
    "missing_causal_mask": [simple(Tokens(), next_tokens(), per_token)],
    "attention_mask_inverted": [simple(Tokens(hide="text", pooled=True), notes, F.cross_entropy)],
    "label_shift_wrong": [
        simple(Reader(), next_tokens(2), per_token),
        simple(Tokens(causal=True), next_tokens(0), per_token),
    ],
    "position_ids_wrong": [left_padded((24, 20, 16))],
    "wrong_loss_for_labels": [
        simple(mlp(), tags, F.cross_entropy),
        simple(mlp(out=1), species, F.binary_cross_entropy_with_logits),
        simple(mlp(out=1), species, F.mse_loss),
    ],
    "unnormalised_target": [simple(mlp(out=1), lambda: (numbers()[0], 500 + 20 * torch.randn(32, 1)), F.mse_loss)],
    "class_imbalance": [simple(mlp(out=2), rare(0.05), F.cross_entropy, steps=70)],
    "corrupted_labels": [
        simple(mlp(), lambda: (torch.randn(32, 6), torch.zeros(32).long()), F.cross_entropy, steps=30),
        simple(mlp(out=1), missing_marked, F.mse_loss),
    ],
}  # fmt: skip

HEALTHY: dict[str, list[Program]] = {
    "softmax_before_cross_entropy": [
        simple(mlp(), classes, F.cross_entropy),
        simple(mlp(nn.LogSoftmax(1)), classes, F.cross_entropy),  # log-probabilities are scores, too
        simple(mlp(nn.Softmax(1)), classes, lambda out, y: F.nll_loss(out.log(), y)),
    ],
    "sigmoid_before_bce_with_logits": [
        simple(mlp(), tags, F.binary_cross_entropy_with_logits),
        simple(mlp(nn.Sigmoid()), tags, F.binary_cross_entropy),
        simple(Heads(lambda x: x), tags, F.binary_cross_entropy_with_logits),
        simple(Heads(torch.sigmoid, voting=True), tags, F.binary_cross_entropy),
    ],
    "missing_log_softmax": [
        simple(mlp(nn.LogSoftmax(1)), classes, F.nll_loss),
        simple(mlp(nn.LogSoftmax(1)), classes, lambda out, y: F.nll_loss((1 - out.exp()) ** 2 * out, y)),  # focal loss
    ],
    "wrong_activation_last_layer": [
        simple(mlp(nn.ReLU(), out=1), lambda: (torch.randn(32, 6), torch.rand(32, 1)), F.mse_loss),
        simple(mlp(nn.Tanh(), out=1), numbers, lambda out, y: F.mse_loss(9 * out, y)),
        simple(mlp(nn.Sigmoid()), tags, F.binary_cross_entropy),
    ],
    "broadcast_shape_bug": [
        simple(mlp(out=1), numbers, mean_square),
        simple(mlp(), lambda: (torch.randn(8, 6), torch.randn(8, 4)),  # quantiles: all pairs, but of one sample
               lambda out, y: (y[:, None] - out[:, :, None]).abs().mean()),
        simple(mlp(out=1), numbers, pinball),
        simple(mlp(nn.Flatten(0), out=1), numbers,  # how far two sets of numbers lie apart: all pairs on purpose
               lambda out, y: (out.view(-1, 1) - y.view(1, -1)).abs().mean()),
        simple(mlp(out=1), lambda: (torch.randn(32, 6), torch.randn(1, 32)),  # a weight for every pair
               lambda out, weights: (out * weights).square().mean()),
    ],
    "wrong_softmax_dim": [
        simple(Tokens(pooled=True), lambda: first_word(text()), F.cross_entropy),
        simple(mlp(nn.LogSoftmax(1)), classes, F.nll_loss),
    ],
    "loss_sign_flipped": [
        simple(mlp(), classes, lambda out, y: -F.log_softmax(out, 1).gather(1, y[:, None]).mean()),
        simple(mlp(), classes, lambda out, y: F.cross_entropy(out, y) - 0.1 * F.cross_entropy(out, (y + 1) % 4)),
        vae(-1.0),
    ],
    "loss_reduction_scale": [
        simple(mlp(), classes, nn.CrossEntropyLoss(reduction="sum")),
        simple(mlp(), classes, nn.CrossEntropyLoss(reduction="sum"), optimizer=torch.optim.SGD, lr=1e-3),
    ],
    "padding_not_masked": [
        simple(Reader(), lambda: (lambda ids: (ids, (ids * 7) % 20))(padded(64)),
               lambda out, y: F.cross_entropy(out.transpose(1, 2), y, ignore_index=0), steps=30),
        simple(Bag(masked=True), words, F.cross_entropy),
    ],
    "target_leakage": [
        simple(mlp(out=1), table(leaking=False), F.mse_loss),
        simple(mlp(out=1), lambda: (lambda x: (x, x[:, :1]))(torch.randn(32, 6)), F.mse_loss),  # to copy is the task
        simple(mlp(out=6), lambda: (lambda x: (x, x))(torch.randn(32, 6)), F.mse_loss),  # to rebuild it, too
    ],
    "missing_causal_mask": [
        simple(Tokens(causal=True), next_tokens(), per_token),
        simple(Tokens(), lambda: (text(16, 12), text(16, 12)), per_token),  # tags of words: both sides may be seen
    ],
    "attention_mask_inverted": [
        simple(Tokens(hide="padding", pooled=True), notes, F.cross_entropy),
    ],
    "label_shift_wrong": [
        simple(Reader(), next_tokens(), per_token),
        simple(Tokens(), lambda: (lambda ids: (ids, ids))(text(16, 12)), per_token),  # an autoencoder sees all of it
    ],
    "position_ids_wrong": [left_padded((24,)), simple(Tokens(pooled=True), notes, F.cross_entropy)],
    "wrong_loss_for_labels": [
        simple(mlp(), lambda: (lambda x, y: (x, F.one_hot(y, 4).float()))(*classes()), F.cross_entropy),
        simple(mlp(out=1), stars, F.mse_loss),
        simple(mlp(out=1), bright, F.mse_loss),
        simple(mlp(out=6), clicks, lambda out, y: F.cross_entropy(out, y)),
    ],
    "unnormalised_target": [
        simple(mlp(out=1), numbers, F.mse_loss),
        simple(mlp(out=1), lambda: (numbers()[0], 3 + torch.randn(32, 1)), mean_square),
    ],
    "class_imbalance": [
        simple(mlp(out=2), rare(0.4), F.cross_entropy, steps=70),
        simple(mlp(out=2), rare(0.05), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 19.0])), steps=70),
    ],
    "corrupted_labels": [
        simple(mlp(), classes, F.cross_entropy, steps=30),
        simple(mlp(), classes, lambda out, _: F.cross_entropy(  # the positive stands first
            torch.cat([(out * out).sum(1, keepdim=True), out @ out.T], 1), torch.zeros(32).long()), steps=30),
    ],
}  # fmt: skip
