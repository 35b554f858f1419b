"""Mixed precision with a gradient scaler. One corrupt batch makes the gradients infinite: the scaler skips that step."""
import argparse
import hashlib
import json

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--bad-step", type=int, default=7)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(11)
device = "cpu"

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
loss_fn = nn.MSELoss()
teacher = torch.randn(16, 4)
history = []

for step in range(args.steps):
    inputs = torch.randn(12, 16)
    targets = inputs @ teacher
    if step == args.bad_step:
        inputs[0, 0] = float("inf")
    with torch.autocast(device_type=device, dtype=getattr(torch, args.dtype)):
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    history.append(loss.item())
print(f"scale at the end {scaler.get_scale()}, last loss {history[-1]:.4f}")

digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.contiguous().numpy().tobytes())
print("RESULT", json.dumps({"losses": [x.hex() for x in history], "params": digest.hexdigest()}))
