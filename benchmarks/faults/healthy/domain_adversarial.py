import torch
import torch.nn as nn
import torch.nn.functional as F


class GradReverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.lam * grad, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 16), nn.ReLU())
        self.label = nn.Linear(16, 2)
        self.domain = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x, lam=0.0):
        f = self.feature(x)
        return self.label(f), self.domain(GradReverse.apply(f, lam)).squeeze(1)


torch.manual_seed(34)
w = F.normalize(torch.randn(6), dim=0)


def draw(n, target):
    core = torch.randn(n, 6)
    y = (core @ w > 0).long()
    # in the source domain the last columns follow the label, in the target domain they do not
    extra = torch.randn(n, 4) + (1.5 if target else 0.7 * (2 * y - 1).float()[:, None])
    return torch.cat([core, extra], 1), y


net = DANN()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
TOTAL = 700
for step in range(TOTAL):
    lam = min(1.0, 2 * step / TOTAL)
    xs, ys = draw(64, False)
    xt, _ = draw(64, True)
    cls, dom_s = net(xs, lam)
    _, dom_t = net(xt, lam)
    dom_loss = F.binary_cross_entropy_with_logits(dom_s, torch.zeros(64))
    dom_loss += F.binary_cross_entropy_with_logits(dom_t, torch.ones(64))
    cls_loss = F.cross_entropy(cls, ys)
    opt.zero_grad()
    (cls_loss + 0.5 * dom_loss).backward()
    opt.step()
    if step % 100 == 0:
        print(f"step {step} class {cls_loss.item():.4f} domain {dom_loss.item():.4f}")
with torch.no_grad():
    x, y = draw(1500, True)
    print(f"final target_acc {(net(x)[0].argmax(1) == y).float().mean().item():.4f}")
