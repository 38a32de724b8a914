"""`Auto` in use: reasons, refits, files, and arguments that cannot be meant."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood import Auto, Tulip
from tulip_ood.detectors.registry import METHODS
from tulip_ood.detectors.steadiness import look_at_noise
from tulip_ood.errors import InputError

from .test_auto import Bare, network, seeing, seen, smooth


@pytest.fixture(scope="module")
def vectors() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(400, 6)
    return x, (network()(3 * x) + torch.randn(400, 3) / 2).argmax(1)


def fitted(model: nn.Module, data: Any, **settings: Any) -> Auto:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Auto(model, **settings).fit([data])


@pytest.fixture(scope="module")
def looking() -> Auto:
    return fitted(seeing(), seen(), mirror=False)


def test_the_cost_that_is_told(looking: Auto) -> None:
    """With mirror images, which this one leaves alone, it is one pass more."""
    passes = looking._needs_to_score().passes
    assert "depth" in looking._heard
    assert f"passes to score an input: {passes}" in str(looking.report())
    assert METHODS["auto"].passes == passes + 1


# ------------------------------------------------------------------------- reasons


def test_an_input_that_only_looks_strange_is_not_called_ambiguous(looking: Auto) -> None:
    """The network may be as sure as ever: the reason is what stood out."""
    strange = looking.predict(4 * smooth(60))
    sure = [
        reason
        for reason, accepted in zip(strange.reason, strange.accepted, strict=True)
        if not accepted and reason.percentiles["entropy"] < 50
    ]
    assert len(sure) > 10
    assert {reason.kind for reason in sure} == {"unfamiliar"}


def test_reasons_know_where_an_input_stands_among_held_out_data(
    looking: Auto, tmp_path: Path
) -> None:
    odd = torch.cat([seen()[0][:20], 4 * smooth(20)])
    answer = looking.predict(odd)
    assert set(answer.reason[0].percentiles) == {
        "entropy", "stretch", "bound", "features", "neighbours", "stages",
    }  # fmt: skip
    # Fresh inputs stand anywhere, not all of them beyond what was learned from.
    stands = torch.tensor(
        [r.percentiles["neighbours"] for r in looking.predict(smooth(301)).reason]
    )
    assert 30 < float(stands.median()) < 70
    assert min(reason.percentiles["stages"] for reason in answer.reason[20:]) > 95
    looking.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", seeing()).predict(odd)
    assert [str(reason) for reason in again.reason] == [str(reason) for reason in answer.reason]
    for name in ("probs", "score", "bound", "stretch"):
        assert torch.equal(getattr(again, name), getattr(answer, name))


def test_probabilities_and_bound_are_tulips(vectors: tuple[Tensor, Tensor]) -> None:
    """Also where its score needs one pass, and the probabilities more."""
    x, _ = vectors
    for j in (None, 0.0):
        auto = fitted(network(), vectors, parts=("tulip",), settings={"tulip": {"j": j}})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tulip = Tulip(network(), j=j, n_samples=6).fit([vectors], recipe="balanced")
        one, other = auto.predict(x), tulip.predict(x)
        for name in ("probs", "bound", "stretch", "base_probs"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert [r.percentiles for r in one.reason] == [r.percentiles for r in other.reason]


# --------------------------------------------------------------------- other tasks


def test_dense_images_are_not_mirrored() -> None:
    """A mirrored image has its labels elsewhere."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    x = smooth(60)
    y = (8 * model(x) + torch.randn(60, 3, 15, 15)).argmax(1)
    detector = fitted(model, (x, y), task="dense", n_samples=2)
    assert detector._part_names == ("tulip",)
    assert detector.predict(x[:2]).accepted.shape == (2, 15, 15)


def test_numbers_are_not_ranked_by_their_size(vectors: tuple[Tensor, Tensor]) -> None:
    """D grows with the output, so λ is 0, as in the recipe `self` where nothing can be searched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    x, _ = vectors
    y = (model(x) + 0.1 * torch.randn(400, 1)).detach()
    detector = Auto(model, task="regression").fit([(x, y)])
    assert detector.fitted.parts[0].lam == 0
    assert "regression-drift" not in [finding.code for finding in detector.report().findings]


# ------------------------------------------------------------- what a fit leaves out


def test_a_second_fit_says_what_the_first_said(vectors: tuple[Tensor, Tensor]) -> None:
    detector = fitted(Bare(), vectors)
    first = str(detector.report())
    assert "without-knn" in [finding.code for finding in detector.report().findings]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector.fit([vectors])
    assert str(detector.report()) == first


class Either(nn.Module):
    """Takes vectors, or images of one pixel's height."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = seeing()

    def forward(self, x: Tensor) -> Tensor:
        images = x.reshape(len(x), 3, 15, 15) if x.ndim == 2 else x
        out: Tensor = self.inner(images)
        return out


def test_what_one_fit_had_no_use_for_is_tried_again(tmp_path: Path) -> None:
    """Vectors have no inner stages; the next data may."""
    x, y = seen()
    few = {"mirror": False, "n_samples": 2}
    detector = fitted(Either(), (x.flatten(1), y), **few)
    assert "depth" not in detector._part_names
    detector.save(tmp_path / "auto.tulip")
    loaded = tulip_ood.load(tmp_path / "auto.tulip", Either())
    assert torch.equal(loaded.score(x.flatten(1)), detector.score(x.flatten(1)))
    fresh = fitted(Either(), (x, y), **few)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for again in (detector.fit([(x, y)]), loaded.fit([(x, y)])):
            assert isinstance(again, Auto)
            assert "depth" in again._part_names
            assert torch.equal(again.score(x), fresh.score(x))
            assert again.fitted_state()[0] == fresh.fitted_state()[0]


def test_training_data_is_not_learned_from(vectors: tuple[Tensor, Tensor]) -> None:
    """What neighbours are worth was found with validation data; other methods still learn."""
    x, y = vectors
    plain = fitted(network(), vectors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = Auto(network()).fit([vectors], train=[(2 * x, y)])
        found = tulip_ood.compare(
            network(),
            id_val=[vectors],
            id_test=[(x[:100], y[:100])],
            ood={"far": [4 * x[:50]]},
            train=[vectors],
            methods=["auto", "knn"],
        )
    assert torch.equal(given.score(x), plain.score(x))
    assert "training inputs" not in str(given.report())
    assert found.train is not None
    assert "knn" in found.train.methods
    assert "auto" not in found.train.methods
    assert not found.skipped


def test_what_is_advised_can_be_done(vectors: tuple[Tensor, Tensor]) -> None:
    """`Auto` has no j=…, and chooses nothing on OOD data."""
    own = {"tulip": {"j": 0.0, "epsilon": 3.0}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = Auto(network(), parts=("tulip",), settings=own).fit([vectors], tune=[vectors])
    found = {finding.code: finding.text for finding in detector.report().findings}
    assert "chooses nothing on OOD data" in found["tune-unused"]
    assert found["j-zero"].endswith("(for auto, settings={'tulip': {'j': …}})")
    assert "tune" not in found["j-zero"]
    assert found["near-chance"].endswith("(for auto, settings={'tulip': {'epsilon': …}})")


# ----------------------------------------------------------------------- arguments


def test_classes_may_be_numbers_of_any_kind(vectors: tuple[Tensor, Tensor]) -> None:
    x, y = vectors
    plain = fitted(network(), (x[:100], y[:100]), n_samples=2)
    for dtype in (torch.uint8, torch.int32, torch.float32):
        other = fitted(network(), (x[:100], y[:100].to(dtype)), n_samples=2)
        assert torch.equal(other.score(x), plain.score(x)), dtype


def test_samples_that_were_chosen_are_kept_in_a_file(
    vectors: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    x, _ = vectors
    detector = fitted(network(), vectors, n_samples="auto", scope="auto")
    detector.save(tmp_path / "auto.tulip")
    again = tulip_ood.load(tmp_path / "auto.tulip", network())
    assert torch.equal(again.score(x), detector.score(x))
    config, _ = again.configuration()
    assert config["as_given"] == {"n_samples": "auto", "scope": "auto"}


def test_how_passes_are_made_is_told_to_tulip_and_holds_for_all(
    vectors: tuple[Tensor, Tensor],
) -> None:
    own = {"tulip": {"delta": 4.0, "epsilon": 0.01}}
    detector = Auto(network(), parts=("ratio", "tulip"), settings=own)
    assert detector._part_names == ("tulip", "ratio")
    fitted_on = detector.fit([vectors]).engine._perturbation
    assert fitted_on is not None
    assert (fitted_on.settings.delta, fitted_on.settings.epsilon) == (4.0, 0.01)
    assert len({part._settings() for part in detector.parts}) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": "tulip"}, "parts must be a list of names, .* got 'tulip'"),
        ({"parts": 3}, "parts must be a list of names"),
        ({"parts": ("tulip", 3)}, "got tulip, 3"),
        ({"settings": {"kn": {"k": 3}}}, "settings are given for kn, which is no part of auto"),
        ({"settings": {"knn": 3}}, "settings must hold arguments by name .* got {'knn': 3}"),
        ({"settings": ["knn"]}, r"settings must hold arguments by name .* got \['knn'\]"),
        ({"settings": {"ratio": {"n_samples": 4}}}, "all parts share TULiP's passes: ratio takes"),
    ],
)
def test_what_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Auto(network(), **settings)


def test_settings_of_a_sum_belong_to_its_parts() -> None:
    with pytest.raises(
        InputError, match="settings are given for vim, which is not among the parts"
    ):
        tulip_ood.detectors.make("msp&knn", network(), settings={"vim": {"k": 3}})


# ----------------------------------------------------------------------- without noise


@pytest.fixture(scope="module")
def quiet() -> Auto:
    return fitted(seeing(), seen(), n_samples=0)


def test_without_noise_two_passes_are_enough(quiet: Auto) -> None:
    """The image and its mirror image; nothing else runs, and what is told says so."""
    assert "ratio" not in quiet._part_names
    assert quiet._needs_to_score().passes == 1 + quiet._mirrors  # not looked at here
    seen_rows: list[int] = []
    model = quiet.network.module
    hook = model.register_forward_hook(lambda _m, inputs, _o: seen_rows.append(len(inputs[0])))
    try:
        quiet.score(smooth(20))
    finally:
        hook.remove()
    assert sum(seen_rows) == 20 * (1 + quiet._mirrors)
    assert "the network's own entropy" in str(quiet.report())


def test_without_noise_the_network_answers_for_itself(quiet: Auto) -> None:
    x = smooth(30)
    with torch.no_grad():
        own = seeing()(x).softmax(-1)
    torch.testing.assert_close(quiet.predict(x).probs.float(), own)


def test_without_noise_is_what_no_width_gives(quiet: Auto) -> None:
    """J = 0, however many passes there are to learn from."""
    parts = ("tulip", "react", "knn", "nci", "fdbd", "depth")
    still = {"tulip": {"j": 0.0}}
    other = fitted(seeing(), seen(), parts=parts, settings=still, n_samples=4)
    x = torch.cat([smooth(20), 3 * smooth(20)])
    torch.testing.assert_close(other.score(x), quiet.score(x))


def test_without_noise_is_kept_in_a_file(quiet: Auto, tmp_path: Path) -> None:
    quiet.save(tmp_path / "quiet.tulip")
    again = tulip_ood.load(tmp_path / "quiet.tulip", seeing())
    assert isinstance(again, Auto)
    assert again.n_samples == 0
    assert again._needs_to_score().passes == quiet._needs_to_score().passes
    x = smooth(10)
    assert torch.equal(again.score(x), quiet.score(x))
    assert again.fit([seen()])._needs_to_score().passes == quiet._needs_to_score().passes


def test_probabilities_may_need_noise_that_the_score_does_not(
    vectors: tuple[Tensor, Tensor],
) -> None:
    """J = 0 over a network that is too sure of itself: `needs` counts what its answer takes."""
    model, (x, _) = network(), vectors
    with torch.no_grad():
        model[-1].weight.mul_(40)
        torch.manual_seed(0)
        y = torch.multinomial((model(x) / 2).softmax(dim=1), 1).squeeze(1)
    parts, still = ("tulip", "react", "knn", "nci"), {"tulip": {"j": 0.0}}
    silent = fitted(model, (x, y), parts=parts, settings=still)
    tulip = Tulip(model, n_samples=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tulip.fit([(x, y)], recipe="balanced")
    assert tulip.fitted.j_probs > 0
    assert (silent._needs_to_score().settings.n_samples, silent.needs.settings.n_samples) == (0, 6)
    answer = silent.predict(x)
    assert torch.equal(answer.probs, tulip.predict(x).probs)
    assert torch.equal(answer.score, silent.score(x))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"settings": {"tulip": {"j": 2.0}}}, "so that J is 0: tulip takes no j=2"),
        ({"task": "regression"}, "n_samples must be above 0"),
        ({"n_samples": -1}, "a whole number of at least 0, or 'auto'; got -1"),
        ({"n_samples": 0.0}, "a whole number of at least 0, or 'auto'; got 0.0"),
        ({"n_samples": False}, "a whole number of at least 0, or 'auto'; got False"),
    ],
)
def test_what_needs_noise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Auto(network(), **{"n_samples": 0, **settings})


@pytest.mark.parametrize("name", ["auto&knn", "ent&auto"])
def test_auto_is_no_part_of_a_sum(name: str) -> None:
    with pytest.raises(InputError, match="auto is a sum already.*use it alone"):
        tulip_ood.detectors.make(name, torch.nn.Linear(4, 3))


class Dead(nn.Module):
    """Its features are all zero, so that nothing lies near anything."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.head, self.beside = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).relu() * 0) + self.beside(x)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_features_without_neighbours_are_left_out(tmp_path: Path) -> None:
    model = Dead()
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    y = (model(3 * x) + torch.randn(300, 3) / 2).argmax(1)
    detector = Auto(model, head="head").fit([(x, y)])
    told = [str(finding) for finding in detector.report().findings]
    assert any("no neighbours" in line and "without-knn" in line for line in told)
    assert "knn" not in detector._part_names
    detector.save(tmp_path / "dead.tulip")
    again = tulip_ood.load(tmp_path / "dead.tulip", model)
    assert torch.equal(again.score(x), detector.score(x))


class Rare(Dead):
    """Its features are zero but for very few inputs: in some fold there are no others."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).relu() * (x[:, :1] > 2).to(x))


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_what_cannot_learn_from_every_fold_is_left_out(tmp_path: Path) -> None:
    """The trial learned from one of the two inputs that have features."""
    model, random = Rare(), torch.Generator().manual_seed(1)
    x, y = torch.randn(160, 6, generator=random), torch.randint(3, (160,), generator=random)
    assert int((x[:, 0] > 2).sum()) == 2
    detector = Auto(model, n_samples=2).fit([(x, y)])
    assert detector._part_names == ("tulip", "react", "nci", "fdbd", "ratio")
    told = {finding.code: finding.text for finding in detector.report().findings}
    assert "no neighbours" in told["without-knn"]
    detector.save(tmp_path / "rare.tulip")
    assert torch.equal(tulip_ood.load(tmp_path / "rare.tulip", model).score(x), detector.score(x))
    with pytest.raises(InputError, match=r"^there are no neighbours: all penultimate features"):
        tulip_ood.detectors.make("msp&knn", model).fit([(x, y)])  # nothing of it may be left out


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_strength_0_asks_nothing_of_what_is_not_heard(tmp_path: Path) -> None:
    """Neither that it can learn, nor room in a file; another fit may have use for it."""
    model = Dead()
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    y = (model(3 * x) + torch.randn(300, 3) / 2).argmax(1)
    detector = Auto(model, head="head", strength=0).fit([(x, y)])
    assert detector._part_names == ("tulip",)
    alone = Tulip(model, head="head", n_samples=6).fit([(x, y)], recipe="balanced")
    assert torch.equal(detector.score(x).argsort(stable=True), alone.score(x).argsort(stable=True))
    detector.save(tmp_path / "alone.tulip")
    again = tulip_ood.load(tmp_path / "alone.tulip", model)
    assert torch.equal(again.score(x), detector.score(x))
    again.strength = 1.0
    assert again.fit([(x, y)])._part_names == ("tulip", "ratio")


class Cosine(nn.Module):
    """Logits are cosines, much enlarged: rounding is, too."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.weight = nn.Linear(6, width), nn.Parameter(torch.randn(3, width))

    def forward(self, x: Tensor) -> Tensor:
        features = nn.functional.normalize(self.features(x).relu(), dim=1)
        return 100 * features @ nn.functional.normalize(self.weight, dim=1).T


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_scores_that_hang_on_the_batch_are_told() -> None:
    model = Cosine()
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    y = (model(x) + 10 * torch.randn(300, 3)).argmax(1)
    detector = Auto(model, settings={"tulip": {"epsilon": 1e-5, "j": 50.0}}).fit([(x, y)])
    told = {finding.code: str(finding) for finding in detector.report().findings}
    assert "for auto, settings={'tulip': {'epsilon': …}}" in told["batch-sensitive"]
    alone = torch.cat([detector.score(one) for one in x[:40].split(1)])
    assert (detector.score(x[:40]) - alone).abs().max() > 5e-6 * detector.calibration.spread


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_nothing_is_advised_of_a_j_that_is_0() -> None:
    """The ratio of noise to drift is stretched, and has no J."""
    model = Cosine(20_000)  # so large that passes stay in float32
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    y = (model(x) + torch.randn(300, 3)).argmax(1)
    own = {"tulip": {"epsilon": 1e-6, "j": 0.0}}
    detector = Auto(model, n_samples=2, settings=own, parts=["tulip", "ratio"]).fit([(x, y)])
    detector._speak({"ratio": 2})  # whatever the order of errors says of it here
    assert detector._heard == ("tulip", "ratio")
    rows = detector.engine.collect([(x, y)], detector._needs(), seed=0, memory=1 << 30)
    told = {finding.code: finding.text for finding in look_at_noise(detector, rows, 0.0)}
    assert "other batches: ε = 1e-06 stretches it beyond float32" in told["batch-sensitive"]
    assert "Use a larger epsilon, or give the detector" in told["batch-sensitive"]
    assert "j," not in told["batch-sensitive"]
