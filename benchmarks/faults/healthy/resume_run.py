import os
import tempfile

import torch
import torch.nn as nn


def build():
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5))
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=12)
    return model, opt, sched


def run_epochs(model, opt, sched, data, epochs):
    x, y = data
    for epoch in epochs:
        for idx in torch.randperm(len(x)).split(50):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            opt.step()
        sched.step()
        print(f"epoch {epoch} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.5f}")


def main():
    torch.manual_seed(14)
    w = torch.randn(16, 5)
    x = torch.randn(2500, 16)
    y = (x @ w + (x**2) @ w.roll(1, 1) * 0.2).argmax(1)
    data = x[:2000], y[:2000]
    ckpt = os.path.join(tempfile.gettempdir(), f"run_{os.getpid()}.pt")

    model, opt, sched = build()
    run_epochs(model, opt, sched, data, range(6))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "epoch": 6}, ckpt)
    del model, opt, sched

    model, opt, sched = build()
    state = torch.load(ckpt)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    sched.load_state_dict(state["sched"])
    print(f"resuming at epoch {state['epoch']}")
    run_epochs(model, opt, sched, data, range(state["epoch"], 12))
    os.remove(ckpt)

    model.eval()
    with torch.no_grad():
        acc = (model(x[2000:]).argmax(1) == y[2000:]).float().mean().item()
    print(f"final acc {acc:.4f}")


if __name__ == "__main__":
    main()
