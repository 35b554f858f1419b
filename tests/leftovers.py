"""A picture of everything a test could leave behind, and the difference between two of them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

MODULE = "torch.nn.modules.module"
OPTIMIZER = "torch.optim.optimizer"
HOOKS = (
    (MODULE, "_global_forward_pre_hooks"),
    (MODULE, "_global_forward_hooks"),
    (MODULE, "_global_forward_hooks_always_called"),
    (MODULE, "_global_forward_hooks_with_kwargs"),
    (MODULE, "_global_backward_hooks"),
    (MODULE, "_global_backward_pre_hooks"),
    (MODULE, "_global_module_registration_hooks"),
    (MODULE, "_global_parameter_registration_hooks"),
    (MODULE, "_global_buffer_registration_hooks"),
    (OPTIMIZER, "_global_optimizer_pre_hooks"),
    (OPTIMIZER, "_global_optimizer_post_hooks"),
)
PATCHABLE = (
    ("torch.autograd", "backward"),
    ("torch.autograd", "grad"),
    ("torch", "Tensor.backward"),
    ("torch", "compile"),
    ("torch.cuda.graphs", "graph.__enter__"),
    ("torch.cuda.graphs", "graph.__exit__"),
    (MODULE, "Module.__call__"),
    (MODULE, "Module._call_impl"),
    (MODULE, "Module.load_state_dict"),
    (MODULE, "Module.train"),
    (MODULE, "Module.zero_grad"),
    (OPTIMIZER, "Optimizer.__init__"),
    (OPTIMIZER, "Optimizer.load_state_dict"),
    (OPTIMIZER, "Optimizer.zero_grad"),
    ("torch.optim.lr_scheduler", "LRScheduler.step"),
    ("torch.nn.utils", "clip_grad_norm_"),
    ("torch.nn.utils", "clip_grad_value_"),
    ("torch.nn.utils.clip_grad", "clip_grad_norm_"),
    ("torch.nn.utils.clip_grad", "clip_grad_value_"),
    ("torch.amp.grad_scaler", "GradScaler.step"),
    ("torch.amp.grad_scaler", "GradScaler.unscale_"),
    ("torch.amp.grad_scaler", "GradScaler._unscale_grads_"),
    ("torch.utils.data.dataloader", "DataLoader.__iter__"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__"),
    ("torch.distributed", "all_reduce"),
    ("torch.distributed.distributed_c10d", "init_process_group"),
    ("torch.distributed", "Work.wait"),
    ("torch.distributed.device_mesh", "DeviceMesh.__init__"),
    ("torch.nn.parallel", "DistributedDataParallel.__init__"),
    ("subprocess", "Popen.__init__"),
    ("multiprocessing.spawn", "get_preparation_data"),
    ("os", "fork"),
    ("os", "_exit"),
    ("sys", "excepthook"),
    ("threading", "excepthook"),
    ("signal", "signal"),
)
TOOL_FOLDERS = {"__pycache__"}
PERMANENT_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
NOT_OURS = {"tqdm_monitor"}  # torch.compile shows progress where tqdm is installed
PATIENCE_S = 2.0  # a thread or a process that was told to stop may need a moment


@dataclass(frozen=True)
class Leftovers:
    hooks: dict[str, int]
    functions: dict[str, object]
    threads: dict[int, str]
    sockets: frozenset[str]
    children: frozenset[int]
    files: frozenset[str]
    cwd: str

    @classmethod
    def now(cls) -> Leftovers:
        cwd = os.getcwd()
        return cls(
            hooks=_hooks(),
            functions=_functions(),
            threads={each.ident or 0: each.name for each in threading.enumerate() if each.name not in NOT_OURS},
            sockets=_sockets(),
            children=_children(),
            files=frozenset(name for name in os.listdir(cwd) if not name.startswith(".")),
            cwd=cwd,
        )

    def compare(self, later: Callable[[], Leftovers]) -> list[str]:
        """What is there now and was not then; looks again for a while before it believes it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self._new_in(later())
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    def _new_in(self, after: Leftovers) -> list[str]:
        found = [f"{n} hooks in {name}" for name, n in after.hooks.items() if n > self.hooks.get(name, 0)]
        found += [f"{name} is patched" for name, f in after.functions.items() if self._patched(name, f)]
        found += [f"thread {name!r}" for ident, name in after.threads.items() if ident not in self.threads]
        found += [f"listening socket {address}" for address in _listening(after.sockets - self.sockets)]
        found += [f"process {pid} ({_command(pid)})" for pid in after.children - self.children if not _helper(pid)]
        if after.cwd != self.cwd:
            found.append(f"current directory {after.cwd}")
        else:
            found += [f"file {name}" for name in sorted(after.files - self.files - TOOL_FOLDERS)]
        return found

    def _patched(self, name: str, function: object) -> bool:
        if name in self.functions:
            return self.functions[name] is not function
        code = getattr(function, "__code__", None)
        return code is not None and f"{os.sep}neuraldbg{os.sep}" in code.co_filename


def _hooks() -> dict[str, int]:
    loaded = ((module, name) for module, name in HOOKS if module in sys.modules)
    return {f"{module}.{name}": len(getattr(sys.modules[module], name, ())) for module, name in loaded}


def _functions() -> dict[str, object]:
    found = {}
    for module, name in PATCHABLE:
        if module in sys.modules:
            try:
                found[f"{module}.{name}"] = attrgetter(name)(sys.modules[module])
            except AttributeError:  # another release of torch
                continue
    return found


def _sockets() -> frozenset[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return frozenset(found)


def _listening(inodes: frozenset[str]) -> list[str]:
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6") if inodes else ():
        with open(table) as rows:
            columns = [row.split() for row in rows]
        found += [f"port {int(c[1].rpartition(':')[2], 16)}" for c in columns[1:] if c[3] == "0A" and c[9] in inodes]
    return found


def _children() -> frozenset[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as listing:
                found.update(map(int, listing.read().split()))
        except OSError:
            continue
    return frozenset(found)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return line.read().replace(b"\0", b" ").decode().strip() or "ended, never waited for"
    except OSError:
        return "gone"


def _helper(pid: int) -> bool:
    return any(name in _command(pid).encode() for name in PERMANENT_HELPERS)
