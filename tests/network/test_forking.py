"""A process that forks in the middle of a pass: its child can score too, and gets the same."""

import os
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task


class Waiting(nn.Module):
    """Stays in its forward pass until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.inside = False
        self.waits = False

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x)
        self.inside = True
        while self.waits:
            time.sleep(0.001)
        return out


def in_child(work: Callable[[], bool], seconds: float = 20.0) -> str:
    """What became of a child that does this."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return {0: "right", 1: "wrong"}.get(os.waitstatus_to_exitcode(status), "failed")
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


def test_a_child_forked_in_the_middle_of_a_pass_can_score() -> None:
    network = Network(Waiting(), make_task("classification"))
    x = torch.ones(2, 4)
    network.probe(x)
    expected = network.run(x).logits
    inner: Waiting = network.module  # type: ignore[assignment]
    other = {name: p + 1 for name, p in network.parameters.items()}
    inner.inside, inner.waits = False, True
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    # Other parameters, an edit, and full precision: nothing of it may be left in the child.
    thread = threading.Thread(
        target=lambda: network.run(x, other, edits={"net": lambda out: out * 0})
    )
    thread.start()
    try:
        while not inner.inside:
            time.sleep(0.001)

        def work() -> bool:
            restored = torch.get_float32_matmul_precision() == "high"
            inner.waits = False
            return restored and torch.equal(network.run(x).logits, expected)

        assert in_child(work) == "right"
    finally:
        inner.waits = False
        thread.join()
        torch.set_float32_matmul_precision(before)
    assert torch.equal(network.run(x).logits, expected)
