"""Detectors that measure distances between features, against loops in numpy."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors import knn as knn_module
from tulip_ood.detectors import vim as vim_module
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.fdbd import FDBD
from tulip_ood.detectors.fitting import splits, usable
from tulip_ood.detectors.knn import KNN, near_rows
from tulip_ood.detectors.learning import RowSample
from tulip_ood.detectors.mds import MDS
from tulip_ood.detectors.mds_plus import MDSPlus
from tulip_ood.detectors.msp import MSP
from tulip_ood.detectors.nnguide import NNGuide
from tulip_ood.detectors.registry import METHODS, Method
from tulip_ood.detectors.rmds import RMDS
from tulip_ood.detectors.rmds_plus import RMDSPlus
from tulip_ood.detectors.vim import ViM
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.passes import Passes
from tulip_ood.network.rows import collect_rows
from tulip_ood.numerics import metrics

DETECTORS = (MDS, MDSPlus, RMDS, RMDSPlus, ViM, KNN, FDBD, NNGuide)
TRACKS = ("val", "train")
quiet = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


@dataclass(frozen=True)
class Records:
    """A network and the passes of its data."""

    model: nn.Module
    val: Passes
    train: Passes
    test: Passes
    ood: Passes


def record(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Passes:
    detector = MSP(model)
    detector.engine.take_model()
    detector.network.probe(x)
    labels = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    rows = collect_rows([(x, labels)], seed=0, memory=1 << 30)
    made = detector.engine.passes_of(rows, detector._needs(), seed=0)
    return made if y is not None else replace(made, labels=None)


def records_of(problem: Any) -> Records:
    """Half of the test inputs stand in for training data: the networks are too sure of theirs."""
    x, y = problem.test
    half = len(x) // 2
    return Records(
        problem.model,
        record(problem.model, *problem.val),
        record(problem.model, x[:half], y[:half]),
        record(problem.model, x[half:], y[half:]),
        record(problem.model, problem.ood),
    )


@pytest.fixture(scope="module", params=["vectors", "images"])
def records(request: pytest.FixtureRequest) -> Records:
    """32 features of 600 inputs; and 256 features of 500, half of which do not span them."""
    return records_of(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def small(vectors: Any) -> Records:
    return records_of(vectors)


def fitted(kind: type[Detector], data: Records, track: str, **settings: Any) -> Any:
    train = data.train if track == "train" else None
    return kind(data.model, **settings).fit(data.val, train=train)


def learned_from(data: Records, track: str) -> Passes:
    """The inputs that a detector with seed 0 learns from."""
    if track == "train":
        return data.train
    passes, _ = usable(data.val, MSP(data.model).task, 0)
    return passes.take(splits(passes)[0][0])


# ------------------------------------------------------------------- the loops


def rows_of(passes: Passes, *, normalise: bool = False) -> list[np.ndarray]:
    assert passes.features is not None
    rows = [row.astype(np.float64) for row in passes.features.numpy()]
    return [row / (math.sqrt(sum(row * row)) or 1.0) for row in rows] if normalise else rows


def inverse(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    least = len(values) * np.finfo(np.float32).eps * values.max()
    total = np.zeros_like(covariance)
    for value, vector in zip(values, vectors.T, strict=True):
        if value > least:
            total += np.outer(vector, vector) / value
    return total


def gaussian_scores(learned: Passes, test: Passes, *, normalise: bool, relative: bool) -> list:
    rows = rows_of(learned, normalise=normalise)
    assert learned.labels is not None
    labels = learned.labels.tolist()
    means = {c: np.mean([r for r, y in zip(rows, labels, strict=True) if y == c], axis=0)
             for c in set(labels)}  # fmt: skip
    whole = np.mean(rows, axis=0)
    d = len(whole)
    within, total = np.zeros((d, d)), np.zeros((d, d))
    for row, label in zip(rows, labels, strict=True):
        within += np.outer(row - means[label], row - means[label]) / len(rows)
        total += np.outer(row - whole, row - whole) / len(rows)
    precision, background = inverse(within), inverse(total)
    scores = []
    for row in rows_of(test, normalise=normalise):
        score = min(float((row - m) @ precision @ (row - m)) for m in means.values())
        if relative:
            score -= float((row - whole) @ background @ (row - whole))
        scores.append(score)
    return scores


def energies(passes: Passes) -> list[float]:
    logits = passes.base.numpy().astype(np.float64)
    return [float(np.log(np.sum(np.exp(z - z.max()))) + z.max()) for z in logits]


def principal(learned: Passes) -> tuple[np.ndarray, np.ndarray]:
    """−pinv(W) b, and the eigenvectors of the second moments about it, largest first."""
    weight = learned.head.weight.numpy().astype(np.float64)
    bias = learned.head.bias.numpy().astype(np.float64)
    origin = -np.linalg.pinv(weight) @ bias
    second = np.zeros((weight.shape[1],) * 2)
    for row in rows_of(learned):
        second += np.outer(row - origin, row - origin)
    values, vectors = np.linalg.eigh(second)
    return origin, vectors[:, np.argsort(-values)]


def vim_scores(learned: Passes, test: Passes, dim: int | None = None) -> list[float]:
    origin, vectors = principal(learned)
    d = len(origin)

    def residual(row: np.ndarray, outside: int) -> float:
        return float(np.linalg.norm((row - origin) @ vectors[:, outside:]))

    rows = rows_of(learned)
    if dim is None:  # half of the features, or of the dimensions that they span
        norm = np.mean([residual(row, 0) for row in rows])
        spanned = [i for i in range(d) if np.mean([residual(r, i) for r in rows]) > 1e-6 * norm]
        dim = min(d // 2, len(spanned) // 2)
    top = np.mean([max(z) for z in learned.base.numpy().astype(np.float64)])
    alpha = top / np.mean([residual(row, dim) for row in rows])
    pairs = zip(rows_of(test), energies(test), strict=True)
    return [alpha * residual(row, dim) - energy for row, energy in pairs]


def knn_scores(learned: Passes, test: Passes, k: int) -> list[float]:
    bank = [row for row in rows_of(learned, normalise=True) if row.any()]
    return [
        sorted(float(sum((row - other) ** 2)) for other in bank)[k - 1]
        for row in rows_of(test, normalise=True)
    ]


def fdbd_scores(learned: Passes, test: Passes, *, distance: bool) -> list[float]:
    mean = np.mean(rows_of(learned), axis=0)
    weight = test.head.weight.numpy().astype(np.float64)
    scores = []
    for row, z in zip(rows_of(test), test.base.numpy().astype(np.float64), strict=True):
        top = int(np.argmax(z))
        others = [c for c in range(len(z)) if c != top]
        total = sum((z[top] - z[c]) / np.linalg.norm(weight[top] - weight[c]) for c in others)
        out = np.linalg.norm(row - mean) if distance else np.linalg.norm(row)
        scores.append(-total / out if out > 0 else 0.0)
    return scores


def nnguide_scores(learned: Passes, test: Passes, k: int) -> list[float]:
    pairs = zip(rows_of(learned, normalise=True), energies(learned), strict=True)
    bank = [row * energy for row, energy in pairs]
    scores = []
    for row, energy in zip(rows_of(test, normalise=True), energies(test), strict=True):
        nearest = sorted((float(row @ other) for other in bank), reverse=True)[:k]
        scores.append(-energy * sum(nearest) / len(nearest))
    return scores


Literal = Callable[[Passes, Passes, str], list[float]]
LITERAL: dict[type[Detector], Literal] = {
    MDS: lambda a, b, _: gaussian_scores(a, b, normalise=False, relative=False),
    MDSPlus: lambda a, b, _: gaussian_scores(a, b, normalise=True, relative=False),
    RMDS: lambda a, b, _: gaussian_scores(a, b, normalise=False, relative=True),
    RMDSPlus: lambda a, b, _: gaussian_scores(a, b, normalise=True, relative=True),
    ViM: lambda a, b, _: vim_scores(a, b),
    KNN: lambda a, b, track: knn_scores(a, b, 50 if track == "train" else 1),
    FDBD: lambda a, b, _: fdbd_scores(a, b, distance=True),
    NNGuide: lambda a, b, _: nnguide_scores(a, b, 100),
}


@quiet
@pytest.mark.parametrize("track", TRACKS)
@pytest.mark.parametrize("kind", DETECTORS)
def test_score_is_what_a_loop_says(kind: Any, track: str, records: Records) -> None:
    test = records.test.take(slice(0, 60))
    detector = fitted(kind, records, track)
    expected = torch.tensor(
        LITERAL[kind](learned_from(records, track), test, track), dtype=torch.float64
    )
    found = detector.score(test)
    assert found.dtype == torch.float64
    # Banks are kept in float32; nothing else is rounded.
    tolerance = 1e-6 if kind in (KNN, NNGuide) else 1e-7
    scale = float(expected.max() - expected.min())
    assert (found - expected).abs().max() <= tolerance * scale
    assert detector.fitted is not None


@quiet
@pytest.mark.parametrize("kind", DETECTORS)
def test_far_inputs_score_higher(kind: Any, small: Records) -> None:
    """High = unsure: the sign is right (on the blobs, where OOD is plainly far away)."""
    detector = fitted(kind, small, "train")
    if kind in (FDBD, NNGuide, KNN, MDSPlus, RMDS, RMDSPlus):  # directions stay the same far out
        unsure = detector.score(small.test)
        wrong = small.test.base.argmax(dim=1) != small.test.labels
        assert metrics.auroc(unsure[~wrong], unsure[wrong]) > 0.5
    else:
        assert metrics.auroc(detector.score(small.test), detector.score(small.ood)) > 0.8


# ------------------------------------------------------------------ parameters


@quiet
@pytest.mark.parametrize("track", TRACKS)
def test_dimension_of_the_principal_space(track: str, small: Records) -> None:
    test = small.test.take(slice(0, 50))
    found = fitted(ViM, small, track, dim=5).score(test)
    expected = torch.tensor(vim_scores(learned_from(small, track), test, 5), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@quiet
def test_fdbd_by_the_norm(small: Records) -> None:
    test = small.test.take(slice(0, 50))
    found = fitted(FDBD, small, "train", distance_as_normalizer=False).score(test)
    expected = torch.tensor(fdbd_scores(small.train, test, distance=False), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_default_dimension_follows_the_number_of_features() -> None:
    def default(d: int, rank: int) -> int:
        residuals = torch.zeros(d, dtype=torch.float64)
        residuals[:rank] = 1.0
        empty = torch.zeros(d, 0, dtype=torch.float64)
        return vim_module.ViMState(torch.zeros(d), empty, residuals, 1.0, 9).default_dim

    assert [default(d, d) for d in (2, 512, 768, 2048, 4096)] == [1, 256, 384, 1000, 1000]
    assert default(1024, 1024) == 512
    assert default(2048, 500) == 250  # 500 validation images of a ResNet-50


@pytest.mark.parametrize("track", TRACKS)
@pytest.mark.parametrize("kind", [ViM, KNN, FDBD])
@quiet
def test_tuning_takes_the_best_of_the_list(kind: Any, track: str, small: Records) -> None:
    train = small.train if track == "train" else None
    tuned = kind(small.model).fit(small.val, train=train, tune={"OOD": small.ood})
    (name,) = kind.search
    chosen = getattr(tuned, name)
    assert chosen in kind.search[name]
    if track == "train":
        aurocs = {}
        for value in kind.search[name]:
            one = kind(small.model, **{name: value})
            try:
                one.fit(small.val, train=train)
            except InputError:
                continue
            aurocs[value] = metrics.auroc(one.score(small.val), one.score(small.ood))
        assert aurocs[chosen] == max(aurocs.values())


def test_what_does_not_fit_is_named_and_skipped(small: Records) -> None:
    with pytest.warns(tulip_ood.TulipWarning, match="dim = 256 does not fit: with 32 penultimate"):
        ViM(small.model).fit(small.val, train=small.train, tune={"OOD": small.ood})
    with pytest.warns(tulip_ood.TulipWarning, match="k = 500, but there are only 300 inputs"):
        KNN(small.model).fit(small.val, train=small.train, tune={"OOD": small.ood})


def test_tuning_against_a_loader(vectors: Any) -> None:
    detector = FDBD(vectors.model).fit(vectors.loader(), tune=[vectors.ood])
    assert detector.distance_as_normalizer in (True, False)
    assert detector._facts["tried"] == 2


def test_k_is_scaled_to_validation_data_only(small: Records) -> None:
    n = len(small.val) // 2
    on_validation = fitted(KNN, small, "val", k=500)
    assert on_validation.fitted.neighbour(500) == round(500 * n / 50_000) == 3
    assert fitted(KNN, small, "train", k=7).fitted.neighbour(7) == 7
    assert "neighbour 3 of 300" in str(on_validation.report())


# --------------------------------------------------------------------- batches


@quiet
@pytest.mark.parametrize("track", TRACKS)
@pytest.mark.parametrize("kind", DETECTORS)
def test_score_does_not_depend_on_the_batch(kind: Any, track: str, vectors: Any) -> None:
    train = vectors.test if track == "train" else None
    detector = kind(vectors.model).fit(vectors.loader(), train=None if train is None else [train])
    x = vectors.val[0][:40]
    whole = detector.score(x)
    alone = torch.cat([detector.score(one) for one in x.split(1)])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    shuffled = torch.empty_like(whole)
    shuffled[order] = detector.score(x[order])
    allowed = 1e-5 * detector.calibration.spread
    assert (whole - alone).abs().max() <= allowed
    assert (whole - shuffled).abs().max() <= allowed
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(detector.score(x), whole)


@quiet
@pytest.mark.parametrize("track", TRACKS)
@pytest.mark.parametrize("kind", DETECTORS)
def test_far_inputs_do_not_depend_on_the_batch_either(
    kind: Any, track: str, small: Records
) -> None:
    """Given the features: the network's own float32 rounding weighs more, the further out."""
    detector = fitted(kind, small, track)
    whole = detector.score(small.ood)
    alone = torch.cat([detector.score(small.ood.take(slice(i, i + 1))) for i in range(50)])
    assert (whole[:50] - alone).abs().max() <= 1e-5 * detector.calibration.spread


@quiet
@pytest.mark.parametrize("kind", DETECTORS)
def test_training_data_may_come_in_any_batches(kind: Any, vectors: Any) -> None:
    x, y = vectors.test
    whole = kind(vectors.model).fit(vectors.loader(), train=[(x, y)])
    pieces = list(zip(x.split(37), y.split(37), strict=True))
    cut = kind(vectors.model).fit(vectors.loader(), train=pieces)
    assert cut._facts["n_train"] == len(x)
    allowed = 1e-5 * whole.calibration.spread
    assert (whole.score(vectors.ood) - cut.score(vectors.ood)).abs().max() <= allowed


def test_neighbours_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    bank = torch.randn(200, 6, generator=generator)
    queries = torch.randn(50, 6, dtype=torch.float64, generator=generator)
    monkeypatch.setattr(knn_module, "_QUERIES", 8)
    monkeypatch.setattr(knn_module, "_ROWS", 30)
    monkeypatch.setattr(knn_module, "_GATHERED", 500)
    found = torch.cat(
        [
            torch.einsum("mkd,md->mk", rows, queries[where]).topk(9, dim=1).values
            for where, rows in near_rows(bank, queries, 9)
        ]
    )
    expected = (queries @ bank.double().T).topk(9, dim=1).values
    torch.testing.assert_close(found, expected)


def test_a_bank_in_blocks(small: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted(KNN, small, "train").fitted.rows
    monkeypatch.setattr(knn_module, "_BLOCK_BYTES", 4 * 32 * 17)
    learner = KNN(small.model)._learner()
    for start in range(0, len(small.train), 40):
        learner.add(small.train.take(slice(start, start + 40)))
    assert torch.equal(learner.finish().rows, whole)


@pytest.mark.parametrize("n", [200, 600])
def test_no_input_is_its_own_neighbour(n: int, small: Records) -> None:
    """Neither where half of the data is held out nor where it is cross-fitted."""
    detector = KNN(small.model).fit(small.val.take(slice(0, n)))
    assert detector.calibration.cross_fitted is (n < 400)
    bank = detector.fitted.rows
    assert len(bank) == (n if n < 400 else n // 2)
    assert float(detector.calibration.scores.min()) > 0


def test_sample_is_fair_and_does_not_depend_on_batches() -> None:
    rows = torch.arange(3000.0).unsqueeze(1)
    chosen = []
    for size in (3, 50, 3000):
        sample = RowSample(limit=40, seed=3)
        for part in rows.split(size):
            sample.add(part)
        chosen.append(torch.cat(sample.parts()).flatten())
        assert len(chosen[-1]) == 40
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2])
    hits = torch.zeros(6)
    for seed in range(100):  # each sixth of the stream gets a sixth of the sample
        sample = RowSample(limit=30, seed=seed)
        for part in rows.split(500):
            sample.add(part)
        hits += torch.bincount((torch.cat(sample.parts()).flatten() / 500).long(), minlength=6)
    assert (hits / hits.sum() - 1 / 6).abs().max() < 0.02
    shared = RowSample(limit=10, share=0.1, seed=0)
    for part in rows.split(64):
        shared.add(part)
    assert abs(len(torch.cat(shared.parts())) - 300) < 60


@quiet
def test_alpha_of_a_sample_is_near_that_of_all(
    small: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = fitted(ViM, small, "train", dim=5)
    monkeypatch.setattr(vim_module, "EXACT_ROWS", 150)
    sampled = fitted(ViM, small, "train", dim=5)
    assert sampled.fitted.alpha(5) != exact.fitted.alpha(5)
    assert sampled.fitted.alpha(5) == pytest.approx(exact.fitted.alpha(5), rel=0.2)
    torch.testing.assert_close(sampled.fitted.eigenvectors, exact.fitted.eigenvectors)


# ------------------------------------------------------------------------ files


@quiet
@pytest.mark.parametrize("track", TRACKS)
@pytest.mark.parametrize("kind", DETECTORS)
def test_saved_and_loaded(
    kind: Any, track: str, vectors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.name not in METHODS:
        monkeypatch.setitem(METHODS, kind.name, Method(kind.name, kind, (), 1, ""))
    settings = {ViM: {"dim": 6}, KNN: {"k": 20}, NNGuide: {"k": 30, "alpha": 0.5}}.get(kind, {})
    train = [vectors.test] if track == "train" else None
    detector = kind(vectors.model, **settings).fit(vectors.loader(), train=train)
    detector.save(tmp_path / "detector.safetensors")
    again = tulip_ood.load(tmp_path / "detector.safetensors", vectors.model)
    assert type(again) is kind
    assert torch.equal(again.score(vectors.ood), detector.score(vectors.ood))
    assert again.threshold == detector.threshold
    assert str(again.report()) == str(detector.report())


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
    with pytest.raises(InputError, match="k = 301, but there are only 300 inputs"):
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
    with pytest.warns(tulip_ood.TulipWarning, match="1 classes have no input in the training"):
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
