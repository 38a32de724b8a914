"""How a partition works: one trunk a batch, nothing written to, threads, memory, modes."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.network.partition_cases import (
    SETTINGS,
    Stages,
    Views,
    assert_same,
    mlp,
    perturbed,
    random,
    trained,
    vgg,
)
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network.exporting import PartitionError
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition
from tulip_ood.network.partitioned import run_partitioned
from tulip_ood.network.running import Needs, run_passes
from tulip_ood.numerics.tasks import make_task


def test_the_trunk_runs_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(trained(Stages), make_task("classification"))
    x = random(7, 3, 8, 8)
    network.probe(x)
    perturbation = perturbed(network, "head")
    partition = Partition.of(network, perturbation.scales, x)
    calls: list[str] = []
    for name in ("trunk", "tail"):
        inner = getattr(partition, name)

        def counted(*args: Any, name: str = name, inner: Any = inner) -> Any:
            calls.append(name)
            return inner(*args)

        monkeypatch.setattr(partition, name, counted)
    monkeypatch.setattr(network, "run", None)  # the whole network is not run at all
    run_partitioned(partition, perturbation, x, batch_size=4)
    assert (calls.count("trunk"), calls.count("tail")) == (2, 2 * SETTINGS.n_passes)


def test_what_the_tail_is_handed_is_not_written_to() -> None:
    """`Block` adds to its input in place: a second pass would find another frontier."""
    network = Network(trained(Stages), make_task("classification"))
    x = random(3, 3, 8, 8)
    kept = x.clone()
    partition = Partition.of(network, ["layer2.1.conv.weight"], x)
    frontier = partition.trunk(x)
    before = [v.clone() for v in frontier.values if isinstance(v, Tensor)]
    first, second = partition.tail(frontier).logits, partition.tail(frontier).logits
    assert torch.equal(first, second)
    assert torch.equal(x, kept)
    after = [v for v in frontier.values if isinstance(v, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_users_module_is_left_alone() -> None:
    model = trained(Stages).train()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    objects = {name: id(p) for name, p in [*model.named_parameters(), *model.named_buffers()]}
    heard: list[int] = []
    model.fc.register_forward_hook(lambda *_: heard.append(1))
    hooks = {name: len(part._forward_hooks) for name, part in model.named_modules()}
    network = Network(model, make_task("classification"))
    x = random(3, 3, 8, 8)
    network.probe(x)
    heard.clear()
    perturbation = perturbed(network, "last-block")
    partition = Partition.of(network, perturbation.scales, x)
    run_partitioned(partition, perturbation, x, batch_size=2)
    assert heard == []
    assert model.training
    assert all(part.training for part in model.modules())
    assert {name: len(part._forward_hooks) for name, part in model.named_modules()} == hooks
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    now = {name: id(p) for name, p in [*model.named_parameters(), *model.named_buffers()]}
    assert now == objects
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    # Nor does the private copy keep anything: its passes are what they were.
    assert torch.equal(network.run(x).logits, partition.network.run(x).logits)
    assert all(p.device.type == "meta" for p in network.module.parameters())


def test_new_weights_and_statistics_are_taken_up() -> None:
    model, x = trained(Stages), random(3, 3, 8, 8)
    network = Network(model, make_task("classification"))
    partition = Partition.of(network, ["fc.weight"], x)
    with torch.no_grad():
        model.stem[1].running_mean.add_(1.0)
        model.down.weight.mul_(0.5)
    network.refresh()
    found = partition.tail(partition.trunk(x)).logits
    torch.testing.assert_close(found, network.run(x).logits, rtol=1e-12, atol=1e-12)


def test_inputs_of_another_kind_go_through_the_whole_network() -> None:
    network = Network(trained(Stages), make_task("classification"))
    small, large = random(4, 3, 8, 8), random(4, 3, 12, 12)
    network.probe(small)
    perturbation = perturbed(network, "head")
    partition = Partition.of(network, perturbation.scales, small)
    assert partition.fits(random(1, 3, 8, 8).double())
    assert not partition.fits(large)
    with pytest.raises(InputError, match="another kind"):
        partition.trunk(large)
    fast = run_partitioned(partition, perturbation, large, batch_size=3)
    assert_same(fast, run_passes(perturbation, large, batch_size=3), 1e-12)


def test_channels_last_inputs() -> None:
    network = Network(
        trained(vgg).to(memory_format=torch.channels_last), make_task("classification")
    )
    x = random(4, 3, 9, 9).to(memory_format=torch.channels_last)
    network.probe(x)
    perturbation = perturbed(network, "head")
    partition = Partition.of(network, perturbation.scales, x.contiguous())
    fast = run_partitioned(partition, perturbation, x, batch_size=3)
    assert_same(fast, run_passes(perturbation, x, batch_size=3), 1e-12)


def test_batches_that_do_not_fit_in_memory_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(mlp(), make_task("classification"))
    x = random(11, 6)
    network.probe(x)
    perturbation = perturbed(network, "2.*", hold=False)
    partition = Partition.of(network, perturbation.scales, x)
    inner = partition.tail

    def small(frontier: Any, parameters: Any = None) -> Any:
        if frontier.rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(frontier, parameters)

    monkeypatch.setattr(partition, "tail", small)
    done: list[int] = []
    options: dict[str, Any] = {"batch_size": 6, "needs": Needs(SETTINGS, noisy_features=True)}
    fast = run_partitioned(partition, perturbation, x, progress=done.append, **options)
    assert sum(done) == 11 * SETTINGS.n_passes
    assert_same(fast, run_passes(perturbation, x, **options), 1e-12)
    monkeypatch.setattr(partition, "tail", lambda *_: small(SimpleNamespace(rows=9)))
    with pytest.raises(torch.OutOfMemoryError):
        run_partitioned(partition, perturbation, x, **options)


def test_two_threads() -> None:
    """Each exports, runs and gets what it would get alone, beside the user's own passes."""
    model, x = trained(Stages).eval(), random(6, 3, 8, 8)
    expected = model(x).detach()
    network = Network(model, make_task("classification"))
    network.probe(x)
    perturbation = perturbed(network, "last-stage")
    plain = run_passes(perturbation, x, batch_size=4)
    stop, wrong = threading.Event(), []

    def user() -> None:
        while not stop.is_set():
            # Not to the last bit: which kernels run is a matter of switches of the process.
            if not torch.allclose(model(x).detach(), expected, atol=1e-5):
                wrong.append("the user's own pass")

    def ours() -> None:
        try:
            partition = Partition.of(network, perturbation.scales, x)
            for _ in range(5):
                assert_same(run_partitioned(partition, perturbation, x, batch_size=4), plain, 1e-12)
        except BaseException as error:
            wrong.append(repr(error))

    beside = threading.Thread(target=user)
    threads = [threading.Thread(target=ours) for _ in range(2)]
    for thread in (beside, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    beside.join()
    assert wrong == []


def test_a_graph_is_made_once_for_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Network(mlp(), make_task("classification")), random(3, 6)
    Partition.of(network, ["0.weight"], x)
    monkeypatch.setattr(torch.export, "export", None)
    other = Partition.of(network, ["4.weight"], x[:1])
    assert other.tail(other.trunk(x)).logits.shape == (3, 4)


def test_usual_writes_are_taken_out_without_tracing_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    for make, x in ((Stages, random(3, 3, 8, 8)), (vgg, random(3, 3, 9, 9)), (mlp, random(3, 6))):
        network = Network(trained(make), make_task("classification"))
        Partition.of(network, network.parameters, x)
    with pytest.raises(PartitionError):
        Partition.of(Network(Views(), make_task("classification")), [], random(3, 6))


@pytest.mark.parametrize(
    "mode", [lambda: torch.autocast("cpu", torch.bfloat16), torch.inference_mode, torch.no_grad]
)
def test_the_users_modes_do_not_reach_the_graph(mode: Callable[[], Any]) -> None:
    model, x = trained(mlp), random(4, 6)
    with mode():
        network = Network(model, make_task("classification"))
        network.probe(x)
        perturbation = perturbed(network, "head")
        partition = Partition.of(network, perturbation.scales, x)
        inside = run_partitioned(partition, perturbation, x, batch_size=3)
    plain = run_passes(perturbation, x, batch_size=3)
    assert_same(inside, plain, 1e-12)
    assert_same(run_partitioned(partition, perturbation, x, batch_size=3), plain, 1e-12)
