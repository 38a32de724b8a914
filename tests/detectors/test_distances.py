"""Detectors that measure distances between features, against loops in numpy."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tulip_ood
from tulip_ood.detectors import knn as knn_module
from tulip_ood.detectors import vim as vim_module
from tulip_ood.detectors.fdbd import FDBD
from tulip_ood.detectors.knn import KNN, near_rows
from tulip_ood.detectors.learning import RowSample
from tulip_ood.detectors.mds import MDS
from tulip_ood.detectors.nci import NCI
from tulip_ood.detectors.nnguide import NNGuide
from tulip_ood.detectors.vim import ViM
from tulip_ood.errors import InputError
from tulip_ood.numerics import metrics

from .distance_records import DETECTORS, TRACKS, Records, fitted, learned_from, quiet
from .literal_distances import LITERAL, fdbd_scores, nci_scores, vim_scores


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
    if kind not in (MDS, ViM):  # directions stay the same far out
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


@quiet
def test_nci_with_the_length_of_features(small: Records) -> None:
    test = small.test.take(slice(0, 50))
    found = fitted(NCI, small, "train", alpha=0.3).score(test)
    expected = torch.tensor(nci_scores(small.train, test, 0.3), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match="alpha must be finite and not negative, got -1"):
        NCI(small.model, alpha=-1)


@quiet
def test_features_that_are_the_mean_have_no_direction(small: Records) -> None:
    detector = fitted(NCI, small, "train")
    test = small.test.take(slice(0, 1))
    there = dataclasses.replace(test, features=detector.fitted.mean[None].clone())
    assert detector.score(there).tolist() == [0.0]


def test_features_that_never_vary_have_no_direction() -> None:
    """Their mean differs from them by rounding, and that in another way in another batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 37), nn.Sigmoid(), nn.Linear(37, 3))
    with torch.no_grad():
        model[0].weight.zero_()
    x, y = torch.randn(300, 4), torch.randint(3, (300,))
    detector = NCI(model).fit([(x, y)])
    assert detector.score(x[:7]).tolist() == [0.0] * 7


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
@pytest.mark.parametrize("kind", [ViM, KNN, FDBD, NCI])
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
    with pytest.warns(
        tulip_ood.TulipWarning, match="k = 500, but only 300 inputs can be neighbours"
    ):
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
def test_saved_and_loaded(kind: Any, track: str, vectors: Any, tmp_path: Path) -> None:
    settings = {ViM: {"dim": 6}, KNN: {"k": 20}, NNGuide: {"k": 30, "alpha": 0.5}}.get(kind, {})
    train = [vectors.test] if track == "train" else None
    detector = kind(vectors.model, **settings).fit(vectors.loader(), train=train)
    detector.save(tmp_path / "detector.safetensors")
    again = tulip_ood.load(tmp_path / "detector.safetensors", vectors.model)
    assert type(again) is kind
    assert torch.equal(again.score(vectors.ood), detector.score(vectors.ood))
    assert again.threshold == detector.threshold
    assert str(again.report()) == str(detector.report())


def test_a_bank_goes_to_the_device_once(small: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again with every call, which works on a view of the detector."""
    detector = fitted(KNN, small, "train")
    monkeypatch.setattr(detector.network, "device", torch.device("meta"))  # as good as a GPU
    rows = detector.fitted.rows
    first = detector._view()._searched(rows)
    assert first.device.type == "meta"
    assert detector._view()._searched(rows) is first
    assert detector._view()._searched(rows.clone()) is not first
