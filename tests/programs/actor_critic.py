"""Actor-critic on a small balancing task: a pass per action, one backward per episode."""
import argparse
import hashlib
import json
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--seed", type=int, default=543)
parser.add_argument("--episodes", type=int, default=20)
parser.add_argument("--episode-length", type=int, default=12)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)
SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Balance:
    """A ball on a line: push it left or right, and stay near the middle."""

    def reset(self):
        self.state = [0.1, 0.0, -0.1, 0.0]
        return list(self.state)

    def step(self, action):
        position, speed, target, drift = self.state
        speed = 0.9 * speed + (0.1 if action else -0.1)
        position += speed
        self.state = [position, speed, target, drift + 0.01]
        return list(self.state), 1.0 - abs(position - target)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 32)
        self.action_head = nn.Linear(32, 2)
        self.value_head = nn.Linear(32, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


env = Balance()
model = Policy()
optimizer = optim.Adam(model.parameters(), lr=3e-2)
history = []


def select_action(state):
    probs, state_value = model(torch.tensor(state))
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
    return action.item()


def finish_episode():
    R = 0
    policy_losses, value_losses, returns = [], [], []
    for r in model.rewards[::-1]:
        R = r + args.gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, torch.tensor([R])))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    del model.rewards[:]
    del model.saved_actions[:]


def main():
    for i_episode in range(args.episodes):
        state, ep_reward = env.reset(), 0
        for _ in range(args.episode_length):
            state, reward = env.step(select_action(state))
            model.rewards.append(reward)
            ep_reward += reward
        finish_episode()
        if i_episode % 10 == 0:
            print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}")
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes())
    print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))


if __name__ == "__main__":
    main()
