import torch
import torch.nn as nn

torch.manual_seed(0)

# u'' + 0.4 u' + 4 u = 0,  u(0) = 1,  u'(0) = 0
t_col = torch.linspace(0, 3, 80).reshape(-1, 1).requires_grad_(True)
t0 = torch.zeros(1, 1, requires_grad=True)


class Field(nn.Module):
    def __init__(self, h=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))

    def forward(self, t):
        return self.net(t)


def grad(u, t):
    return torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]


u_net = Field()
opt = torch.optim.Adam(u_net.parameters(), lr=5e-3)
for it in range(1000):
    u = u_net(t_col)
    du = grad(u, t_col)
    residual = grad(du, t_col) + 0.4 * du + 4 * u
    u0 = u_net(t0)
    ic = (u0 - 1).pow(2).sum() + grad(u0, t0).pow(2).sum()
    loss = residual.pow(2).mean() + 20 * ic
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 200 == 0:
        print(f"it {it} loss {loss.item():.5f} ic {ic.item():.5f}")

w = (4 - 0.04) ** 0.5
with torch.no_grad():
    t = torch.linspace(0, 3, 200).reshape(-1, 1)
    exact = torch.exp(-0.2 * t) * (torch.cos(w * t) + 0.2 / w * torch.sin(w * t))
    print(f"final rmse {(u_net(t) - exact).pow(2).mean().sqrt().item():.5f}")
