"""Passes through a partition are the plain passes, for every kind of network and scope."""

from typing import Any

import pytest
import torch
from tests.network.partition_cases import (
    CASES,
    SETTINGS,
    Stages,
    assert_same,
    mlp,
    narrow,
    perturbed,
    random,
    trained,
)
from torch import Tensor

from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.network import partitioned
from tulip_ood.network.inputs import Inputs, take
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.partitioned import run_partitioned
from tulip_ood.network.rows import collect_rows
from tulip_ood.network.running import Needs, forward, run_passes
from tulip_ood.numerics.tasks import make_task


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_passes_are_the_plain_ones(name: str, precision: torch.dtype) -> None:
    case = CASES[name]
    inputs = case.inputs(6)
    network = Network(trained(case.make), make_task(case.task))
    if precision == torch.float32:
        narrow(network, inputs)
    network.probe(inputs)
    assert network.dtype == precision
    needs = Needs(SETTINGS, noisy_features=True)
    for scope in case.scopes:
        perturbation = perturbed(network, scope)
        partition = Partition.of(network, perturbation.scales, take(inputs, slice(0, 3)))
        for batch_size in (4, 1):  # of 4 and 2 rows, and alone
            options: dict[str, Any] = {"batch_size": batch_size, "needs": needs, "keyed": True}
            fast = run_partitioned(partition, perturbation, inputs, **options)
            plain = run_passes(perturbation, inputs, **options)
            assert_same(fast, plain, 1e-6 if precision == torch.float32 else 1e-12)
        assert 0.0 <= partition.trunk_share <= 1.0


def test_every_call_may_be_told_what_plain_passes_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held rows, a base pass, another ε, dense positions, measures, progress, weights not held."""

    class Norm(Measure):
        key = "norm"

        def __call__(self, network: Network, inputs: Inputs) -> Tensor:
            return network.run(inputs).logits.norm(dim=-1)

    network = Network(trained(Stages), make_task("classification"))
    rows = collect_rows([(random(9, 3, 8, 8), torch.arange(9) % 5)])
    network.probe(rows.first(4))
    needs = Needs(SETTINGS, noisy_features=True, measures=(Norm(),))
    for hold in (True, False):
        perturbation = perturbed(network, "last-stage", hold=hold)
        partition = Partition.of(network, perturbation.scales, rows.first(2))
        base = forward(network, rows, batch_size=9, features=True)
        for options in (
            {"needs": needs, "labels": rows.labels, "keyed": True},
            {"base": base, "epsilon": 0.05},
            {"needs": Needs(SETTINGS)},
        ):
            done: tuple[list[int], list[int]] = ([], [])
            fast = run_partitioned(
                partition, perturbation, rows, batch_size=4, progress=done[0].append, **options
            )
            plain = run_passes(perturbation, rows, batch_size=4, progress=done[1].append, **options)
            assert_same(fast, plain, 1e-12)
            assert sum(done[0]) == sum(done[1])
    monkeypatch.setattr(partitioned, "_FRONTIERS", 1)
    again = run_partitioned(partition, perturbation, rows, batch_size=4)
    assert torch.equal(again.noisy, fast.noisy)


def test_without_noise_or_drift() -> None:
    network = Network(mlp(), make_task("classification"))
    x = random(5, 6)
    network.probe(x)
    for settings in (SETTINGS.with_(drift=False), SETTINGS.with_(n_samples=0)):
        perturbation = perturbed(network, "head", settings=settings)
        partition = Partition.of(network, perturbation.scales, x)
        needs = Needs(settings, noisy_features=True)
        fast = run_partitioned(partition, perturbation, x, batch_size=2, needs=needs)
        assert fast.drift is None
        assert_same(fast, run_passes(perturbation, x, batch_size=2, needs=needs), 1e-12)


def test_positions_of_dense_outputs() -> None:
    case = CASES["dense"]
    network, x = Network(trained(case.make), make_task("dense")), case.inputs(5)
    network.probe(x)
    perturbation = perturbed(network, "2.*")
    partition = Partition.of(network, perturbation.scales, x)
    where = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))
    fast = run_partitioned(partition, perturbation, x, batch_size=2, positions=where)
    assert_same(fast, run_passes(perturbation, x, batch_size=2, positions=where), 1e-12)


def test_a_whole_resnet() -> None:
    model, x = trained(lambda: ResNet18Small(10)), random(3, 3, 32, 32)
    network = Network(model, make_task("classification"))
    network.probe(x)
    shares = []
    for scope in ("last-stage", "last-block", "head"):
        perturbation = perturbed(network, scope)
        partition = Partition.of(network, perturbation.scales, x[:2])
        fast = run_partitioned(partition, perturbation, x, batch_size=2)
        assert_same(fast, run_passes(perturbation, x, batch_size=2), 1e-6)
        shares.append(partition.trunk_share)
    assert [round(share, 2) for share in shares] == [0.76, 0.86, 1.0]
    whole = Partition.of(network, network.parameters, x)
    assert whole.trunk_share == 0.0
    assert whole.row_bytes == 4 * 3 * 32 * 32
