"""A graph convolutional network: the whole graph is one batch and the adjacency matrix is sparse."""
import argparse
import hashlib
import json
import math

import torch
import torch.nn.functional as F
from torch import nn


class GraphConv(nn.Module):
    def __init__(self, input_dim, output_dim):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(input_dim, output_dim))
        self.bias = nn.Parameter(torch.zeros(output_dim))
        bound = 1 / math.sqrt(output_dim)
        nn.init.uniform_(self.kernel, -bound, bound)

    def forward(self, input_tensor, adj_mat):
        return torch.sparse.mm(adj_mat, torch.mm(input_tensor, self.kernel)) + self.bias


class GCN(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, dropout_p=0.1):
        super().__init__()
        self.gc1 = GraphConv(input_dim, hidden_dim)
        self.gc2 = GraphConv(hidden_dim, output_dim)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input_tensor, adj_mat):
        x = self.dropout(F.relu(self.gc1(input_tensor, adj_mat)))
        return F.log_softmax(self.gc2(x, adj_mat), dim=1)


def make_graph(nodes, classes):
    labels = torch.arange(nodes) % classes
    features = F.one_hot(labels, 12).float() + 0.8 * torch.randn(nodes, 12)
    rows = torch.cat([torch.arange(nodes), torch.arange(nodes)])
    cols = torch.cat([torch.arange(nodes), (torch.arange(nodes) + classes) % nodes])
    edges = torch.stack([rows, cols])
    adj = torch.sparse_coo_tensor(edges, torch.full((2 * nodes,), 0.5), (nodes, nodes), check_invariants=True)
    return features, labels, adj.coalesce()


def train_iter(model, optimizer, criterion, data, mask):
    features, target, adj_mat = data
    model.train()
    optimizer.zero_grad()
    output = model(features, adj_mat)
    loss = criterion(output[mask], target[mask])
    loss.backward()
    optimizer.step()
    return loss.item()


def test(model, criterion, data, mask):
    features, target, adj_mat = data
    model.eval()
    with torch.no_grad():
        output = model(features, adj_mat)
        loss = criterion(output[mask], target[mask])
        accuracy = (output[mask].argmax(dim=1) == target[mask]).float().mean()
    return loss.item(), accuracy.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--l2", type=float, default=5e-4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(42)

    graph = make_graph(120, 4)
    order = torch.randperm(120)
    idx_train, idx_test = order[:80], order[80:]
    gcn = GCN(12, 16, 4)
    optimizer = torch.optim.Adam(gcn.parameters(), lr=args.lr, weight_decay=args.l2)
    criterion = nn.NLLLoss()
    history = []
    for epoch in range(args.epochs):
        history.append(train_iter(gcn, optimizer, criterion, graph, idx_train))
        if (epoch + 1) % 10 == 0:
            loss, accuracy = test(gcn, criterion, graph, idx_test)
            print(f"Epoch: {epoch + 1:04d} test loss {loss:.4f} accuracy {accuracy:.2f}")
    digest = hashlib.sha256()
    for value in gcn.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))
