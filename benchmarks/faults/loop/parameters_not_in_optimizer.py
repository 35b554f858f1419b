import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, dim_in, dim_out=16):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim_in, 64), nn.ReLU(), nn.Linear(64, dim_out))

    def forward(self, x):
        return nn.functional.normalize(self.mlp(x), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.image_tower = Tower(30)
        self.text_tower = Tower(20)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        return self.log_scale.exp() * self.image_tower(image) @ self.text_tower(text).t()


torch.manual_seed(13)
to_image, to_text = torch.randn(6, 30), torch.randn(6, 20)


def pairs(n):
    concept = torch.randn(n, 6)
    image = torch.sin(concept @ to_image) + 0.1 * torch.randn(n, 30)
    text = torch.sin(concept @ to_text) + 0.1 * torch.randn(n, 20)
    return image, text


model = DualEncoder()
optimizer = torch.optim.AdamW(
    [
        {"params": model.image_tower.parameters(), "lr": 2e-3},
        {"params": [model.log_scale], "lr": 1e-2, "weight_decay": 0.0},
    ]
)
for step in range(500):
    image, text = pairs(64)
    logits = model(image, text)
    labels = torch.arange(len(logits))
    loss = (nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.t(), labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} contrastive loss {loss.item():.4f}")

image, text = pairs(64)
with torch.no_grad():
    recall = (model(image, text).argmax(1) == torch.arange(64)).float().mean().item()
print(f"final recall {recall:.4f}")
