"""Interrupted from the keyboard in the middle of training."""
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
    optimizer.step()
    if step == 4:
        raise KeyboardInterrupt
