"""Tensors that take the place of others in the user's model are seen, not only writes into them."""

import copy

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def data(n: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


def fit(model: nn.Module) -> tulip_ood.Tulip:
    return made(model).fit([data()], recipe="balanced")


def made(model: nn.Module) -> tulip_ood.Tulip:
    return tulip_ood.Tulip(model, n_samples=2, j=1.0)


def plain(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        norm = nn.BatchNorm1d(4)
        norm.running_mean = torch.randn(4)
        return nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3)).eval()


def test_assigned_weights_are_those_that_are_fitted() -> None:
    x = data()[0]
    model, other = plain(), plain(1)
    early, fitted = made(model), fit(model)
    model.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    expected = fit(other).score(x)
    assert torch.equal(early.fit([data()], recipe="balanced").score(x), expected)
    with pytest.raises(ModelError, match="weights have changed"):
        fitted.score(x)
    assert torch.equal(fitted.fit([data()], recipe="balanced").score(x), expected)


def test_equal_weights_in_the_place_of_others_change_nothing() -> None:
    x = data()[0]
    model = plain()
    detector = fit(model)
    before = detector.score(x)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    assert torch.equal(detector.score(x), before)


def test_statistics_that_go_on_changing_after_a_move() -> None:
    """`model.to(…)` gives a module other buffers, and its parameters other memory."""
    x = data()[0]
    model = plain()
    early, fitted = made(model), fit(model)
    model.double().float()
    fitted.score(x)
    model[1].running_mean.add_(1.0)
    with pytest.raises(ModelError, match="weights have changed"):
        fitted.score(x)
    assert torch.equal(early.fit([data()], recipe="balanced").score(x), fit(model).score(x))


@pytest.mark.parametrize("change", ["head", "layer", "shape", "norm"])
def test_other_layers_need_another_detector(change: str) -> None:
    model = plain()
    early, fitted = made(model), fit(model)
    if change == "head":
        model[2] = nn.Linear(4, 3)
    elif change == "layer":
        model.append(nn.ReLU())
    elif change == "shape":
        model[2].weight = nn.Parameter(torch.zeros(5, 4))
    else:
        nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(ModelError, match="added, taken out or replaced"):
        early.fit([data()], recipe="balanced")
    with pytest.raises(ModelError, match="added, taken out or replaced"):
        fitted.score(data()[0])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.two(self.one(x)))
        return out


def test_tied_weights_that_are_untied() -> None:
    model = Tied()
    early = made(model)
    model.two.weight = nn.Parameter(torch.randn(4, 4))
    with pytest.raises(ModelError, match="added, taken out or replaced"):
        early.fit([data()], recipe="balanced")


class Caching(nn.Module):
    """Its forward pass makes a table of its own, longer where the input is."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.table) < 4:
            self.table = torch.ones(4)
        out: Tensor = self.head(x * self.table)
        return out


def test_a_cache_that_the_user_fills_is_no_change() -> None:
    model, x = Caching(), data()[0]
    detector = fit(model)
    before = detector.score(x)
    model(x)
    assert torch.equal(detector.score(x), before)
