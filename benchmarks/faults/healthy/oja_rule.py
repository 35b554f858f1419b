import torch

torch.manual_seed(16)
torch.set_grad_enabled(False)

D, K = 12, 3
q, _ = torch.linalg.qr(torch.randn(D, D))
scales = torch.tensor([3.0, 2.2, 1.6] + [0.3] * (D - 3))


def batch(n):
    return (torch.randn(n, D) * scales) @ q.T


W = 0.1 * torch.randn(K, D)
eta = 5e-3
for step in range(1200):
    x = batch(16)
    y = x @ W.T
    # Sanger's generalised Hebbian rule
    lower = torch.tril(y.T @ y / len(x))
    W += eta * (y.T @ x / len(x) - lower @ W)
    if step % 200 == 0:
        x = batch(500)
        recon = (x @ W.T) @ W
        print(f"step {step} reconstruction loss {(x - recon).square().mean().item():.4f}")

align = torch.stack([(W[k] / W[k].norm() @ q[:, k]).abs() for k in range(K)])
print("alignment", [round(a, 4) for a in align.tolist()])
print(f"final alignment {align.mean().item():.4f}")
