import torch
from torch import nn


class LeakyMemory(nn.Module):
    """Online filter: a leaky trace of projected inputs, read out at every tick."""

    def __init__(self, n_in, n_hidden, n_out, decay=0.8):
        super().__init__()
        self.decay = decay
        self.inp = nn.Linear(n_in, n_hidden)
        self.readout = nn.Linear(n_hidden, n_out)

    def forward(self, x, trace):
        trace = torch.tanh(self.decay * trace + self.inp(x))
        return self.readout(trace), trace


def sensor(batch, n_in):
    signal = torch.randn(batch, n_in)
    past = torch.zeros(batch, n_in)
    while True:
        past = 0.8 * past + 0.2 * signal
        yield signal, past[:, :4]
        signal = torch.randn(batch, n_in)


torch.manual_seed(30)
model = LeakyMemory(8, 600, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
trace = torch.zeros(256, 600)
stream = sensor(256, 8)
for tick in range(90):
    x, y = next(stream)
    pred, trace = model(x, trace)
    loss = nn.functional.mse_loss(pred, y)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    if tick % 20 == 0:
        print(f"tick {tick} loss {loss.item():.5f}")
print(f"final loss {loss.item():.5f}")
