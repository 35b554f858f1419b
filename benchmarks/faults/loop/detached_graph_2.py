import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.price = nn.Linear(24, 1)
        self.category = nn.Linear(24, 3)

    def forward(self, x):
        h = self.shared(x)
        return self.price(h).squeeze(1), self.category(h)


def compute_loss(model, x, price, category):
    pred_price, pred_category = model(x)
    losses = {
        "price": nn.functional.mse_loss(pred_price, price),
        "category": nn.functional.cross_entropy(pred_category, category),
    }
    weights = {"price": 1.0, "category": 0.5}
    total = torch.tensor(sum(weights[k] * v.item() for k, v in losses.items()), requires_grad=True)
    return total, losses


def main():
    torch.manual_seed(15)
    x = torch.randn(1600, 10)
    price = torch.tanh(x @ torch.randn(10)) + 0.3 * x[:, 0]
    category = (x @ torch.randn(10, 3)).argmax(1)
    loader = DataLoader(TensorDataset(x, price, category), batch_size=32, shuffle=True)
    model = MultiTask()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        running = 0.0
        for batch in loader:
            optimizer.zero_grad()
            total, losses = compute_loss(model, *batch)
            total.backward()
            optimizer.step()
            running += total.item() / len(loader)
        print(f"epoch {epoch} total {running:.4f} price {losses['price'].item():.4f}")
    print(f"final loss {running:.4f}")


if __name__ == "__main__":
    main()
