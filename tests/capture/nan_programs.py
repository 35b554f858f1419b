"""Small programs in which one operation goes wrong, each with what a search must say about it.

The line that is to be named ends in `# here`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
"""
LOOP = """
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(STEPS):
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    spoil(step, x, y)
    loss = criterion(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@dataclass(frozen=True)
class Program:
    text: str
    where: str
    op: str | None
    layer: str | None
    update: int
    cause: str | None

    @property
    def line(self) -> int | None:
        return next((n for n, line in enumerate(self.text.splitlines(), 1) if line.endswith("# here")), None)

    def run(self, folder: Path, scope: dict[str, Any] | None = None) -> dict[str, Any]:
        """In this process, as a file of its own; its variables, also in `scope` when it raises."""
        script = folder / "train.py"
        script.write_text(self.text)
        scope = {} if scope is None else scope
        scope |= {"__name__": "__main__", "__file__": str(script)}
        exec(compile(self.text, str(script), "exec"), scope)
        return scope


def _program(middle: str, where: str, op: str | None, layer: str | None, update: int, cause: str | None) -> Program:
    loop = LOOP.replace("STEPS", str(update + 3))
    return Program(HEAD + middle + loop, where, op, layer, update, cause)


PROGRAMS = {
    "log of zero in the model": _program(
        """
class Entropy(nn.Module):
    def forward(self, h):
        return torch.log(torch.relu(h))  # here
model = nn.Sequential(nn.Linear(8, 16), Entropy(), nn.Linear(16, 1))
criterion = nn.MSELoss()
def spoil(step, x, y): pass
""", "forward", "log", "1", 0, "log_of_zero"),
    "log of zero in the loss": _program(
        """
model = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
def spoil(step, x, y): x.mul_(1e4 if step == 27 else 1)
def criterion(p, y):
    t = (y > 0).float()
    one = t * torch.log(p)  # here
    return -(one + (1 - t) * torch.log1p(-p.clamp(max=0.99))).mean()
""", "loss", "log", None, 27, "log_of_zero"),
    "0/0 in one row": _program(
        """
class Standardise(nn.Module):
    def forward(self, x):
        c = x - x.mean(1, keepdim=True)
        return c / c.std(1, keepdim=True)  # here
model = nn.Sequential(Standardise(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
criterion = nn.MSELoss()
def spoil(step, x, y):
    if step == 26: x[3] = 1.0
""", "forward", "div", "0", 26, "division_by_zero"),
    "sqrt at zero in the model, backward": _program(
        """
class Length(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 16, bias=False)
    def forward(self, x):
        h = self.lin(x)
        return (h ** 2).sum(1, keepdim=True).sqrt()  # here
model = nn.Sequential(Length(), nn.Linear(1, 1))
criterion = nn.MSELoss()
def spoil(step, x, y):
    if step == 26: x[2] = 0
""", "backward", "sqrt", "0", 26, "undefined_gradient_at_zero"),
    "sqrt at zero in the loss, backward": _program(
        """
model = nn.Linear(8, 1)
def spoil(step, x, y):
    if step == 26: y.copy_(model(x).detach())
def criterion(p, y):
    gap = ((p - y) ** 2).sum(1)
    return torch.sqrt(gap).mean()  # here
""", "backward", "sqrt", None, 26, "undefined_gradient_at_zero"),
    "norm written by hand, backward": _program(
        """
class Unit(nn.Module):
    def forward(self, h):
        n = (h * h).sum(1, keepdim=True) ** 0.5  # here
        return h / (n + 1e-6)
model = nn.Sequential(nn.Linear(8, 4, bias=False), Unit(), nn.Linear(4, 1))
criterion = nn.MSELoss()
def spoil(step, x, y):
    if step == 26: x[2] = 0
""", "backward", "pow", "1", 26, "undefined_gradient_at_zero"),
    "exp overflow": _program(
        """
class Soft(nn.Module):
    def forward(self, z):
        e = torch.exp(z)  # here
        return e / e.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 5), Soft(), nn.Linear(5, 1))
criterion = nn.MSELoss()
def spoil(step, x, y): x.mul_(800 if step == 24 else 1)
""", "forward", "exp", "1", 24, "exp_overflow"),
    "float16 overflow": _program(
        """
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).half()
with torch.no_grad():
    model[2].weight.fill_(100)
def forward(x): return nn.Sequential.forward(model, x.half())
class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = model
    def forward(self, x):
        return self.m(x.half()).float()
inner, model = model, Half()
criterion = nn.MSELoss()
def spoil(step, x, y): x.mul_(200)
""", "forward", "addmm", "m.2", 0, "fp16_overflow"),
    "fully masked attention row": _program(
        """
class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(2, 4), nn.Linear(2, 4)
    def forward(self, x):
        t = x.view(-1, 4, 2)
        pad = t[:, :, 0] == 0
        s = (self.q(t) @ self.k(t).transpose(1, 2)).masked_fill(pad[:, None], float("-inf"))
        return (torch.softmax(s, -1) @ t).flatten(1)  # here
model = nn.Sequential(Attend(), nn.Linear(8, 1))
criterion = nn.MSELoss()
def spoil(step, x, y):
    x[1, 2] = 0
    if step == 25: x[4] = 0
""", "forward", "softmax", "0", 25, "fully_masked_attention"),
    "a NaN in the batch": _program(
        """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
criterion = nn.MSELoss()
def spoil(step, x, y):
    if step == 23: x[3, 2] = float("nan")
""", "input", None, None, 23, "nan_in_input"),
    "a NaN in the target": _program(
        """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
criterion = nn.MSELoss()
def spoil(step, x, y):
    if step == 23: y[3] = float("nan")
""", "input", None, None, 23, "nan_in_input"),
    "the mean of nothing": _program(
        """
model = nn.Linear(8, 1)
def spoil(step, x, y):
    if step == 22: y.sub_(100)
def criterion(p, y):
    return (p - y)[y > 0].pow(2).mean()  # here
""", "loss", "mean", None, 22, "division_by_zero"),
}  # fmt: skip

EXPLODING = Program(
    HEAD
    + """
model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=5.0)
for step in range(8):
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "forward",
    "addmm",
    "1",
    4,
    None,
)
