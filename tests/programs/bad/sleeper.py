"""Trains for ever, one line every ten steps, until something stops it."""
import time

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1))
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        print("step", step, f"{loss.item():.6f}", flush=True)
    time.sleep(0.001)
