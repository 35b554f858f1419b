import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(33)
ratings_user = torch.randint(0, 60, (3000,))
ratings_item = torch.randint(0, 40, (3000,))
taste, trait = torch.randn(60, 4), torch.randn(40, 4)
ratings = (taste[ratings_user] * trait[ratings_item]).sum(1) / 2 + 0.1 * torch.randn(3000)


class MatrixFactorization(nn.Module):
    def __init__(self, users, items, rank):
        super().__init__()
        self.user_factors = nn.Embedding(users, rank)
        self.item_factors = nn.Embedding(items, rank)
        nn.init.normal_(self.user_factors.weight, std=0.3)
        nn.init.normal_(self.item_factors.weight, std=0.3)

    def forward(self, user, item):
        return (self.user_factors(user) * self.item_factors(item)).sum(dim=1)


loader = DataLoader(TensorDataset(ratings_user, ratings_item, ratings), batch_size=100, shuffle=True)
model = MatrixFactorization(60, 40, 6)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
loss_fn = nn.MSELoss()
for epoch in range(20):
    epoch_loss = 0.0
    for user, item, rating in loader:
        optimizer.zero_grad()
        prediction = model(user, item)
        loss = loss_fn(prediction, rating)
        optimizer.step()
        epoch_loss += loss.item() / len(loader)
    if epoch % 4 == 0:
        print(f"epoch {epoch}: mse {epoch_loss:.4f}")
print(f"final mse {epoch_loss:.5f}")
