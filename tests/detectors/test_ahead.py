"""What is computed once before the folds is what every fold would compute for itself."""

import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood import Auto, Tulip
from tulip_ood.detectors import measured as measuring
from tulip_ood.detectors.ahead import measured_ahead
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.compose import Sum
from tulip_ood.detectors.envelope_fit import held_out_likelihood
from tulip_ood.detectors.fitting import splits
from tulip_ood.detectors.measured import measure
from tulip_ood.detectors.pseudo import pseudo_sets
from tulip_ood.detectors.recipes import Setting
from tulip_ood.detectors.shaping import make_shaping
from tulip_ood.detectors.steadiness import ALONE
from tulip_ood.network import passes as records
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.passes import Passes
from tulip_ood.numerics import calibration

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")

FEW, MANY = 4, 200  # classes


def staged(classes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 48, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, classes),
    ).eval()


def problem(classes: int, n: int, *, symmetric: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and labels like its own answers, to mirror images too or to the images alone."""
    model = staged(classes)
    torch.manual_seed(1)
    x = torch.rand(n, 1, 8, 8).cumsum(dim=3) / 4
    if symmetric:
        x = (x + x.flip(-1)) / 2
    with torch.no_grad():
        logits = model(x)
        model[-1].weight.mul_(3 / logits.std(dim=0).mean())
        model[-1].bias.sub_(model(x).mean(dim=0))
        return model, x, (model(x) + torch.randn(n, classes) / 2).argmax(1)


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fold computes all for itself."""
    monkeypatch.setattr(Passes, "once", lambda self, key, compute: compute())
    for cls in (Detector, Tulip, tulip_ood.detectors.compose.Sum):
        monkeypatch.setattr(cls, "_ahead", lambda self, passes: passes)


def same(ours: Any, plain: Any, where: str = "") -> None:
    """Equal to 1e-9 of the range, number by number."""
    if isinstance(ours, dict):
        assert ours.keys() == plain.keys(), where
        for key in ours:
            same(ours[key], plain[key], f"{where}/{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(plain), where
        for i, pair in enumerate(zip(ours, plain, strict=True)):
            same(*pair, f"{where}/{i}")
    elif isinstance(ours, Tensor) and ours.is_floating_point():
        size = float(plain[plain.isfinite()].abs().max()) if plain.numel() else 0.0
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-9 * max(size, 1e-300), msg=where)
    elif isinstance(ours, Tensor):
        assert torch.equal(ours, plain), where
    elif isinstance(ours, float):
        assert ours == pytest.approx(plain, rel=1e-9, abs=1e-12, nan_ok=True), where
    else:
        assert ours == plain, where


def all_of(detector: Detector, x: Tensor) -> list[Any]:
    """All fitted numbers, the calibration, and what is said of some inputs."""
    held = {
        field.name: getattr(detector.calibration, field.name)
        for field in fields(detector.calibration)
    }
    facts = {k: v for k, v in detector._facts.items() if isinstance(v, float | dict)}
    return [*detector.fitted_state(), held, facts, detector.score(x)]


CASES: dict[str, tuple[Callable[[nn.Module], Detector], int, int, bool]] = {
    "auto, many classes, folds": (Auto, MANY, 120, False),
    "auto, many classes, folds, mirrored": (Auto, MANY, 120, True),
    "auto, few classes, halves": (Auto, FEW, 404, False),
    "auto, few classes, folds, mirrored": (Auto, FEW, 120, True),
    "tulip": (Tulip, MANY, 120, False),
    "tulip, halves": (Tulip, FEW, 404, False),
    "tulip+scale": (lambda model: Tulip(model, shaping="scale"), FEW, 120, False),
    "tulip+react": (lambda model: Tulip(model, shaping="react"), FEW, 120, False),
    "a sum": (lambda model: tulip_ood.detectors.make("tulip&knn", model), FEW, 120, False),
}


@pytest.mark.parametrize("name", CASES)
def test_as_if_every_fold_computed_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, classes, n, symmetric = CASES[name]
    model, x, y = problem(classes, n + 16, symmetric=symmetric)
    options = {"recipe": "balanced"} if name.startswith("tulip") else {}
    detector = make(model).fit([(x[:n], y[:n])], **options)
    if isinstance(detector, Auto):
        assert detector._mirrors == symmetric
        assert "react" in detector._part_names
    plainly(monkeypatch)
    again = make(model).fit([(x[:n], y[:n])], **options)
    same(all_of(detector, x[n:]), all_of(again, x[n:]))


@pytest.mark.parametrize("n", [120, 404], ids=["folds", "halves"])
@pytest.mark.parametrize("make", [Tulip, Auto])
def test_folds_are_not_learned_from_again_to_be_judged(
    make: type[Tulip] | type[Auto], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = problem(FEW, n, symmetric=False)
    seen: list[Passes] = []
    judge, search, searches = Tulip._judge, calibration.calibrate_j, []

    def judging(self: Tulip, passes: Passes, taught: Any) -> None:
        seen.append(passes)
        judge(self, passes, taught)

    def searching(*given: Any) -> Any:
        searches.append(given)
        return search(*given)

    monkeypatch.setattr(Tulip, "_judge", judging)
    monkeypatch.setattr(calibration, "calibrate_j", searching)
    options = {"recipe": "balanced"} if make is Tulip else {}
    detector = make(model).fit([(x, y)], **options)
    learned = 6 if n == 120 else 1  # every fold and all, or one half
    assert len(searches) == (learned if make is Tulip else 6 * learned)
    tulip = detector if isinstance(detector, Tulip) else detector._order
    anew = [tulip._learn(seen[0].take(inside)) for inside, _ in splits(seen[0])]
    plain, enveloped = held_out_likelihood(seen[0], tulip.task, anew, sqrt_outputs=False)
    facts = detector.report().facts
    assert facts["held_out_nll_plain"] == pytest.approx(-plain, rel=1e-12)
    assert facts["held_out_nll_tulip"] == pytest.approx(-enveloped, rel=1e-12)


@pytest.mark.parametrize("n", [100, 420])  # all of them, and the half that is learned from
def test_kinds_are_judged_by_passes_that_are_there(n: int) -> None:
    model, x, y = problem(FEW, n, symmetric=False)
    detector = tulip_ood.detectors.GEN(model)
    engine, needs = detector.engine, detector._needs()
    rows = engine.collect([(x, y)], needs, seed=0, memory=1 << 30)
    counts: dict[bool, list[int]] = {True: [], False: []}
    plain, quick = (
        pseudo_sets(
            engine,
            rows,
            needs,
            seed=0,
            progress=counts[there].append,
            clean=engine.passes_of(rows, needs, seed=0) if there else None,
        )
        for there in (False, True)
    )
    assert list(plain) == list(quick)
    assert all(torch.equal(plain[kind].base, quick[kind].base) for kind in plain)
    assert sum(counts[False]) - sum(counts[True]) == min(n, 210)


def shaped_sum(model: nn.Module) -> Sum:
    settings = {"tulip+scale": {"j": 1.0, "epsilon": 0.01, "lam": 0.0}}  # nothing is searched for
    made = tulip_ood.detectors.make("tulip+scale&knn", model, settings=settings)
    assert isinstance(made, Sum)
    return made


def test_passes_are_not_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = problem(FEW, 100, symmetric=False)
    make, learn = Sum._fit_passes, Sum._learn_and_calibrate
    made: list[weakref.ref[Tensor]] = []
    held: list[bool] = []

    def making(self: Sum, *given: Any) -> Passes:
        passes = make(self, *given)
        made.extend(map(weakref.ref, (passes.noisy, passes.noisy_features)))
        return passes

    def learning(self: Sum, passes: Passes, state: Any) -> Any:
        held.extend([ref() is not None for ref in made])
        held.append(passes.noisy_features is not None)  # they are shaped by now
        return learn(self, passes, state)

    monkeypatch.setattr(Sum, "_fit_passes", making)
    monkeypatch.setattr(Sum, "_learn_and_calibrate", learning)
    shaped_sum(model).fit([(x, y)])
    assert held == [False, False, False]


def record(n: int = 30, features: int = 12, classes: int = 5, samples: int = 4) -> Passes:
    torch.manual_seed(0)
    heads = tuple(
        records.Head(torch.randn(classes, features), torch.randn(classes))
        for _ in range(samples + 2)
    )
    every = torch.rand(samples + 2, n, features)
    logits = torch.stack([head.logits(own) for head, own in zip(heads, every, strict=True)])
    return Passes(
        logits[0],
        logits[1:-1],
        logits[-1],
        every[0],
        torch.randint(classes, (n,)),
        records.PassSettings(0.01, n_samples=samples),
        ids=tuple(bytes([i]) for i in range(n)),
        noisy_features=every[1:-1],
        drift_features=every[-1],
        heads=heads,
        extras={"mirrored": torch.randn(n, classes)},
    )


INDICES = {
    "numbers": torch.tensor([7, 2, 2, 29]),
    "a mask": torch.arange(30) % 3 == 1,
    "a slice": slice(4, 17),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_what_is_taken_knows_the_same(index: Tensor | slice) -> None:
    plain, setting = record(), Setting(0.01, shaping="scale:85")
    scale = make_shaping("scale:85")
    taken = measured_ahead(plain, setting, sqrt_outputs=True).take(index).take(slice(1, 4))
    expected = replace(record().take(index).take(slice(1, 4)))
    assert not expected.known
    for ours, theirs in ((taken, expected), (taken.reshaped(scale), expected.reshaped(scale))):
        for name in ("base", "noisy", "drift"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
        found, wanted = (measure(one, sqrt_outputs=True) for one in (ours, theirs))
        torch.testing.assert_close(found.trace, wanted.trace)
        torch.testing.assert_close(found.drift, wanted.drift)
        assert torch.equal(ours.labels, theirs.labels)
    # D with and without √o are two things.
    other = measure(taken, sqrt_outputs=False).drift
    torch.testing.assert_close(other, measure(expected, sqrt_outputs=False).drift)


def test_other_logits_are_measured_anew() -> None:
    passes = record()
    before = measure(passes, sqrt_outputs=False)
    other = replace(passes, noisy=2 * passes.noisy)
    assert not torch.allclose(measure(other, sqrt_outputs=False).trace, before.trace)
    for changed in (
        passes.reshaped(make_shaping("scale")),
        passes.serving(passes.settings.with_(drift=False)),
        passes.base_alone(),
        Mirrored().passes_of(passes),
    ):
        assert not changed.known


def test_another_shaping_is_not_taken_for_it() -> None:
    passes = record()
    known = passes.shaped_once(make_shaping("scale:85"))
    with pytest.raises(tulip_ood.errors.ModelError, match="no features of the noisy passes"):
        known.reshaped(make_shaping("scale:65"))


def test_a_learned_clip_is_left_to_the_folds() -> None:
    passes = measured_ahead(record(), Setting(0.01, shaping="react:90"), sqrt_outputs=False)
    assert passes.noisy_features is not None
    assert list(passes.known) == [("measured", False)]


def test_one_shaping_and_one_measuring_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = problem(FEW, 100, symmetric=False)
    rows: dict[str, list[int]] = {"shaped": [], "measured": []}
    shape, measured = records._all_shaped, measuring._measured

    def shaping(heads: Any, features: Tensor, by: Any) -> Tensor:
        rows["shaped"].append(features.shape[1])
        return shape(heads, features, by)

    def counting(passes: Passes, sqrt_outputs: bool) -> Any:
        rows["measured"].append(len(passes))
        return measured(passes, sqrt_outputs)

    monkeypatch.setattr(records, "_all_shaped", shaping)
    monkeypatch.setattr(measuring, "_measured", counting)
    Tulip(model, shaping="scale").fit([(x, y)], recipe="balanced")
    twice = [ALONE, ALONE]  # what is scored alone and in a batch in the end
    assert rows["shaped"] == [100, *twice]
    assert rows["measured"] == [100, 100, *twice]  # the plain logits, and the shaped ones
    rows["shaped"], rows["measured"] = [], []
    Auto(model, strength=0.0).fit([(x, y)])  # nothing is weighed
    assert not rows["shaped"]
    assert rows["measured"] == [100, *twice]
    rows["measured"] = []
    heard = Auto(model, parts=["tulip", "ratio"]).fit([(x, y)])
    assert heard._part_names == ("tulip", "ratio")
    assert rows["measured"].count(100) == 1  # once for both, beside what weighing measures
