"""Trainings of many styles, each with what hooks of the test itself saw of every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

F = nn.functional
UPDATES = 7


@dataclass
class Truth:
    """What hooks of the test saw, by update: outputs and gradients of every layer, and gradients of weights."""

    layers: dict[str, nn.Module] = field(default_factory=dict)
    outputs: dict[int, dict[str, list[Tensor]]] = field(default_factory=dict)
    gradients: dict[int, dict[str, dict[int, Tensor]]] = field(default_factory=dict)
    step: int = 0
    alive: list[Any] = field(default_factory=list)  # the tape holds models and optimizers weakly

    def using(self, optimizer: Any) -> Any:
        self.alive.append(optimizer)
        return optimizer

    def follow(self, **models: nn.Module) -> None:
        for model_name, model in models.items():
            self.alive.append(model)
            for path, module in model.named_modules():
                if next(module.children(), None) is None:
                    name = f"{model_name}.{path}"
                    self.layers[name] = module
                    module.register_forward_hook(self._seeing(name))

    def _seeing(self, name: str) -> Callable[..., None]:
        def ran(_: Any, __: Any, output: Any) -> None:
            if not torch.is_grad_enabled():
                return
            left = output[0] if isinstance(output, tuple) else output
            step = self.step
            runs = self.outputs.setdefault(step, {}).setdefault(name, [])
            number = len(runs)
            runs.append(left.detach().clone())
            if left.requires_grad:
                kept = self.gradients.setdefault(step, {}).setdefault(name, {})
                left.register_hook(lambda gradient: kept.__setitem__(number, gradient.detach().clone()))

        return ran


Program = Callable[[Truth], None]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 3))


def batch(rows: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 8), torch.randint(0, 3, (rows,))


def plain(truth: Truth) -> None:
    model = mlp()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for truth.step in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def clipped_with_schedule(truth: Truth) -> None:
    model = mlp()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=UPDATES + 1)
    for truth.step in range(UPDATES):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        schedule.step()


def accumulated(truth: Truth) -> None:
    model = mlp()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.Adam(model.parameters()))
    for truth.step in range(UPDATES):
        for _ in range(3):
            x, y = batch()
            (F.cross_entropy(model(x), y) / 3).backward()
        optimizer.step()
        model.zero_grad()


def scaled(truth: Truth) -> None:
    model = mlp()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.Adam(model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for truth.step in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def cast_backward(truth: Truth) -> None:
    """The backward is called inside of autocast, of a model with layers that go on in another type."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.LayerNorm(16))
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for truth.step in range(UPDATES):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()


def adversarial(truth: Truth) -> None:
    maker = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(16, 1))
    truth.follow(maker=maker, judge=judge)
    first = truth.using(torch.optim.Adam(judge.parameters(), lr=1e-3))
    second = truth.using(torch.optim.Adam(maker.parameters(), lr=1e-3))
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    for turn in range(UPDATES):
        truth.step = 2 * turn
        judge.zero_grad()
        F.binary_cross_entropy_with_logits(judge(torch.randn(16, 8)), ones).backward()
        made = maker(torch.randn(16, 4))
        F.binary_cross_entropy_with_logits(judge(made.detach()), zeros).backward()
        first.step()
        truth.step = 2 * turn + 1
        maker.zero_grad()
        F.binary_cross_entropy_with_logits(judge(made), ones).backward()
        second.step()


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))


def siamese(truth: Truth) -> None:
    model = Twins()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.SGD(model.parameters(), lr=0.1))
    for truth.step in range(UPDATES):
        optimizer.zero_grad()
        F.pairwise_distance(model(torch.randn(8, 8)), model(torch.randn(8, 8))).mean().backward()
        optimizer.step()


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.spread = nn.Linear(8, 16), nn.Linear(16, 2), nn.Linear(16, 2)
        self.decoder = nn.Linear(2, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.relu(self.encoder(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * spread)), mean, spread


def variational(truth: Truth) -> None:
    model = Variational()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.Adam(model.parameters()))
    for truth.step in range(UPDATES):
        x = torch.randn(16, 8)
        again, mean, spread = model(x)
        loss = F.mse_loss(again, x) - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Speaker(nn.Module):
    """Returns what it says and, where it is told what to say, its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        said = self.head(self.body(self.words(tokens), mask=mask, is_causal=True))
        loss = None if targets is None else F.cross_entropy(said.flatten(0, 1), targets.flatten())
        return said, loss


def speaking(truth: Truth) -> None:
    model = Speaker()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for truth.step in range(UPDATES):
        tokens = torch.randint(0, 11, (4, 9))
        optimizer.zero_grad(set_to_none=True)
        _, loss = model(tokens[:, :-1], targets=tokens[:, 1:])
        assert loss is not None
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def convolved(truth: Truth) -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.RMSprop(model.parameters(), lr=1e-3))
    for truth.step in range(UPDATES):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()
        if truth.step == 3:
            model.eval()
            with torch.no_grad():
                model(torch.randn(8, 1, 8, 8))
            model.train()


def recurrent(truth: Truth) -> None:
    model = nn.LSTM(4, 8, batch_first=True)
    head = nn.Linear(8, 1)
    truth.follow(model=model, head=head)
    optimizer = truth.using(torch.optim.Adagrad([*model.parameters(), *head.parameters()], lr=0.05))
    for truth.step in range(UPDATES):
        optimizer.zero_grad()
        out, _ = model(torch.randn(6, 5, 4))
        head(out[:, -1]).square().mean().backward()
        optimizer.step()


def policy(truth: Truth) -> None:
    """Many passes, one backward."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.Adam(model.parameters(), lr=1e-2))
    for truth.step in range(UPDATES):
        state, losses = torch.zeros(1, 4), []
        for _ in range(6):
            choice = torch.distributions.Categorical(logits=model(state))
            action = choice.sample()
            losses.append(-choice.log_prob(action) * float(action))
            state = torch.randn(1, 4)
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()


def twice_over_one_graph(truth: Truth) -> None:
    model = mlp()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.SGD(model.parameters(), lr=0.1))
    for truth.step in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        (out.square().mean() * 0.1).backward()
        optimizer.step()


def penalised_outside(truth: Truth) -> None:
    """A term on the weights that no pass has seen, and gradients changed by hand."""
    model = mlp()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.SGD(model.parameters(), lr=0.1))
    for truth.step in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for each in model.parameters():
            each.grad.add_(each.detach(), alpha=0.01)  # type: ignore[union-attr]
        optimizer.step()


def sparse_table(truth: Truth) -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 1))
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.SGD(model.parameters(), lr=0.1))
    for truth.step in range(UPDATES):
        optimizer.zero_grad()
        model(torch.randint(0, 20, (16,))).square().mean().backward()
        optimizer.step()


def frozen_part(truth: Truth) -> None:
    model = mlp()
    model[0].requires_grad_(False)
    truth.follow(model=model)
    optimizer = truth.using(
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    )
    for truth.step in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_value_(parameters=model.parameters(), clip_value=0.01)
        optimizer.step()


def keyword_arguments(truth: Truth) -> None:
    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 3)

        def forward(self, *, inputs: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
            return {"logits": self.body(inputs["x"]) * scale}

    model = Keyed()
    truth.follow(model=model)
    optimizer = truth.using(torch.optim.SGD(model.parameters(), lr=0.1))
    for truth.step in range(UPDATES):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs={"x": x}, scale=2.0)["logits"], y).backward()
        optimizer.step()


PROGRAMS: list[Program] = [
    plain,
    clipped_with_schedule,
    accumulated,
    scaled,
    cast_backward,
    adversarial,
    siamese,
    variational,
    speaking,
    convolved,
    recurrent,
    policy,
    twice_over_one_graph,
    penalised_outside,
    sparse_table,
    frozen_part,
    keyword_arguments,
]
