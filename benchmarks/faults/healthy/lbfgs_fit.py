import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(2)

x = torch.linspace(-3, 3, 120).unsqueeze(1)
y = torch.sin(2 * x) * torch.exp(-0.2 * x**2) + 0.02 * torch.randn_like(x)

model = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=20, history_size=20, line_search_fn="strong_wolfe")
evals = 0


def closure():
    global evals
    evals += 1
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for k in range(15):
    loss = optimizer.step(closure)
    if k % 3 == 0:
        print(f"outer {k} loss {loss.item():.6f} evaluations {evals}")

with torch.no_grad():
    print(f"final mse {torch.nn.functional.mse_loss(model(x), y).item():.6f}")
