"""Inputs of many kinds, as texts of all lengths are: what the fast engine holds stays bounded."""

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.network import exporting

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


class Texts(nn.Module):
    """Large enough for fast passes; takes rows of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 128)
        self.layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))
        self.out = nn.Linear(128, 3)
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.layers(self.embed(ids).mean(1)))


def tokens(rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(50, (rows, length), generator=generator)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Texts().eval()


def fitted(model: nn.Module) -> tulip_ood.Tulip:
    x = tokens(240, 10)
    labels = (model(x) - model(x).mean(0)).argmax(1)
    return tulip_ood.Tulip(model, j=1.0, n_samples=4).fit([(x, labels)], recipe="balanced")


def test_perturbed_weights_are_held_for_two_kinds(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were held for every length that ever came: gigabytes each, for a large network."""
    monkeypatch.setenv("TULIP_OOD_FAST", "off")
    plain = fitted(model)
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    quick = fitted(model)
    size = plain.calibration.spread
    for length in (4, 5, 6, 4, 10, 7, 4):
        x = tokens(9, length)
        assert float((quick.score(x) - plain.score(x)).abs().max()) <= 1e-5 * size
        assert quick.engine.fast.made <= 2
        assert len(quick.engine.fast._rounds) <= 2
    assert len(exporting._graphs[quick.network]) <= 8


def test_the_kinds_in_use_stay(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    detector = fitted(model)
    detector.score(tokens(4, 5))
    kept = dict(detector.engine.fast._partitions)
    for length in (10, 5, 10, 5):
        detector.score(tokens(4, length))
    assert detector.engine.fast._partitions == kept


def test_every_kind_earns_its_own_graph(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single row of another length is not worth a graph, however much was computed before."""
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    flops = fitted(model).network.known_probe.compute.flops
    monkeypatch.setenv("TULIP_OOD_FAST", f"earned={200 * 6 * flops}")
    detector = fitted(model)
    assert detector.engine.fast.made == 1
    detector.score(tokens(1, 5))
    assert detector.engine.fast.made == 1
    detector.score(tokens(200, 5))
    assert detector.engine.fast.made == 2


def test_graphs_of_a_network_are_few(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TULIP_OOD_FAST", "earned=0")
    detector = fitted(model)
    for length in range(2, 14):
        detector.score(tokens(2, length))
    assert len(exporting._graphs[detector.network]) == 8
