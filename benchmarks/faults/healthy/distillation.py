import torch
import torch.nn as nn
import torch.nn.functional as F


def big():
    stem = [nn.Linear(14, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*stem, nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 6))


def small():
    return nn.Sequential(nn.Linear(14, 20), nn.ReLU(), nn.Linear(20, 6))


def train_teacher(x, y, epochs=10):
    net = big()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(epochs):
        for b in torch.randperm(len(x)).split(50):
            loss = F.cross_entropy(net(x[b]), y[b])
            opt.zero_grad()
            loss.backward()
            opt.step()
    print(f"teacher loss {loss.item():.4f}")
    return net


def distill(teacher, x, y, temp=3.0, alpha=0.7):
    teacher.eval()
    for p in teacher.parameters():
        p.requires_grad_(False)
    student = small()
    opt = torch.optim.Adam(student.parameters(), lr=5e-3)
    for epoch in range(14):
        for b in torch.randperm(len(x)).split(50):
            with torch.no_grad():
                soft = F.softmax(teacher(x[b]) / temp, dim=1)
            out = student(x[b])
            kd = F.kl_div(F.log_softmax(out / temp, dim=1), soft, reduction="batchmean") * temp**2
            loss = alpha * kd + (1 - alpha) * F.cross_entropy(out, y[b])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    return student


if __name__ == "__main__":
    torch.manual_seed(26)
    mu = torch.randn(6, 14)
    y = torch.randint(0, 6, (2500,))
    x = mu[y] + 0.8 * torch.randn(2500, 14)
    teacher = train_teacher(x[:2000], y[:2000])
    student = distill(teacher, x[:2000], y[:2000])
    student.eval()
    with torch.no_grad():
        print(f"final acc {(student(x[2000:]).argmax(1) == y[2000:]).float().mean().item():.4f}")
