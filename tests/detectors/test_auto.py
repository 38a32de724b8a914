"""`Auto`: TULiP's order, and evidence that only speaks against an input."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood import Auto, Tulip
from tulip_ood.errors import InputError


def network(last: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 48), last or nn.ReLU(), nn.Linear(48, 3))


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(400, 6)
    return x, (network()(3 * x) + torch.randn(400, 3) / 2).argmax(1)


@pytest.fixture(scope="module")
def fitted(data: tuple[Tensor, Tensor]) -> Auto:
    return Auto(network()).fit([data])


def test_the_score_is_the_formula(fitted: Auto, data: tuple[Tensor, Tensor]) -> None:
    passes = fitted.engine.passes_of(
        fitted.engine.collect([data], fitted._needs(), seed=0, memory=1 << 30),
        fitted._needs(),
        seed=0,
    )
    state = fitted.fitted
    order, shaped, neighbours = (
        (part._score(own, passes) - centre) / spread
        for part, own, centre, spread in zip(
            fitted.parts, state.parts, state.centres, state.spreads, strict=True
        )
    )
    expected = order + (shaped + neighbours / 2).clamp_min(0)
    assert torch.equal(fitted._score(state, passes), expected)
    assert bool((expected >= order).all())


def test_both_share_their_noise(fitted: Auto) -> None:
    order, shaped, _ = fitted.parts
    assert order._settings() == shaped._settings()


def test_strength_0_ranks_as_tulip(data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    auto, tulip = Auto(network(), strength=0).fit([data]), Tulip(network()).fit([data])
    a, b = auto.score(x), tulip.score(x)
    assert torch.equal(a.argsort(stable=True), b.argsort(stable=True))
    assert torch.equal(auto.predict(x).probs, tulip.predict(x).probs)


def test_features_that_may_be_negative_are_not_shaped(data: tuple[Tensor, Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = Auto(network(nn.Tanh())).fit([data])
    assert detector._part_names == ("tulip", "knn")
    assert any(f.code == "without-tulip+scale" for f in detector.report().findings)


def test_without_features_it_is_tulip(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    x, _ = data

    class Bare(nn.Module):
        """No layer at all, only parameters."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight).tanh() * 3

    model = Bare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = Auto(model).fit([data])
    assert detector._part_names == ("tulip",)
    detector.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", model)
    assert torch.equal(again.score(x), detector.score(x))


def test_regression_is_tulip_alone(data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = Auto(model, task="regression").fit([(x, model(x).detach())])
    assert detector._part_names == ("tulip",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "strength must be finite"),
        ({"parts": ("knn",)}, "the parts of auto are"),
        ({"parts": ("tulip", "msp")}, "the parts of auto are"),
    ],
)
def test_what_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Auto(network(), **settings)  # type: ignore[arg-type]
