import torch

torch.manual_seed(100)

# full-batch gradient descent on a fixed data set, no nn and no optim
N, D, H = 256, 3, 32
X = torch.randn(N, D)
true_w = torch.randn(D, 1) / D**0.5
y = torch.sin(2 * X @ true_w) + 0.05 * torch.randn(N, 1)

w1 = (torch.randn(D, H) * (2 / D) ** 0.5).requires_grad_()
b1 = torch.zeros(H, requires_grad=True)
w2 = (torch.randn(H, 1) * (1 / H) ** 0.5).requires_grad_()
b2 = torch.zeros(1, requires_grad=True)
params = [w1, b1, w2, b2]
lr = 0.2

for t in range(1500):
    hidden = torch.tanh(X @ w1 + b1)
    y_pred = hidden @ w2 + b2
    loss = (y_pred - y).pow(2).mean()
    if t % 250 == 0:
        print(t, loss.item())
    loss.backward()
    with torch.no_grad():
        for p in params:
            p -= lr * p.grad
            p.grad = None

print(f"final mse {loss.item():.5f}")
