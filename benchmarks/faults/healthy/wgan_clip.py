import torch
import torch.nn as nn


def mlp(i, o, h=32):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


def real_batch(n):
    side = (torch.rand(n, 1) < 0.4).float()
    return 2 * side - 1 + 0.3 * torch.randn(n, 1)


def w1(a, b):
    return (a.flatten().sort()[0] - b.flatten().sort()[0]).abs().mean().item()


def main(iters=220, n_critic=5, clip=0.1, bs=128):
    torch.manual_seed(7)
    gen, critic = mlp(2, 1), mlp(1, 1)
    g_opt = torch.optim.RMSprop(gen.parameters(), lr=2e-3)
    c_opt = torch.optim.RMSprop(critic.parameters(), lr=2e-3)
    for it in range(iters):
        for _ in range(n_critic):
            with torch.no_grad():
                fake = gen(torch.randn(bs, 2))
            loss_c = critic(fake).mean() - critic(real_batch(bs)).mean()
            c_opt.zero_grad()
            loss_c.backward()
            c_opt.step()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-clip, clip)

        loss_g = -critic(gen(torch.randn(bs, 2))).mean()
        g_opt.zero_grad()
        loss_g.backward()
        g_opt.step()
        if it % 40 == 0:
            print(f"iter {it} critic {loss_c.item():.4f} generator {loss_g.item():.4f}")
    with torch.no_grad():
        return w1(gen(torch.randn(4000, 2)), real_batch(4000))


if __name__ == "__main__":
    print(f"final w1 {main():.4f}")
