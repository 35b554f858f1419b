"""LBFGS with a closure: several backwards inside each update."""
import argparse
import hashlib
import json

import torch
import torch.nn as nn
import torch.optim as optim


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 10)
        self.linear = nn.Linear(10, 1)

    def forward(self, input):
        outputs = []
        h_t = torch.zeros(input.size(0), 10, dtype=torch.double)
        c_t = torch.zeros(input.size(0), 10, dtype=torch.double)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            outputs += [self.linear(h_t)]
        return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    opt = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    wave = torch.sin(torch.arange(0, 21).double().unsqueeze(0) / 3 + torch.arange(5).double().unsqueeze(1))
    input, target = wave[:, :-1], wave[:, 1:]

    seq = Sequence()
    seq.double()
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.5, max_iter=4)
    history = []
    for i in range(opt.steps):
        print("STEP: ", i)

        def closure():
            optimizer.zero_grad()
            out = seq(input)
            loss = criterion(out, target)
            history.append(loss.item())
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            pred = seq(input)
            print(f"test loss: {criterion(pred, target).item():.6f}")

    digest = hashlib.sha256()
    for value in seq.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))
