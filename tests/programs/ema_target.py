"""Q-learning with a target network: a deep copy that follows the online network by a moving average."""
import copy
import hashlib
import json
import random

import torch
import torch.nn.functional as F
from torch import nn


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, state):
        return self.fc2(F.relu(self.fc1(state)))


@torch.no_grad()
def soft_update(target, online, tau):
    for slow, fast in zip(target.parameters(), online.parameters()):
        slow.mul_(1 - tau).add_(fast, alpha=tau)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(12)
    random.seed(12)
    online = QNet()
    target = copy.deepcopy(online)
    target.requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    memory = [(torch.randn(4), random.randrange(3), random.random(), torch.randn(4)) for _ in range(100)]
    history = []
    for _ in range(40):
        states, actions, rewards, after = zip(*random.sample(memory, 16))
        states, after = torch.stack(states), torch.stack(after)
        with torch.no_grad():
            goal = torch.tensor(rewards) + 0.9 * target(after).max(1).values
        value = online(states).gather(1, torch.tensor(actions).unsqueeze(1)).squeeze(1)
        loss = F.huber_loss(value, goal, delta=0.5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(online.parameters(), 1.0)
        optimizer.step()
        soft_update(target, online, tau=0.05)
        history.append(loss.item())

    digest = hashlib.sha256()
    for net in (online, target):
        for value in net.state_dict().values():
            digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
