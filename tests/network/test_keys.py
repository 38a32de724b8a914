"""The content key of a record: other content has another key, and the same content the same one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import collect_rows
from tulip_ood.network.running import Needs, dense_labels, dense_positions, run_passes
from tulip_ood.numerics.tasks import make_task


def plain(**changes: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8, **changes), nn.ReLU(), nn.Linear(8, 3)
        ).eval()


def data(n: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


class Norm(Measure):
    key = "norm"

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        return network.run(inputs).logits.norm(dim=-1)


def record(
    *,
    model: nn.Module | None = None,
    task: str = "classification",
    scales: dict[str, float] | None = None,
    means: dict[str, float | Tensor] | None = None,
    order: int = 0,
    n: int = 20,
    labels: int = 0,
    rows: bool = True,
    batch_size: int = 8,
    hold: bool = True,
    features: bool = False,
    measures: tuple[Measure, ...] = (),
    output: Callable[[Any], Tensor] | None = None,
    head: str | None = None,
    epsilon: float | None = None,
    **settings: Any,
) -> Passes:
    """Passes with everything that they depend on as an argument."""
    x, y = data(n)
    network = Network(model or plain(), make_task(task), output=output, head=head)
    network.probe(x)
    chosen = PassSettings(**{"epsilon": 0.01, "n_samples": 4} | settings)
    perturbation = Perturbation(
        network, scales or {"0.weight": 1.0}, InitialMean(means or {}, ()), chosen, hold=hold
    )
    held = collect_rows([(x, (y + labels) % 3)], seed=order)
    return run_passes(
        perturbation,
        held if rows else x,
        batch_size=batch_size,
        needs=Needs(chosen, features, measures),
        labels=held.labels if rows else None,
        epsilon=epsilon,
        keyed=True,
    )


def changed_weights() -> nn.Module:
    model = plain()
    model[3].bias.data[0] += 1e-3
    return model


OTHER: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 0.02},
    "delta": {"delta": 2.0},
    "samples": {"n_samples": 2},
    "pairs": {"antithetic": False},
    "seed": {"seed": 1},
    "no drift": {"drift": False},
    "base alone": {"n_samples": 0},
    "scope": {"scales": {"0.weight": 1.0, "0.bias": 1.0}},
    "layer scale": {"scales": {"0.weight": 0.5}},
    "initial mean": {"means": {"0.weight": 1.0}},
    "initial tensor": {"means": {"0.weight": torch.ones(8, 4)}},
    "another initial tensor": {"means": {"0.weight": torch.arange(32.0).reshape(8, 4)}},
    "features of noisy passes": {"features": True},
    "a measure": {"measures": (Norm(),)},
    "inputs": {"n": 19},
    "labels": {"labels": 1},
    "weights": {"model": changed_weights()},
    "a layer's setting": {"model": plain(eps=0.1)},
    "dtype": {"model": plain().double()},
    "task": {"task": "multilabel"},
    "output": {"output": lambda out: out},
    "another output": {"output": lambda out: out * 2},
    "a constant in output": {"output": lambda out: out * 3},
    "head": {"head": "0"},
}


def test_other_content_has_another_key() -> None:
    keys = {name: record(**changes).key for name, changes in OTHER.items()}
    keys["as it was"] = record().key
    by_key: dict[str, list[str]] = {}
    for name, key in keys.items():
        by_key.setdefault(key, []).append(name)
    assert [names for names in by_key.values() if len(names) > 1] == []


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({}, {}),
        ({}, {"order": 1}),
        ({}, {"batch_size": 3}),
        ({}, {"hold": False}),
        ({"epsilon": 0.02}, {"epsilon": 0.02}),
        ({}, {"means": {"3.weight": 1.0}}),  # not in scope: it drifts nowhere
        ({}, {"means": {"0.weight": 0.0}}),
        ({"means": {"0.weight": 1.0}}, {"means": {"0.weight": torch.tensor(1.0)}}),
        ({"drift": False}, {"drift": False, "delta": 2.0}),
        ({"drift": False}, {"drift": False, "means": {"0.weight": 1.0}}),
        ({"n_samples": 1}, {"n_samples": 1, "antithetic": False}),
        ({"n_samples": 0}, {"n_samples": 0, "seed": 1}),
        ({"n_samples": 0}, {"n_samples": 0, "scales": {"3.weight": 1.0}, "features": True}),
        ({"n_samples": 0}, {"n_samples": 0, "drift": False, "delta": 1.0}),
    ],
)
def test_the_same_content_has_the_same_key(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = record(**one), record(**two)
    assert first.key == second.key
    assert first.ids is not None
    assert second.ids is not None
    # Row by row, whatever the order: base and noisy logits, drift, features, labels.
    a, b = (torch.argsort(p.base[:, 0]) for p in (first, second))
    torch.testing.assert_close(first.base[a], second.base[b])
    torch.testing.assert_close(first.noisy[:, a], second.noisy[:, b])
    assert torch.equal(first.labels[a], second.labels[b])  # type: ignore[index]
    if first.drift is not None and second.drift is not None:
        torch.testing.assert_close(first.drift[a], second.drift[b])


def test_a_record_with_another_epsilon_has_the_key_of_that_epsilon() -> None:
    """Searching tries other values of ε with the weights' noise as it is."""

    def key(start: float, then: float | None) -> str:
        network = Network(plain(), make_task("classification"))
        x = data()[0]
        network.probe(x)
        settings = PassSettings(start, n_samples=2)
        made = Perturbation(network, {"0.weight": 1.0}, InitialMean({}, ()), settings)
        return run_passes(made, x, batch_size=8, epsilon=then, keyed=True).key

    assert key(0.01, 0.02) == key(0.02, None) != key(0.01, None)


def test_dense_positions_are_content() -> None:
    model = nn.Conv2d(1, 3, 1)
    x, y = torch.rand(6, 1, 8, 8), torch.zeros(6, 8, 8, dtype=torch.int64)
    network = Network(model, make_task("dense"))
    network.probe(x)
    settings = PassSettings(1.0, n_samples=0)
    alone = Perturbation(network, {}, InitialMean({}, ()), settings)

    def key(seed: int | None) -> str:
        positions = None if seed is None else dense_positions(network.task, len(x), seed)
        labels = dense_labels(y, positions)
        return run_passes(
            alone, x, batch_size=4, positions=positions, labels=labels, keyed=True
        ).key

    assert key(0) == key(0)
    assert len({key(0), key(1), key(None)}) == 3


def test_constants_beside_the_inputs_are_content() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain()

        def forward(self, x: Tensor, scale: float) -> Tensor:
            return self.net(x * scale)

    network = Network(Scaled(), make_task("classification"))
    settings = PassSettings(1.0, n_samples=0)
    alone = Perturbation(network, {}, InitialMean({}, ()), settings)
    x = data()[0]
    one, two = (
        run_passes(alone, {"x": x, "scale": scale}, batch_size=4, keyed=True).key
        for scale in (1.0, 2.0)
    )
    assert one != two


def test_the_key_is_the_same_in_another_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_keys import record\n"
        "print(record(means={'0.weight': 1.0}, output=lambda out: out * 2).key)"
    )
    folder = str(Path(__file__).parent)
    there = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
    ).stdout
    monkeypatch.setattr(sys, "argv", ["-c", folder])
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    sys.modules.pop("test_keys")
    assert capsys.readouterr().out == there
    assert there.strip()
