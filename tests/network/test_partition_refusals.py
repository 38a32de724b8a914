"""What cannot be cut is refused, in one line that says why."""

import pytest
import torch
from tests.network.partition_cases import (
    mlp,
    perturbed,
    random,
)
from torch import Tensor, nn

from tulip_ood.errors import InputError, ModelError
from tulip_ood.network import exporting
from tulip_ood.network.exporting import PartitionError
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.partitioned import run_partitioned
from tulip_ood.numerics.tasks import make_task


class Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.one(row) if row.sum() > 0 else self.two(row) for row in x.unbind()]
        return torch.stack(rows)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + torch.zeros(len(x), 1)


class Traced(nn.Module):
    """Does in a graph what it does not do otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) * (2 if torch.compiler.is_exporting() else 1)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Moody(), "Moody cannot be exported: its code goes one way or another"),
        (Counted(), "fixes the number of inputs"),
        (Traced(), "gives other outputs than the network"),
    ],
)
def test_what_cannot_be_cut_says_why_in_one_line(
    model: nn.Module, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    network = Network(model, make_task("classification"))
    with pytest.raises(PartitionError, match=reason) as caught:
        Partition.of(network, ["one.weight"], random(4, 6))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ModelError)
    assert capfd.readouterr() == ("", "")  # nor does PyTorch say more


def test_hooks_that_change_the_output_are_refused() -> None:
    model = mlp()
    model[0].register_forward_hook(lambda part, args, out: out + 1)
    network = Network(model, make_task("classification"))
    with pytest.raises(PartitionError, match="hooks"):
        Partition.of(network, ["0.weight"], random(4, 6))


def test_other_releases_of_pytorch_make_plain_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "TESTED", ("1.0",))
    network = Network(mlp(), make_task("classification"))
    with pytest.raises(PartitionError, match=r"tested with PyTorch 1\.0; this is 2\."):
        Partition.of(network, ["0.weight"], random(4, 6))


def test_partitions_of_something_else_are_refused() -> None:
    network, x = Network(mlp(), make_task("classification")), random(4, 6)
    with pytest.raises(InputError, match="no parameter 9"):
        Partition.of(network, ["9.weight"], x)
    partition = Partition.of(network, ["4.weight"], x)
    with pytest.raises(InputError, match="is perturbed, but the partition"):
        run_partitioned(partition, perturbed(network, "all"), x, batch_size=2)
    other = Network(mlp(), make_task("classification"))
    other.probe(x)
    with pytest.raises(InputError, match="another network"):
        run_partitioned(partition, perturbed(other, "head"), x, batch_size=2)
