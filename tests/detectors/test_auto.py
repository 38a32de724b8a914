"""`Auto`: TULiP's order, and evidence that only speaks against an input."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood import Auto, Tulip
from tulip_ood.detectors.envelope_fit import fit_envelope
from tulip_ood.detectors.evidence import Trial, weight_of
from tulip_ood.detectors.pseudo import shifted_rows
from tulip_ood.detectors.ratio import Ratio
from tulip_ood.errors import FileFormatError, InputError
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.shifts.mild import MILD


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


def columns(detector: Auto, passes: Any) -> dict[str, Tensor]:
    """What every part says, on the scale of held-out data."""
    state = detector.fitted
    return {
        name: (detector._says(part, own, passes) - centre) / spread
        for name, part, own, centre, spread in zip(
            detector._part_names, detector.parts, state.parts, state.centres, state.spreads,
            strict=True,
        )
    }  # fmt: skip


def put_together(detector: Auto, said: dict[str, Tensor]) -> Tensor:
    """The formula, from weights (worth × slope) and bars."""
    weights, bars = detector._weights, detector._bars
    lie = sum(weights[name] * said[name] for name in ("knn", "nci") if name in said)
    total = said["tulip"] + (lie - bars["features"]).clamp_min(0)  # type: ignore[union-attr]
    for name in ("fdbd", "react", "ratio", "depth"):
        if name in said and weights[name]:
            total = total + weights[name] * (said[name] - bars[name]).clamp_min(0)
    return total


def passes_of(detector: Auto, data: tuple[Tensor, Tensor]) -> Any:
    needs, engine = detector._needs(), detector.engine
    rows = engine.collect([data], needs, seed=0, memory=1 << 30)
    return engine.passes_of(rows, needs, seed=0)


def test_the_score_is_the_formula(fitted: Auto, data: tuple[Tensor, Tensor]) -> None:
    passes = passes_of(fitted, data)
    said = columns(fitted, passes)
    assert set(fitted._part_names) == {"tulip", "react", "knn", "nci", "fdbd", "ratio"}
    assert fitted._weights["knn"] > 0
    assert {fitted._bars[name] for name in ("react", "fdbd")} <= {0.0, 1.0}  # no mild copies
    torch.testing.assert_close(fitted._score(fitted.fitted, passes), put_together(fitted, said))


def test_all_share_their_noise(fitted: Auto) -> None:
    order, ratio = (fitted.parts[fitted._part_names.index(name)] for name in ("tulip", "ratio"))
    assert order._settings() == ratio._settings()


def test_scores_are_made_where_the_passes_are(looking: Auto) -> None:
    """One part that takes its passes to the CPU makes all of them wait for it on a GPU."""
    assert [part._scores_on_device() for part in looking.parts] == [True] * 7


def test_constants_of_the_parts(fitted: Auto, data: tuple[Tensor, Tensor]) -> None:
    """J is the recipe's, and probabilities have the J that labels ask for."""
    order = fitted._order
    assert (order._setting.balance, order._samples) == (1.0, 6)
    assert order._state.j_score == order._setting.j
    assert order._state.j_score in (0.0, 1.0, 1.5)
    assert order._state.j_probs == order._state.plain.j_star != 1.5
    alike = Tulip(network(), n_samples=6).fit([data], recipe="balanced")
    assert torch.equal(fitted.predict(data[0]).probs, alike.predict(data[0]).probs)
    given = {"tulip": {"j": 2.0}, "react": {"percentile": 80.0}}
    other = Auto(network(), settings=given).fit([data])
    assert other._order._state.j_score == 2.0
    clips = [float(detector.fitted.parts[1].shaping.clip) for detector in (other, fitted)]
    assert clips[0] < clips[1]


def test_strength_0_ranks_as_tulip(data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    auto, tulip = (
        Auto(network(), strength=0).fit([data]),
        Tulip(network(), n_samples=6).fit([data], recipe="balanced"),
    )
    a, b = auto.score(x), tulip.score(x)
    assert torch.equal(a.argsort(stable=True), b.argsort(stable=True))
    assert torch.equal(auto.predict(x).probs, tulip.predict(x).probs)
    assert "auto-6: TULiP's score; nothing else is heard" in str(auto.report())


def test_features_that_may_be_negative_are_clipped(data: tuple[Tensor, Tensor]) -> None:
    model, (x, _) = network(nn.Tanh()), data
    labels = (model(3 * x) + torch.randn(400, 3) / 9).argmax(1)
    detector = Auto(model).fit([(x, labels)])
    assert detector._part_names == ("tulip", "react", "knn", "nci", "fdbd", "ratio")
    assert detector._worth["react"] > 0


def test_logits_that_are_changed_behind_the_last_layer(
    data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    """What features make of the answer hangs on what lies behind it; neighbours do not."""

    class Sharpened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor) -> Tensor:
            return 3 * self.network(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Sharpened()
        detector = Auto(model).fit([data])
        again = detector.fit([data])
    codes = {finding.code for finding in detector.report().findings}
    assert codes >= {"without-react", "without-nci", "without-fdbd"}
    assert again._part_names == ("tulip", "knn", "ratio")
    detector.save(tmp_path / "auto.tulip")
    loaded = tulip_ood.load(tmp_path / "auto.tulip", model)
    assert torch.equal(loaded.score(data[0]), detector.score(data[0]))


class Bare(nn.Module):
    """No layer at all, only parameters: no features to be found."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).tanh() * 3


def test_without_features_there_is_still_the_ratio(
    data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    x, _ = data

    model = Bare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = Auto(model).fit([data])
    assert detector._part_names == ("tulip", "ratio")
    detector.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", model)
    assert torch.equal(again.score(x), detector.score(x))


def seeing() -> nn.Sequential:
    """Two sizes of maps, one of them before the last."""
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU())
    model = nn.Sequential(*first, nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        model[-1].weight.mul_(40)
        model[-1].bias.sub_(model(smooth(200)).mean(0))
    return model


def smooth(n: int) -> Tensor:
    coarse = torch.randn(n, 3, 4, 4, generator=torch.Generator().manual_seed(n))
    return nn.functional.interpolate(coarse, size=(15, 15), mode="bilinear")


def seen(n: int = 300) -> tuple[Tensor, Tensor]:
    logits = seeing()(smooth(n)).detach()
    drawn = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    return smooth(n), (logits + logits.std() / 2 * drawn).argmax(1)


@pytest.fixture(scope="module")
def looking() -> Auto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Auto(seeing(), mirror=False).fit([seen()])


def test_inner_stages_count_beyond_what_mild_changes_explain(looking: Auto) -> None:
    odd = torch.cat([seen()[0][:40], 4 * seen()[0][:40]])
    passes = passes_of(looking, (odd, torch.arange(80) % 3))
    said, bars = columns(looking, passes), looking._bars
    assert looking._weights["depth"] == 2
    assert min(bar for name, bar in bars.items() if name != "features") >= 0
    torch.testing.assert_close(looking._score(looking.fitted, passes), put_together(looking, said))
    assert bool((said["depth"] > bars["depth"]).any())


def test_bars_are_what_mildly_changed_copies_say(looking: Auto) -> None:
    """Of those that are answered rightly, 1 or 2 % say more; nothing is asked of the others."""
    rows = looking.engine.collect([seen()], looking._needs(), seed=0, memory=1 << 30)
    depth = looking.parts[looking._part_names.index("depth")]
    trial = Trial(looking.engine, rows, depth._needs(), {"depth": depth}, seed=0)
    said = trial.of_mild_changes()["depth"]
    bars = [max(1.0, float(said.quantile(share))) for share in (0.99, 0.98)]
    assert [voice.bar for voice in looking._voices["depth"][1:]] == pytest.approx(bars)
    assert looking._bars["depth"] in [voice.bar for voice in looking._voices["depth"]]
    right = 0
    for kind in MILD:
        changed = shifted_rows(rows.take(range(len(rows) // 4)), kind, 0)
        answers = seeing()(torch.cat(list(changed.inputs))).argmax(1)
        right += int((answers == changed.labels).sum())
    assert len(said) == right


def test_inner_stages_are_kept_in_a_file(looking: Auto, tmp_path: Path) -> None:
    x, _ = seen()
    looking.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", seeing())
    assert isinstance(again, Auto)
    assert (again._bars, again._weights) == (looking._bars, looking._weights)
    assert torch.equal(again.score(4 * x), looking.score(4 * x))
    assert "inner stages (1) count from" in str(again.report())
    batches = torch.cat([looking.score(part) for part in x.split(7)])
    torch.testing.assert_close(batches, looking.score(x))


def test_progress_reaches_what_it_said() -> None:
    """Passes of mirror images are counted like others; inner stages are seen in the base pass."""
    told: list[tuple[int, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = Auto(seeing())
        detector.fit([seen()], progress=lambda done, total: told.append((done, total)))
    assert detector._needs().measures
    assert detector._needs().passes == 8 + detector._mirrors
    assert told[-1][0] == told[-1][1]


def test_an_input_costs_no_more_passes_than_were_said(looking: Auto) -> None:
    x, _ = seen()
    seen_rows = 0
    whole = looking.network.run

    def run(inputs: Tensor, *more: object, **options: object) -> object:
        nonlocal seen_rows
        seen_rows += len(inputs)
        return whole(inputs, *more, **options)  # type: ignore[arg-type]

    looking.score(x)  # what has to be looked at first
    looking.network.run = run  # type: ignore[method-assign,assignment]
    try:
        looking.score(x)
    finally:
        del looking.network.run
    assert seen_rows == looking._needs_to_score().passes * len(x)


def test_inner_stages_are_left_out_where_there_are_none(fitted: Auto, mirroring: Auto) -> None:
    for detector in (fitted, mirroring):
        assert "depth" not in detector._part_names
        assert "inner stages" not in str(detector.report())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert Auto(seeing(), strength=0).fit([seen()])._needs_to_score().passes <= 12


class Sides(nn.Module):
    """Looks at the left and the right half; the answer may hang on which is which."""

    def __init__(self, *, symmetric: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.head = nn.Linear(6, 32), nn.Linear(32, 3)
        self.symmetric = symmetric

    def forward(self, x: Tensor) -> Tensor:
        left, right = (half.mean(dim=(2, 3)) for half in x.chunk(2, dim=-1))
        if self.symmetric:
            # Nearly: a network never answers mirror images with the same logits.
            left, right = left + 1.1 * right, 1.1 * left + right
        return self.head(self.features(torch.cat([left, right], dim=1)).relu())


def images(model: nn.Module) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(300, 3, 8, 8)
    return x, (3 * model(4 * x) + torch.randn(300, 3) / 2).argmax(1).detach()


@pytest.fixture(scope="module")
def mirroring() -> Auto:
    """One that looks at mirror images, as its network answers them alike."""
    model = Sides(symmetric=True)
    return Auto(model).fit([images(model)])


def test_mirror_images_are_looked_at_where_they_are_answered_alike(
    mirroring: Auto, tmp_path: Path
) -> None:
    model = Sides(symmetric=True)
    x, _ = images(model)
    assert mirroring._mirrors
    assert mirroring._needs_to_score().passes == 9
    mirroring.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", model)
    assert torch.equal(again.score(x), mirroring.score(x))
    assert "mirror images" in str(mirroring.report())
    batches = torch.cat([mirroring.score(part) for part in x.split(7)])
    torch.testing.assert_close(batches, mirroring.score(x))


class FromBytes(nn.Module):
    """Takes bytes and normalises them itself; colours come first, or last."""

    def __init__(self, inner: nn.Module, *, colours_last: bool) -> None:
        super().__init__()
        self.inner, self.colours_last = inner, colours_last

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2) if self.colours_last else x
        return self.inner((x.to(self.inner.head.weight.dtype) - 128) / 64)


@pytest.mark.parametrize("symmetric", [False, True])
def test_bytes_are_mirrored_as_numbers_are(symmetric: bool) -> None:
    inner = Sides(symmetric=symmetric)
    x, y = images(inner)
    x = (64 * x + 128).clamp(0, 255).to(torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = Auto(inner, n_samples=2).fit([((x.float() - 128) / 64, y)])
        for colours_last in (False, True):
            model = FromBytes(inner, colours_last=colours_last)
            for kind in (torch.uint8, torch.float32):
                laid_out = (x.permute(0, 2, 3, 1) if colours_last else x).to(kind)
                detector = Auto(model, n_samples=2).fit([(laid_out, y)])
                assert detector._mirrors == plain._mirrors == symmetric
                assert detector._facts["mirrored"] == plain._facts["mirrored"]


def test_what_is_mirrored() -> None:
    wide = torch.arange(24, dtype=torch.uint8).reshape(1, 1, 4, 6)
    assert torch.equal(Mirrored().change(wide), wide.flip(-1))
    last = torch.arange(5 * 6 * 3).reshape(1, 5, 6, 3).to(torch.uint8)
    assert torch.equal(Mirrored().change({"x": last})["x"], last.flip(2))
    tiny = torch.rand(1, 1, 2, 3)  # channels first, three pixels wide
    assert torch.equal(Mirrored().change(tiny), tiny.flip(-1))
    assert Mirrored.fits(wide)
    assert not Mirrored.fits(wide.long())
    assert not Mirrored.fits((wide, wide))


def test_both_images_count_half(mirroring: Auto) -> None:
    x, y = images(Sides(symmetric=True))
    detector = mirroring
    needs, engine = detector._needs(), detector.engine
    own, other = (
        engine.passes_of(engine.collect([(x, y)], needs, seed=0, memory=1 << 30), needs, seed=0)
        for x in (x, x.flip(-1))
    )
    for name, part, state in zip(
        detector._part_names, detector.parts, detector.fitted.parts, strict=True
    ):
        mirrored = Mirrored().passes_of(own)
        expected = part._score(state, own)
        if name == "tulip":
            expected = (expected + detector.task.base_uncertainty(mirrored.base)) / 2
        if name in ("knn", "nci"):
            expected = (expected + part._score(state, mirrored)) / 2
        torch.testing.assert_close(detector._says(part, state, own), expected)
    # Rows are sorted by content: the same images, in another order.
    one, two = (p.base.sort(dim=0).values for p in (Mirrored().passes_of(own), other))
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("settings", [{}, {"mirror": False}, {"strength": 0.0}])
def test_mirror_images_are_left_alone(settings: dict[str, Any]) -> None:
    """Where they are answered otherwise, or where nobody wants them."""
    model = Sides(symmetric=bool(settings))
    detector = Auto(model, **settings).fit([images(model)])
    assert not detector._mirrors
    assert detector._needs().passes == 8


def test_what_no_kind_can_judge_stays_silent(data: tuple[Tensor, Tensor]) -> None:
    """A network that keeps its answers on every kind leaves nothing to weigh by."""
    x, _ = data
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
        model[2].bias.copy_(torch.tensor([5.0, -5.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = (torch.arange(len(x)) < 8).long()
        detector = Auto(model).fit([(x, labels)])
        j = detector._order._setting.j  # what the order of errors allows, there too
        plain = Tulip(model, n_samples=6, j=j).fit([(x, labels)], recipe="balanced")
    assert set(detector._weights.values()) == {0.0}
    assert detector._heard == ("tulip",)
    assert detector._needs_to_score() == plain._needs_to_score()
    order = plain.score(x)
    assert torch.equal(detector.score(x).argsort(stable=True), order.argsort(stable=True))


def test_weights_are_kept_in_a_file(
    fitted: Auto, data: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    x, _ = data
    fitted.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", network())
    assert isinstance(again, Auto)
    assert again._weights == fitted._weights
    assert torch.equal(again.score(x), fitted.score(x))
    assert any("auto-6" in line for line in again.report().lines)


@pytest.mark.parametrize("recipe", ["auto-1", "auto-2", "auto-3", "auto-4", "auto-5", None])
def test_another_recipe_is_not_taken_for_this_one(fitted: Auto, recipe: str | None) -> None:
    """The first did not stand in its files."""
    config, tensors = fitted.configuration()
    assert config.pop("rule") == "auto-6"
    if recipe is not None:
        config["rule"] = recipe
    words = rf"recipe {recipe or 'auto-1'}, .* has auto-6, .* fit it again"
    with pytest.raises(FileFormatError, match=words):
        Auto.from_configuration(network(), config, tensors)


def test_neighbours_do_not_learn_from_what_they_are_judged_on(
    data: tuple[Tensor, Tensor],
) -> None:
    """KNN finds a changed copy easily among other images, and hardly beside its own original."""
    seen: list[int] = []

    class Spy(tulip_ood.detectors.KNN):
        def _learn(self, passes: object) -> object:  # type: ignore[override]
            seen.append(len(passes))  # type: ignore[arg-type]
            return super()._learn(passes)  # type: ignore[arg-type]

    detector = Spy(network())
    rows = detector.engine.collect([data], detector._needs(), seed=0, memory=1 << 30)
    trial = Trial(detector.engine, rows, detector._needs(), {"knn": detector}, seed=0)
    weights, said = trial.weights()
    assert seen == [200]
    assert weights["knn"] == weight_of(said["knn"], said["entropy"])


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


def test_the_ratio_needs_no_search_for_j(fitted: Auto, data: tuple[Tensor, Tensor]) -> None:
    passes = fitted.engine.passes_of(
        fitted.engine.collect([data], fitted._needs(), seed=0, memory=1 << 30),
        fitted._needs(),
        seed=0,
    )
    part = fitted.parts[fitted._part_names.index("ratio")]
    assert isinstance(part, Ratio)
    quick = part._learn(passes)
    whole = fit_envelope(passes, part.task, part._setting, sqrt_outputs=part._uses_sqrt)
    assert quick.plain.j_star == 0.0 < whole.plain.j_star
    assert torch.equal(part._score(quick, passes), part._score(whole, passes))
