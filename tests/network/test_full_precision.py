"""TF32 and its like are off inside our passes, and as the user had them outside."""

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.network.full_precision import full_precision
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

# In a process of its own, and each start in a child of that: some settings cannot be undone.
CODE = """
import os, sys, torch
from tulip_ood.network.full_precision import full_precision
B = torch.backends
PARTS = [B.cuda.matmul, B.cudnn.conv, B.cudnn.rnn, B.mkldnn.matmul, B.mkldnn.conv, B.mkldnn.rnn]

def old(read):
    try:
        return read()
    except RuntimeError:
        return "cannot be read"

def state():
    switches = [part.fp32_precision for part in PARTS]
    legacy = [
        old(lambda: B.cuda.matmul.allow_tf32),
        old(lambda: B.cudnn.allow_tf32),
        old(torch.get_float32_matmul_precision),
    ]
    return switches + legacy

def check(start):
    exec(start)
    before = state()
    with full_precision():
        with full_precision():
            pass
        assert all(part.fp32_precision in ("ieee", "none") for part in PARTS), state()
        assert old(lambda: B.cuda.matmul.allow_tf32) in (False, "cannot be read"), state()
    assert state() == before, (start, before, state())

for start in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            check(start)
        except BaseException as error:
            print(start, repr(error), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
STARTS = (
    "pass",
    "B.cuda.matmul.allow_tf32 = True",
    "B.cuda.matmul.allow_tf32 = True; B.cudnn.allow_tf32 = False",
    "torch.set_float32_matmul_precision('medium')",
    "B.cuda.matmul.fp32_precision = 'tf32'",
    "B.fp32_precision = 'tf32'",
    "torch.set_float32_matmul_precision('high'); B.cuda.matmul.fp32_precision = 'ieee'",
    "B.cudnn.conv.fp32_precision = 'ieee'",
    "B.mkldnn.fp32_precision = 'bf16'",
)


def test_every_way_of_setting_it_is_put_back() -> None:
    ran = subprocess.run([sys.executable, "-c", CODE, *STARTS], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.found: list[tuple[str, bool]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Asking":
        made = Asking()
        made.net.weight, made.net.bias = memo[id(self.net.weight)], memo[id(self.net.bias)]
        made.found = self.found
        return made

    def forward(self, x: Tensor) -> Tensor:
        now = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        self.found.append(now)
        if not x.any():
            raise RuntimeError("zeros")
        return self.net(x)


def test_passes_run_in_full_precision() -> None:
    model = Asking()
    network = Network(model, make_task("classification"))
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        network.run(torch.ones(2, 4))
        network.input_gradient(torch.ones(2, 4), lambda logits: logits.sum(-1))
        with pytest.raises(RuntimeError, match="zeros"):
            network.run(torch.zeros(2, 4))
        after = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
    assert model.found == [("highest", False)] * 3
    assert after == ("high", True)


def test_threads_do_not_undo_each_other() -> None:
    """The first one in switches, the last one out restores, whoever that is."""
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    inside: list[str] = []

    def first() -> None:
        with full_precision():
            first_in.set()
            second_in.wait(10)
        first_out.set()

    def second() -> None:
        first_in.wait(10)
        with full_precision():
            second_in.set()
            first_out.wait(10)
            inside.append(torch.get_float32_matmul_precision())

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        threads = [threading.Thread(target=first), threading.Thread(target=second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert inside == ["highest"]
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
