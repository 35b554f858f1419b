import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset


def make_data(n=2000):
    x = torch.rand(n, 6) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3].abs() + 0.1 * torch.randn(n)
    return x, y.unsqueeze(1)


def block(i, o):
    return nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU()


def train():
    torch.manual_seed(12)
    x, y = make_data()
    loader = DataLoader(TensorDataset(x[:1600], y[:1600]), batch_size=40, shuffle=True)
    model = nn.Sequential(*block(6, 64), *block(64, 64), nn.Linear(64, 1))
    swa_model = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    swa_scheduler = SWALR(optimizer, swa_lr=0.03, anneal_epochs=2)
    loss_fn = nn.MSELoss()
    for epoch in range(20):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(xb), yb)
            loss.backward()
            optimizer.step()
        if epoch >= 12:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        if epoch % 4 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    update_bn(loader, swa_model)
    swa_model.eval()
    with torch.no_grad():
        return loss_fn(swa_model(x[1600:]), y[1600:]).item()


if __name__ == "__main__":
    print(f"final mse {train():.4f}")
