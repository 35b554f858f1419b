"""Programs and networks that several tests write down and run."""

FORGETFUL = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, :2].sum(1) > 0).long() + (x[:, 2] > 0.5).long()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(60):
    rows = torch.randint(0, 256, (64,))
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""  # no zero_grad; what is appended with four spaces is in its loop

NETWORK = """network Small {
  input: (8,)
  layers:
    Dense(4, activation="relu")
    Output(2, activation="softmax")
  loss: "categorical_crossentropy"
  optimizer: Adam(learning_rate=0.01)
  train { epochs: 1 batch_size: 16 }
}
"""
