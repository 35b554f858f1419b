import torch
import torch.nn as nn
import torch.nn.functional as F


class TopOneMoE(nn.Module):
    def __init__(self, d, n_experts=6):
        super().__init__()
        self.gate = nn.Linear(d, n_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(n_experts)
        )

    def forward(self, x):
        probs = F.softmax(self.gate(x), dim=-1)
        weight, choice = probs.max(-1)
        out = torch.zeros(len(x), 1)
        for e, expert in enumerate(self.experts):
            rows = (choice == e).nonzero().squeeze(1)
            if len(rows) == 0:
                continue
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        load = F.one_hot(choice, len(self.experts)).float().mean(0)
        return out, len(self.experts) * (load * probs.mean(0)).sum()


torch.manual_seed(22)
corners = torch.randn(5, 4) * 2
slopes = torch.randn(5, 4)


def regime_batch(n):
    """Every small batch comes from two of the five regimes (one customer each)."""
    k = torch.randperm(5)[:2][torch.randint(0, 2, (n,))]
    x = corners[k] + 0.5 * torch.randn(n, 4)
    y = ((x - corners[k]) * slopes[k]).sum(1, keepdim=True) + torch.sin(k.float())[:, None]
    return x, y


moe = TopOneMoE(4)
opt = torch.optim.Adam(moe.parameters(), lr=1e-2)
window = []
for step in range(700):
    x, y = regime_batch(24)
    pred, balance = moe(x)
    loss = F.mse_loss(pred, y) + 0.01 * balance
    opt.zero_grad()
    loss.backward()
    opt.step()
    window.append(loss.item())
    if step % 100 == 99:
        print(f"step {step + 1} loss {sum(window[-100:]) / 100:.4f}")
with torch.no_grad():
    errs = []
    for _ in range(40):
        x, y = regime_batch(50)
        errs.append(F.mse_loss(moe(x)[0], y).item())
print(f"final mse {sum(errs) / len(errs):.4f}")
