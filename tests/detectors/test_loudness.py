"""How loud every opinion of `Auto` is: as loud as the order of the network's errors allows."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood import Auto, Tulip
from tulip_ood.detectors import FDBD, KNN, auto_voices
from tulip_ood.detectors.auto_voices import JS
from tulip_ood.detectors.evidence import Trial
from tulip_ood.detectors.fitting import splits, usable
from tulip_ood.detectors.loudness import FEW_ERRORS, PARTS, SILENT, Voice, quietened, voices
from tulip_ood.errors import InputError
from tulip_ood.export.scoring import graph_score
from tulip_ood.network.passes import Passes

from .test_auto import Sides, columns, images, network, passes_of

INF = float("inf")


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -------------------------------------------------------------------------- voices


def test_a_voice_is_heard_above_its_bar() -> None:
    z = torch.tensor([-INF, 0.0, 1.0, 3.0, INF])
    assert Voice(2.0, 1.0).of(z).tolist() == [0.0, 0.0, 0.0, 4.0, INF]
    assert SILENT.of(z).tolist() == [0.0] * 5  # not NaN


def test_bars_are_quantiles_of_what_is_said_of_mild_changes() -> None:
    asked = [(2.0, 0.9), (1.0, 0.5), (0.5, None)]
    mild = torch.linspace(0, 10, 101)[torch.randperm(101)]
    known = [Voice(2.0, 9.0), Voice(1.0, 5.0), Voice(0.5, 0.0)]
    assert voices(asked, mild) == known
    # What has no score says nothing of the others.
    assert voices(asked, torch.cat([mild, torch.tensor([INF, -INF])])) == known
    assert voices(asked, mild, least=7.0) == [Voice(2.0, 9.0), Voice(1.0, 7.0), Voice(0.5, 0.0)]
    assert voices(asked, mild - 20, least=0.0) == [Voice(s, 0.0) for s, _ in asked]
    assert voices(asked, None) == [Voice(2.0, 1.0), Voice(1.0, 1.0), Voice(0.5, 0.0)]


def test_what_mild_changes_have_no_score_of_is_not_heard() -> None:
    """Above an infinite bar lies nothing, and ∞ − ∞ is no number to order errors by."""
    (voice,) = voices([(2.0, 0.9)], torch.full((5,), INF))
    assert not voice.slope
    assert voice.of(torch.tensor([0.0, INF])).tolist() == [0.0, 0.0]
    plain, wrong = torch.linspace(0, 1, 20), (torch.arange(20) > 12).double()
    odd = torch.where(torch.arange(20) == 3, INF, plain)
    said = {"order": [plain], "a": [SILENT.of(odd), voice.of(odd)]}
    assert quietened(said, plain, wrong)["a"] == 1


# ----------------------------------------------------------------------- quietened


def naive_aurc(scores: Tensor, wrong: Tensor) -> float:
    """The mean risk of the k surest, averaged over orders that break ties."""
    risks, n = [], len(scores)
    for k in range(1, n + 1):
        edge = scores.sort().values[k - 1]
        below, at = scores < edge, scores == edge
        share = (k - int(below.sum())) / int(at.sum())
        risks.append((float(wrong[below].sum()) + share * float(wrong[at].sum())) / k)
    return sum(risks) / n


def by_definition(said: dict[str, list[Tensor]], plain: Tensor, wrong: Tensor) -> dict[str, int]:
    """Quieter while that is shown, by the least change that is enough; then back, if it can."""
    every = torch.arange(len(wrong))

    def cost(some: dict[str, int], rows: Tensor = every) -> float:
        total = torch.stack([said[name][voice] for name, voice in some.items()]).sum(0)
        return naive_aurc(total[rows], wrong[rows]) / naive_aurc(plain[rows], wrong[rows]) - 1

    def shown(some: dict[str, int]) -> bool:
        each = torch.tensor([cost(some, every[every % PARTS != part]) for part in range(PARTS)])
        error = ((PARTS - 1) ** 2 / PARTS * each.var(correction=1)) ** 0.5
        return cost(some) > error

    chosen = {name: len(own) - 1 for name, own in said.items()}
    while shown(chosen) and any(chosen.values()):
        tried = [{**chosen, n: v} for n, voice in chosen.items() for v in range(voice)]
        enough = [one for one in tried if not shown(one)]
        most = max((sum(one.values()) for one in enough), default=0)
        least = [one for one in enough if sum(one.values()) == most]
        chosen = min(least or tried, key=lambda one: (cost(one), -sum(one.values())))
    for name, own in said.items():
        while chosen[name] + 1 < len(own) and not shown({**chosen, name: chosen[name] + 1}):
            chosen[name] += 1
    return chosen


def test_quietened_is_what_its_definition_says() -> None:
    random = torch.Generator().manual_seed(0)

    def noise(width: float) -> Tensor:
        return width * torch.randn(40, generator=random, dtype=torch.float64)

    found = []
    for _ in range(12):
        wrong = (torch.rand(40, generator=random) < 0.3).double()
        wrong[:FEW_ERRORS] = 1.0
        plain = wrong + noise(0.5)
        said = {"order": [plain, plain + noise(0.2), plain + noise(0.3)]}
        for name in ("a", "b"):
            z = 0.3 * wrong + noise(0.7).round(decimals=1)  # with ties
            said[name] = [v.of(z) for v in (SILENT, Voice(0.5, 1.0), Voice(1.0, 0.5))]
        chosen = quietened(said, plain, wrong)
        assert chosen == by_definition(said, plain, wrong)
        found.append(tuple(chosen.values()))
    assert {voice for each in found for voice in each} == {0, 1, 2}


def test_what_is_not_shown_changes_nothing() -> None:
    """A worse order that hangs on few inputs is no reason to be quiet."""
    wrong = (torch.arange(60) % 6 == 5).double()
    plain = torch.linspace(0, 1, 60) + wrong
    said = {"order": [plain], "a": [0 * plain, torch.where(torch.arange(60) == 2, 9.0, 0.0)]}
    assert quietened(said, plain, wrong)["a"] == 1
    spoils = {"order": [plain], "a": [0 * plain, -9 * plain]}
    assert quietened(spoils, plain, wrong)["a"] == 0


def test_the_least_change_that_is_enough() -> None:
    """Not silence, where a quieter voice does; and only of what spoils the order."""
    wrong = (torch.arange(60) % 6 == 5).double()
    plain = torch.linspace(0, 1, 60) + wrong
    said = {"order": [plain], "a": [0 * plain, plain, -9 * plain], "b": [0 * plain, plain]}
    assert quietened(said, plain, wrong) == {"order": 0, "a": 1, "b": 1}


def test_what_costs_nothing_is_kept() -> None:
    """Though all else has to be silent."""
    wrong = (torch.arange(60) % 6 == 5).double()
    plain = torch.linspace(0, 1, 60) + wrong
    free = [0 * plain, plain]
    said = {"free": free, "order": [plain, plain - wrong], "a": [0 * plain, -9 * plain]}
    assert quietened(said, plain, wrong) == {"free": 1, "order": 0, "a": 0}


def test_few_errors_tell_nothing() -> None:
    plain = torch.linspace(0, 1, 30)
    for errors in (0, FEW_ERRORS - 1, FEW_ERRORS):
        wrong = (torch.arange(30) >= 30 - errors).double()
        found = quietened({"order": [plain], "a": [0 * plain, -9 * plain]}, plain, wrong)
        assert found == {"order": 0, "a": int(errors < FEW_ERRORS)}


# ------------------------------------------------------------------ voices of Auto


def vectors(n: int, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(n)
    x = torch.randn(n, 6, generator=random)
    return x, (network()(3 * x) + noise * torch.randn(n, 3, generator=random)).argmax(1)


def heard_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything finds pseudo-OOD as well as entropy does."""
    monkeypatch.setattr(
        Trial, "weights", lambda trial, _=None: (dict.fromkeys(trial._scores, 1.0), {})
    )


def speaks(monkeypatch: pytest.MonkeyPatch, sign: float) -> None:
    """fDBD says what entropy says, or the opposite: that the network is sure."""

    def score(self: FDBD, state: Any, passes: Passes) -> Tensor:
        return self.task.base_uncertainty(passes.base).mul(sign)

    monkeypatch.setattr(FDBD, "_score", score)


def noise_spoils(monkeypatch: pytest.MonkeyPatch) -> None:
    """The more noise, the surer its score is of what the network is not sure of."""
    usual = Tulip._score

    def score(self: Tulip, state: Any, passes: Passes) -> Tensor:
        if type(self) is not Tulip or not state.j_score:
            return usual(self, state, passes)
        return -state.j_score * self.task.base_uncertainty(passes.base)

    monkeypatch.setattr(Tulip, "_score", score)


def chosen(detector: Auto) -> tuple[Any, ...]:
    order = detector._order
    assert order._setting.j == order._state.j_score == order._state.setting.j
    return order._state.j_score, detector._weights, detector._bars


@pytest.mark.parametrize("n", [350, 500])
def test_what_spoils_the_order_of_errors_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    heard_alike(monkeypatch)
    for sign, weight in ((1.0, 2.0), (-1.0, 0.0)):
        speaks(monkeypatch, sign)
        detector = Auto(network(), parts=("tulip", "fdbd"), n_samples=2).fit([vectors(n)])
        assert detector._weights == {"fdbd": weight}
        assert detector._heard == (("tulip", "fdbd") if weight else ("tulip",))


@pytest.mark.parametrize("n", [100, 500])
def test_where_there_are_few_errors_the_usual_voices_are_heard(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    heard_alike(monkeypatch)
    speaks(monkeypatch, -1.0)
    noise_spoils(monkeypatch)
    x, _ = vectors(n)
    y = network()(x).argmax(1)
    y[:3] = (y[:3] + 1) % 3
    detector = Auto(network(), n_samples=2).fit([(x, y)])
    usual = {name: v[-1] for name, v in detector._voices.items()}
    assert set(usual) == {"features", "fdbd", "react", "ratio"}
    assert chosen(detector) == (
        JS[-1],
        {
            part: usual["features" if part in ("knn", "nci") else part].slope
            for part in ("react", "knn", "nci", "fdbd", "ratio")
        },
        {name: voice.bar * (0.75 if name == "features" else 1.0) for name, voice in usual.items()},
    )


def test_without_width_scoring_costs_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio alone does not ask for noise; what the probabilities need is another matter."""
    heard_alike(monkeypatch)
    noise_spoils(monkeypatch)
    model, (x, _) = network(), vectors(400)
    with torch.no_grad():
        model[-1].weight.mul_(40)
        torch.manual_seed(0)
        y = torch.multinomial((model(x) / 2).softmax(dim=1), 1).squeeze(1)
    detector = Auto(model, n_samples=4).fit([(x, y)])
    assert chosen(detector)[0] == 0.0
    assert detector._weights["ratio"] == 0.0
    assert "ratio" not in detector._heard
    assert (detector._needs_to_score().passes, detector.needs.passes) == (1, 6)
    answer, tulip = detector.predict(x), Tulip(model, n_samples=4).fit([(x, y)], recipe="balanced")
    assert torch.equal(answer.score, detector.score(x))
    assert tulip.fitted.j_probs > 0
    assert torch.equal(answer.probs, tulip.predict(x).probs)


def test_without_width_mirror_images_are_a_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    noise_spoils(monkeypatch)
    model = Sides(symmetric=True)
    detector = Auto(model, n_samples=2, parts=("tulip", "knn", "ratio")).fit([images(model)])
    assert chosen(detector)[0] == 0.0
    assert detector._mirrors
    assert detector._needs_to_score().passes == 2


def test_nobody_is_said_to_have_asked_for_a_j_of_0(monkeypatch: pytest.MonkeyPatch) -> None:
    heard_alike(monkeypatch)
    noise_spoils(monkeypatch)
    speaks(monkeypatch, -1.0)
    for settings, words in (
        (None, "J = 0: any other would order the network's own errors worse, so"),
        ({"tulip": {"j": 0.0}}, "J = 0: as was asked for, so"),
    ):
        detector = Auto(network(), parts=("tulip", "fdbd"), settings=settings, n_samples=2)
        detector.fit([vectors(500)])
        assert detector._heard == ("tulip",)
        told = {finding.code: finding.text for finding in detector.report().findings}
        assert told["j-zero"].startswith(words)
        assert told["j-zero"].endswith("(for auto, settings={'tulip': {'j': …}})")


@pytest.mark.parametrize("j", [0.0, 3.0])
def test_the_j_that_was_given_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, j: float
) -> None:
    """Whatever it does to the order of errors; and then the ratio may ask for noise."""
    heard_alike(monkeypatch)
    noise_spoils(monkeypatch)
    own, data = {"tulip": {"j": j}}, vectors(200)
    detector = Auto(network(), settings=own, n_samples=2).fit([data])
    assert chosen(detector)[0] == j
    if not j:
        assert ("ratio" in detector._heard) == (detector._needs_to_score().passes > 1)
    detector.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", network())
    assert isinstance(again, Auto)
    assert chosen(again.fit([data])) == chosen(detector)


# ------------------------------------------------------------- one choice for a fit


@pytest.mark.parametrize(("n", "looked_at"), [(100, 80), (500, 250)])
def test_voices_are_found_once_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n: int, looked_at: int
) -> None:
    """On the first fold, or half; in a file; and found again."""
    asked: list[int] = []

    def spy(said: Any, plain: Tensor, wrong: Tensor) -> dict[str, int]:
        asked.append(len(wrong))
        return quietened(said, plain, wrong)

    monkeypatch.setattr(auto_voices, "quietened", spy)
    data, model = vectors(n), network()
    x = torch.cat([data[0], 3 * data[0]])
    detector = Auto(model, n_samples=2).fit([data])
    assert asked == [looked_at]
    assert set(detector._weights) == {"react", "knn", "nci", "fdbd", "ratio"}
    found, scores = chosen(detector), detector.score(x)
    detector.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", model)
    assert isinstance(again, Auto)
    for _ in range(2):
        assert chosen(again) == found
        assert torch.equal(again.score(x), scores)
        again.fit([data])
    assert torch.equal(detector.fit([data]).score(x), scores)
    assert asked == [looked_at] * 4


def test_another_fit_chooses_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of what the last one found; also where the strength was 0 meanwhile."""
    heard_alike(monkeypatch)
    data = vectors(500)
    detector = Auto(network(), n_samples=2).fit([data])
    found = chosen(detector)
    with monkeypatch.context() as patched:
        noise_spoils(patched)
        speaks(patched, -1.0)
        detector.fit([data])
    assert (chosen(detector)[0], detector._weights["fdbd"]) == (0.0, 0.0)
    assert chosen(detector.fit([data])) == found
    detector.strength = 0.0
    assert detector.fit([data])._order._setting.j is None  # TULiP's own: J*
    assert (detector._weights, detector._bars, detector._voices) == ({}, {}, {})
    detector.strength = 1.0
    assert detector._heard == ("tulip",)
    assert chosen(detector.fit([data])) == found


def test_a_fit_that_is_interrupted_leaves_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = vectors(200)
    detector = Auto(network(), n_samples=2).fit([data])
    found, scores = chosen(detector), detector.score(data[0])

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(auto_voices, "quietened", stop)
        with pytest.raises(KeyboardInterrupt):
            detector.fit([vectors(100)])
    assert chosen(detector) == found
    assert torch.equal(detector.score(data[0]), scores)


def test_voices_are_found_again_without_what_a_fold_cannot_teach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A later fold has no neighbours: the first choice, which heard them, is not kept."""
    usual, refused = KNN._learn, []

    def learn(self: KNN, passes: Passes) -> Any:
        if chose and not refused:
            refused.append(len(passes))
            raise InputError("no neighbours")
        return usual(self, passes)

    def spy(said: Any, plain: Tensor, wrong: Tensor) -> dict[str, int]:
        chose.append(quietened(said, plain, wrong))
        return chose[-1]

    chose: list[dict[str, int]] = []
    heard_alike(monkeypatch)
    monkeypatch.setattr(KNN, "_learn", learn)
    monkeypatch.setattr(auto_voices, "quietened", spy)
    data, model = vectors(200), network()
    detector = Auto(model, parts=("tulip", "knn", "fdbd"), n_samples=2).fit([data])
    assert refused
    assert [set(one) for one in chose] == [
        {"features", "tulip", "fdbd"}, {"tulip", "fdbd"},
    ]  # fmt: skip
    assert detector._part_names == ("tulip", "fdbd")
    same = Auto(model, parts=("tulip", "fdbd"), n_samples=2).fit([data])
    assert chosen(detector)[0] == chosen(same)[0]
    assert torch.equal(detector.score(data[0]), same.score(data[0]))
    detector.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", model)
    assert torch.equal(again.score(data[0]), same.score(data[0]))


def test_how_the_data_comes_changes_nothing() -> None:
    x, y = vectors(200)
    plain = Auto(network(), n_samples=2).fit([(x, y)])
    batches = list(zip(x.flip(0).split(7), y.flip(0).split(7), strict=True))
    other = Auto(network(), n_samples=2).fit(batches)
    assert chosen(other) == chosen(plain)
    assert torch.equal(other.score(x), plain.score(x))
    rounded = Auto(network(), n_samples=2, batch_size=13).fit(batches)
    assert chosen(rounded) == (
        chosen(plain)[0], pytest.approx(plain._weights), pytest.approx(plain._bars),
    )  # fmt: skip


def test_what_is_learned_beside_a_fit_chooses_nothing() -> None:
    """As where precisions are compared, which sums leave alone."""
    data = vectors(200)
    detector = Auto(network(), n_samples=2, precision="auto").fit([data])
    assert detector.network.precision == "float32"
    found, passes = chosen(detector), passes_of(detector, data)
    state = detector._learn(passes)
    assert chosen(detector) == found
    assert state.parts[0].j_score == found[0]
    assert bool(detector._score(state, passes).isfinite().all())


def test_scales_are_those_of_the_j_that_was_found() -> None:
    """The first half has learned before J was known: as if it had been."""
    data = vectors(500)
    detector = Auto(network(), n_samples=2).fit([data])
    assert chosen(detector)[0] > 0.0
    passes, _ = usable(passes_of(detector, data), detector.task, detector.seed)
    ((half, _),) = splits(passes)
    state, fitted = detector._learn(passes.take(half)), detector.fitted
    assert (state.centres, state.spreads) == (fitted.centres, fitted.spreads)


def test_what_was_tried_is_what_is_scored() -> None:
    """Each opinion adds worth × its voice, whichever that is."""
    data = vectors(200)
    detector = Auto(network(), n_samples=2).fit([data])
    detector._worth = {"react": 0.4, "knn": 0.9, "nci": 0.2, "fdbd": 0.7, "ratio": 0.5}
    passes = passes_of(detector, (torch.cat([data[0] / 9, 4 * data[0]]), data[1].repeat(2)))
    said = columns(detector, passes)
    opinions = detector._opinions({name: z for name, z in said.items() if name != "tulip"})
    assert set(opinions) == set(detector._voices)
    assert min(float(z.max()) for z in opinions.values()) > 1.1
    for number in range(5):
        total, numbers = said["tulip"], {}
        for name, possible in detector._voices.items():
            numbers[name] = number % len(possible)
            voice = possible[numbers[name]]
            total = total + detector._worth.get(name, 1.0) * voice.of(opinions[name])
        detector._speak(numbers)
        torch.testing.assert_close(detector._score(detector.fitted, passes), total)


# ---------------------------------------------------------------------------- fDBD


def old_fdbd(detector: FDBD, passes: Passes) -> Tensor:
    """As it was defined before: distances without a product of matrices."""
    weight = passes.head.weight.double()
    features, logits = passes.need_features().double(), passes.base.double()
    highest, answers = logits.max(dim=1)
    exact = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(weight, weight, compute_mode=exact)[answers]
    gaps = highest.unsqueeze(1) - logits
    near = torch.where(apart > 0, gaps / apart, 0.0).sum(dim=1)
    mean: Tensor = detector.fitted.mean
    return near.neg().div((features - mean).norm(dim=1))


def test_boundaries_are_where_they_were() -> None:
    """Alone and in a batch; classes with the same weights have none between them."""
    torch.manual_seed(0)
    last = nn.Linear(48, 9)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), last)
    with torch.no_grad():
        last.weight[5:7] = last.weight[2]
        last.bias[5] += 1.0
    x = torch.randn(300, 6)
    data = (x, model(2 * x).argmax(1))
    detector = FDBD(model).fit([data])
    needs = detector._needs()
    rows = detector.engine.collect([data], needs, seed=0, memory=1 << 30)
    passes = detector.engine.passes_of(rows, needs, seed=0)
    assert int((passes.base.argmax(1) == 5).sum()) > 9
    expected, together = old_fdbd(detector, passes), detector._score(detector.fitted, passes)
    torch.testing.assert_close(together, expected, rtol=1e-9, atol=1e-9)
    alone = [detector._score(detector.fitted, passes.take(slice(i, i + 1))) for i in range(40)]
    torch.testing.assert_close(torch.cat(alone), expected[:40], rtol=1e-9, atol=1e-9)


def test_a_graph_has_the_same_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    heard_alike(monkeypatch)
    data = vectors(200)
    detector = Auto(network(), n_samples=2).fit([data])
    detector._speak(dict.fromkeys(detector._voices, 1))
    assert len(detector._heard) == 6
    passes = passes_of(detector, (torch.cat([data[0], 4 * data[0]]), data[1].repeat(2)))
    expected = detector._score(detector.fitted, passes)
    unscored = replace(passes, features=passes.need_features() * INF)
    torch.testing.assert_close(graph_score(detector, detector.fitted, passes), expected)
    assert torch.equal(
        graph_score(detector, detector.fitted, unscored),
        detector._score(detector.fitted, unscored),
    )
