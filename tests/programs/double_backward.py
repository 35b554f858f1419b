"""A Wasserstein critic with gradient penalty: autograd.grad(create_graph=True) inside the loss, two critic steps each."""
import hashlib
import json

import torch
from torch import autograd, nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, x):
        return self.net(x)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, z):
        return self.net(z)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    gradients = autograd.grad(
        outputs=scores, inputs=mixed, grad_outputs=torch.ones_like(scores), create_graph=True, retain_graph=True
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(23)
    critic, generator = Critic(), Generator()
    critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    gen_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    history = []
    for _ in range(12):
        for _ in range(2):
            real = torch.randn(16, 2) * 0.3 + torch.tensor([1.0, -1.0])
            with torch.no_grad():
                fake = generator(torch.randn(16, 4))
            critic_loss = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake)
            critic_opt.zero_grad()
            critic_loss.backward()
            critic_opt.step()
            history.append(critic_loss.item())
        gen_loss = -critic(generator(torch.randn(16, 4))).mean()
        gen_opt.zero_grad()
        gen_loss.backward()
        gen_opt.step()
        history.append(gen_loss.item())

    digest = hashlib.sha256()
    for net in (critic, generator):
        for value in net.state_dict().values():
            digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
