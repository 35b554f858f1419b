import torch
import torch.nn as nn
from torch.distributions import Normal


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.tensor(-0.5))

    def dist(self, obs):
        return Normal(self.mean(obs).squeeze(-1), self.log_std.exp())


def payoff(obs, u):
    return 1.0 - (u - 0.8 * obs[:, 0] + 0.5 * obs[:, 1].tanh()).abs()


def ppo_epoch(net, opt, batch, clip=0.2):
    obs, u, old_logp, advantages = batch
    for idx in torch.randperm(len(obs)).split(64):
        dist = net.dist(obs[idx])
        ratio = (dist.log_prob(u[idx]) - old_logp[idx]).exp()
        adv = advantages[idx]
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv)
        loss = surrogate.mean() - 0.001 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    torch.manual_seed(31)
    net = Controller()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    history = []
    for it in range(60):
        obs = torch.randn(256, 2)
        with torch.no_grad():
            dist = net.dist(obs)
            u = dist.sample()
            old = dist.log_prob(u)
        r = payoff(obs, u)
        adv = (r - r.mean()) / (r.std() + 1e-6)
        for _ in range(2):
            loss = ppo_epoch(net, opt, (obs, u, old, adv))
        history.append(r.mean().item())
        if it % 10 == 0:
            print(f"iter {it} payoff {history[-1]:.3f} loss {loss:+.4f}")
    print(f"final payoff {sum(history[-10:]) / 10:.4f}")


if __name__ == "__main__":
    main()
