"""Regression, binary, multi-label and dense prediction, each on a real small network."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import InputError, ModelError, ThresholdError
from tulip_ood.numerics.metrics import auroc

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def trained(model: nn.Module, x: Tensor, y: Tensor, loss: Any, steps: int = 300) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
    return model.eval()


@pytest.fixture(autouse=True)
def seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def wave(n: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 1) * 4 - 2
    return x, (2 * x).sin() + 0.2 * torch.randn(n, 1)


def test_regression(tmp_path: Path) -> None:
    """Variance is calibrated inside the data and grows outside it."""
    model = nn.Sequential(
        nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    trained(model, *wave(60), nn.MSELoss())
    detector = tulip_ood.Tulip(model, task="regression").fit([wave(600)])
    x, y = wave(1000)
    result = detector.predict(x)
    inside = ((y - result.probs).abs() < 1.645 * result.variance.sqrt()).double().mean()
    assert 0.84 < inside < 0.96  # a 90 % interval
    outside = torch.cat([x - 5, x + 5])
    assert auroc(detector.score(x), detector.score(outside)) > 0.9
    with torch.no_grad():
        torch.testing.assert_close(result.label.float(), model(x))
    assert result.reason[0].top_labels == ()
    with pytest.raises(ThresholdError, match="no right and wrong"):
        detector.set_threshold(max_error=0.1)
    detector.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", model)
    assert torch.equal(again.predict(x).variance, result.variance)
    with pytest.raises(InputError, match="choose from ent, bound"):
        tulip_ood.Tulip(model, task="regression", score="msp")


def test_regression_with_a_balanced_drift_is_warned_of() -> None:
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    trained(model, *wave(60), nn.MSELoss())
    with pytest.warns(tulip_ood.TulipWarning, match="regression-drift"):
        tulip_ood.Tulip(model, task="regression").fit([wave(200)], recipe="balanced")


def test_regression_takes_vectors_and_flat_targets() -> None:
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    x, y = wave(200)
    trained(model, x, y.squeeze(1), nn.MSELoss())
    flat = tulip_ood.Tulip(model, task="regression").fit([(x, y.squeeze(1))], recipe="balanced")
    column = tulip_ood.Tulip(model, task="regression").fit([(x, y)], recipe="balanced")
    assert torch.equal(flat.score(x), column.score(x))


def moons(n: int) -> tuple[Tensor, Tensor]:
    y = torch.randint(2, (n,))
    angle = torch.pi * torch.rand(n)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    x = torch.where(y.bool().unsqueeze(1), lower, upper) + 0.3 * torch.randn(n, 2)
    return x, y


def test_binary() -> None:
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    x, y = moons(200)
    trained(model, x, y.float(), nn.BCEWithLogitsLoss())
    with pytest.raises(ModelError, match="task='binary'"):
        tulip_ood.Tulip(model).fit([moons(200)])
    detector = tulip_ood.Tulip(model, task="binary", j=1.0).fit([moons(600)], recipe="balanced")
    test_x, test_y = moons(400)
    result = detector.predict(test_x)
    assert result.probs.shape == (400, 1)
    assert ((result.label == test_y).double().mean()) > 0.8
    wrong = result.label != test_y
    assert auroc(result.score[~wrong], result.score[wrong]) > 0.65
    with pytest.raises(InputError, match="labels of 0 and 1"):
        detector.fit([(x, y + 1)], recipe="balanced")


def test_multilabel() -> None:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(6, 4, generator=generator)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 6, generator=generator)
        return x, ((x @ w + torch.randn(n, 4, generator=generator)) > 0).float()

    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    trained(model, *draw(200), nn.BCEWithLogitsLoss())
    detector = tulip_ood.Tulip(model, task="multilabel", j=1.0).fit([draw(600)])
    x, y = draw(400)
    result = detector.predict(x)
    assert result.label.shape == (400, 4)
    assert result.score.shape == (400,)
    wrong = (result.label != y).any(dim=1)
    assert auroc(result.score[~wrong], result.score[wrong]) > 0.6
    with pytest.raises(InputError, match=r"needs labels \[100, 4\], got \[100\]"):
        detector.fit([(x[:100], y[:100, 0])], recipe="balanced")


def scenes(n: int, size: int = 12) -> tuple[Tensor, Tensor]:
    """Noisy images of a bright square: foreground and background, with an unlabelled border."""
    x, y = 0.8 * torch.randn(n, 1, size, size), torch.zeros(n, size, size, dtype=torch.int64)
    for i in range(n):
        top, left = torch.randint(size - 5, (2,)).tolist()
        x[i, 0, top : top + 5, left : left + 5] += 2.0
        y[i, top : top + 5, left : left + 5] = 1
    y[:, 0] = -100
    return x, y


def test_dense(tmp_path: Path) -> None:
    """A score for every position; the promise is for a random position of a new input."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 2, 3, padding=1),
    )
    trained(model, *scenes(30), nn.CrossEntropyLoss(ignore_index=-100), steps=80)
    with pytest.raises(ModelError, match="task='dense'"):
        tulip_ood.Tulip(model).fit([scenes(30)])
    detector = tulip_ood.Tulip(model, task="dense", n_samples=4, j=1.0)
    detector.fit([scenes(450)], recipe="balanced")
    x, y = scenes(200)
    result = detector.predict(x)
    assert result.score.shape == (200, 12, 12)
    assert result.probs.shape == (200, 12, 12, 2)
    assert result.reason == ()
    assert 0.02 < (~result.accepted).double().mean() < 0.09  # 5 % were promised on average
    labelled = y >= 0
    wrong = result.label[labelled] != y[labelled]
    score = result.score[labelled]
    assert auroc(score[~wrong], score[wrong]) > 0.7
    assert "positions of new inputs" in detector.threshold.promise
    with pytest.raises(InputError, match="not available for dense outputs"):
        detector.set_threshold(max_error=0.1)
    detector.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", model)
    assert torch.equal(again.score(x), result.score)
    larger = torch.randn(3, 1, 20, 16)
    assert detector.score(larger).shape == (3, 20, 16)
