import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(28)
prototypes = torch.randn(6, 64)
labels = torch.randint(0, 6, (6000,))
features = prototypes[labels] + torch.randn(6000, 64)
loader = DataLoader(TensorDataset(features, labels), batch_size=100, shuffle=True)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
history = {"clean": [], "noisy": []}

for epoch in range(4):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # how sensitive is the model to input noise?
        noisy_loss = criterion(model(x + 0.5 * torch.randn_like(x)), y)
        history["clean"].append(loss.item())
        history["noisy"].append(noisy_loss)
    recent = sum(history["noisy"][-60:]) / 60
    print(f"epoch {epoch} clean {history['clean'][-1]:.4f} noisy {recent:.4f}")
print(f"final loss {history['clean'][-1]:.4f}")
