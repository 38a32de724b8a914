"""Detectors that measure distances: few and odd data, thresholds, what they refuse."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors.knn import KNN
from tulip_ood.detectors.learning import Moments
from tulip_ood.detectors.mahalanobis import Gaussians
from tulip_ood.detectors.mds import MDS
from tulip_ood.detectors.nnguide import NNGuide
from tulip_ood.detectors.rmds import RMDS
from tulip_ood.detectors.vim import ViM
from tulip_ood.errors import InputError, ModelError

from .distance_records import DETECTORS, TRACKS, Records, fitted, quiet
from .literal_distances import gaussian_scores

# ------------------------------------------------------------------- thresholds


@quiet
@pytest.mark.parametrize("kind", [MDS, RMDS, KNN, ViM])
def test_false_alarms_on_fresh_data(kind: Any) -> None:
    """400 inputs of 200 features: what was learned fits them far better than it fits others."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(200, 4))
    centres = 2 * torch.randn(4, 200, generator=generator)
    with torch.no_grad():
        model[1].weight.copy_(centres)
        model[1].bias.copy_(-centres.square().sum(dim=1) / 2)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (n,), generator=generator)
        return centres[y] + 3 * torch.randn(n, 200, generator=generator), y

    alarms = []
    for seed in range(5):
        detector = kind(model, seed=seed).fit([draw(400)])
        alarms.append(float((~detector.predict(draw(2000)[0]).accepted).double().mean()))
    assert 0.02 < sum(alarms) / len(alarms) < 0.08


# -------------------------------------------------------------- bad situations


@quiet
@pytest.mark.parametrize("track", TRACKS)
@pytest.mark.parametrize("kind", DETECTORS)
def test_zero_and_infinite_features_never_give_nan(kind: Any, track: str, small: Records) -> None:
    assert small.test.features is not None
    detector = fitted(kind, small, track)
    features = small.test.features[:6].clone()
    features[0] = 0.0
    features[1] = math.inf
    features[2, 3] = math.nan
    features[3] *= 1e30
    scores = detector._score(detector.fitted, replace(small.test.take(slice(0, 6)),
                                                      features=features))  # fmt: skip
    assert not bool(scores.isnan().any())
    assert scores.isposinf().tolist() == [False, True, True, False, False, False]
    assert not bool(scores.isneginf().any())
    whole = detector.score(small.test.take(slice(0, 6)))
    torch.testing.assert_close(scores[4:], whole[4:])  # the odd rows do not disturb the others


@quiet
@pytest.mark.parametrize("apart", [1.0, 30.0, 1000.0])
def test_classes_far_apart_and_fewer_inputs_than_features(apart: float) -> None:
    """Directions without any variance within classes stay so, however far classes lie apart."""
    generator = torch.Generator().manual_seed(0)
    centres = apart * torch.randn(4, 64, generator=generator, dtype=torch.float64)
    labels = torch.arange(40) % 4
    features = centres[labels] + torch.randn(40, 64, generator=generator, dtype=torch.float64)
    moments = Moments(4)
    for rows in torch.arange(40).split(7):
        moments.add(features[rows], labels[rows])
    means = torch.stack([features[labels == c].mean(dim=0) for c in range(4)])
    about = features - means[labels]
    torch.testing.assert_close(moments.class_means, means)
    torch.testing.assert_close(moments.within, about.T @ about / 40, rtol=1e-9, atol=1e-9)
    about = features - features.mean(dim=0)
    torch.testing.assert_close(moments.total, about.T @ about / 40)
    torch.testing.assert_close(moments.second_about(features[0] * 0),
                               features.T @ features / 40)  # fmt: skip
    rtol = 64 * torch.finfo(torch.float64).eps
    found = Gaussians.of(moments.class_means, moments.within, n=40, rtol=rtol)
    assert found.rank == 36
    # Inputs of the same classes are as near as a χ² of so many dimensions may be.
    fresh = centres[labels] + torch.randn(40, 64, generator=generator, dtype=torch.float64)
    assert float(found.distance(fresh).max()) < 1e4


@quiet
@pytest.mark.parametrize("kind", DETECTORS)
def test_odd_rows_are_not_learned_from(kind: Any, small: Records) -> None:
    assert small.train.features is not None
    features = torch.cat([small.train.features, torch.full((2, 32), math.nan)])
    odd = small.train.take(torch.cat([torch.arange(len(small.train)), torch.tensor([0, 1])]))
    odd = replace(odd, features=features)
    clean = kind(small.model).fit(small.val, train=small.train).score(small.ood)
    torch.testing.assert_close(kind(small.model).fit(small.val, train=odd).score(small.ood), clean)


@quiet
def test_a_network_that_is_silent_on_an_input() -> None:
    """All features are 0: a finite score, and no complaint from any method."""
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.randn(3, 4, generator=generator))
        model[2].bias.fill_(1.0)
    x = torch.randn(300, 4, generator=generator)
    y = torch.randint(3, (300,), generator=generator)
    silent = -torch.ones(5, 4)
    for kind in DETECTORS:
        detector = kind(model).fit([(torch.cat([x, silent[:1]]), torch.cat([y, y[:1]]))])
        assert bool(detector.score(silent).isfinite().all()), kind.name


def test_only_for_tasks_that_have_what_it_needs() -> None:
    for kind in DETECTORS:
        with pytest.raises(InputError, match=f"{kind.name.replace('+', '.')} is for task"):
            kind(nn.Conv2d(3, 5, 1), task="dense")
    with pytest.raises(InputError, match="mds is for task 'classification', not 'multilabel'"):
        MDS(nn.Linear(4, 3), task="multilabel")


@quiet
def test_neighbours_for_regression() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    x = torch.randn(500, 3, generator=generator)
    detector = KNN(model, task="regression").fit([(x, x.sum(dim=1, keepdim=True))])
    assert detector.score(x[:4]).shape == (4,)


def test_networks_without_a_last_linear_layer() -> None:
    model = nn.Sequential(nn.Conv1d(1, 3, 4), nn.Flatten())
    x, y = torch.randn(200, 1, 4), torch.arange(200) % 3
    for kind in DETECTORS:
        with pytest.raises(ModelError, match="last linear layer"):
            kind(model).fit([(x, y)])


def test_wrong_arguments_are_refused(small: Records) -> None:
    with pytest.raises(InputError, match="dim must be at least 1, got 0"):
        ViM(small.model, dim=0)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        KNN(small.model, k=0)
    with pytest.raises(InputError, match="alpha between 0 and 1, got 5 and 2.0"):
        NNGuide(small.model, k=5, alpha=2.0)
    with pytest.raises(InputError, match="1 to 31 dimensions"):
        ViM(small.model, dim=32).fit(small.val)
    with pytest.raises(InputError, match="k = 301, but only 300 inputs can be"):
        KNN(small.model, k=301).fit(small.val, train=small.train)


def test_data_that_nothing_can_be_learned_from(small: Records) -> None:
    without = replace(small.train, labels=None)
    with pytest.raises(InputError, match="class means need labels"):
        MDS(small.model).fit(small.val, train=without)
    three = torch.stack([(small.train.labels == c).nonzero()[0, 0] for c in range(3)])
    with pytest.raises(InputError, match="do not vary about their means"):
        MDS(small.model).fit(small.val, train=small.train.take(three))
    assert small.train.features is not None
    nothing = replace(small.train, features=torch.full_like(small.train.features, math.nan))
    for kind in DETECTORS:
        with pytest.raises(InputError, match="no input has finite features"):
            kind(small.model).fit(small.val, train=nothing)
    zero = replace(small.train, features=torch.zeros_like(small.train.features))
    with pytest.raises(InputError, match="all penultimate features are zero"):
        KNN(small.model).fit(small.val, train=zero)
    few = small.train.take(slice(0, 4))
    with pytest.raises(InputError, match="dim = 20 leaves no residual"):
        ViM(small.model, dim=20).fit(small.val, train=few)
    shifted = replace(small.train, base=small.train.base - 1e4)
    with pytest.raises(InputError, match="largest logit of these inputs is -9"):
        ViM(small.model).fit(small.val, train=shifted)


def test_classes_without_training_inputs_are_left_out(small: Records) -> None:
    assert small.train.labels is not None
    two = small.train.take((small.train.labels != 1).nonzero().squeeze(1))
    with pytest.warns(tulip_ood.TulipWarning, match="no mean for 1 class without an input"):
        detector = MDS(small.model).fit(small.val, train=two)
    assert len(detector.fitted.means) == 2
    expected = gaussian_scores(two, small.test.take(slice(0, 20)), normalise=False, relative=False)
    found = detector.score(small.test.take(slice(0, 20)))
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-7
    )


def test_random_state_is_not_touched(small: Records) -> None:
    before = torch.get_rng_state()
    with pytest.warns(tulip_ood.TulipWarning):
        ViM(small.model).fit(small.val, tune={"OOD": small.ood}).score(small.test)
    NNGuide(small.model).fit(small.val).score(small.test)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_a_head_may_be_named_by_its_number() -> None:
    """As `--method "knn[head=2]"` gives it: nn.Sequential counts its layers."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    fits = [
        tulip_ood.detectors.KNN(model, k=5, head=head).fit([(x, model(x).argmax(dim=1))])
        for head in (2, "2")  # type: ignore[list-item]
    ]
    assert torch.equal(fits[0].score(x), fits[1].score(x))
