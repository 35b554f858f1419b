import torch
import torch.nn as nn

torch.manual_seed(30)
T, CHUNK, STREAMS = 1200, 20, 16

# noisy AR process with two periods, one long stream per row
t = torch.arange(T + 1).float()
phase = 6.28 * torch.rand(STREAMS, 2)
series = torch.sin(0.21 * t + phase[:, :1]) + 0.5 * torch.sin(0.57 * t + phase[:, 1:])
series = (series + 0.02 * torch.randn(STREAMS, T + 1)).unsqueeze(-1)

rnn = nn.LSTM(1, 32, batch_first=True)
readout = nn.Linear(32, 1)
params = list(rnn.parameters()) + list(readout.parameters())
opt = torch.optim.Adam(params, lr=1e-2)

for epoch in range(3):
    state, losses = None, []
    for s in range(0, T, CHUNK):
        xb, yb = series[:, s : s + CHUNK], series[:, s + 1 : s + CHUNK + 1]
        h, state = rnn(xb, state)
        state = tuple(v.detach() for v in state)
        loss = (readout(h) - yb).square().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        losses.append(loss.item())
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.5f}")
print(f"final mse {sum(losses[-10:]) / 10:.5f}")
