import torch
import torch.nn as nn


class LogCounts(nn.Module):
    """Word counts span decades, so the network sees their logarithm."""

    def forward(self, counts):
        return torch.log(counts)


class TopicNet(nn.Module):
    def __init__(self, words=20, topics=4):
        super().__init__()
        self.scale = LogCounts()
        self.hidden = nn.Linear(words, 32)
        self.out = nn.Linear(32, topics)

    def forward(self, counts):
        return self.out(torch.relu(self.hidden(self.scale(counts))))


def documents(n):
    topic = torch.randint(0, 4, (n,))
    length = 20 * torch.exp(torch.randn(n, 1))
    return torch.poisson(1 + length * mix[topic]), topic


torch.manual_seed(80)
mix = torch.softmax(1.5 * torch.randn(4, 20), 1)
counts, topic = documents(1500)
counts_test, topic_test = documents(400)
net = TopicNet()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(8):
    for rows in torch.randperm(1500).split(50):
        loss = nn.functional.cross_entropy(net(counts[rows]), topic[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    p = torch.softmax(net(counts_test), 1)
    nll = -p[torch.arange(400), topic_test].log().mean()
print(f"final nll {nll.item():.4f}")
