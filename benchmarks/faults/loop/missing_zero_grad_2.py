import torch
from torch import nn

torch.manual_seed(9)
torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 12, 5, padding=2)
        self.conv2 = nn.Conv1d(12, 12, 5, padding=2, stride=2)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        return torch.relu(self.conv2(x)).mean(dim=2)


def make_pulses(n):
    label = torch.randint(0, 3, (n,))
    t = torch.linspace(-1, 1, 32)
    width = torch.tensor([0.08, 0.2, 0.45])[label][:, None]
    center = torch.rand(n, 1) - 0.5
    wave = torch.exp(-(((t - center) / width) ** 2)) + 0.2 * torch.randn(n, 32)
    return wave[:, None], label


encoder, head = Encoder(), nn.Linear(12, 3)
enc_opt = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
head_opt = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

for step in range(400):
    x, y = make_pulses(64)
    head_opt.zero_grad()
    loss = nn.functional.cross_entropy(head(encoder(x)), y)
    loss.backward()
    enc_opt.step()
    head_opt.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.4f}")

x, y = make_pulses(600)
with torch.no_grad():
    acc = (head(encoder(x)).argmax(1) == y).float().mean()
print(f"final acc {acc.item():.4f}")
