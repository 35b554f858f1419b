"""REINFORCE: log-probabilities collected over an episode, one backward at its end."""
import argparse
import hashlib
import json
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--gamma", type=float, default=0.95)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--episodes", type=int, default=20)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)
EPISODE_LENGTH = 10


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(3, 24)
        self.dropout = nn.Dropout(p=0.4)
        self.affine2 = nn.Linear(24, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.dropout(self.affine1(x)))
        return F.softmax(self.affine2(x), dim=1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
eps = 1e-8
history = []


def select_action(state):
    probs = policy(state.unsqueeze(0))
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R = 0
    policy_loss = []
    returns = deque()
    for r in policy.rewards[::-1]:
        R = r + args.gamma * R
        returns.appendleft(R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for log_prob, R in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * R)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    history.append(policy_loss.item())
    del policy.rewards[:]
    del policy.saved_log_probs[:]


def main():
    for i_episode in range(args.episodes):
        state = torch.tensor([0.5, -0.2, 0.0])
        for t in range(EPISODE_LENGTH):
            action = select_action(state)
            state = state * 0.9 + torch.tensor([0.1, -0.1, 0.02]) * (1 if action else -1)
            policy.rewards.append(float(1 - state.abs().sum()))
        finish_episode()
        if i_episode % 10 == 0:
            print(f"Episode {i_episode}\tloss {history[-1]:.3f}")
    digest = hashlib.sha256()
    for value in policy.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
