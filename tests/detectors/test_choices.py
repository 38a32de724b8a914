"""`scope="auto"` and `n_samples="auto"`: what is chosen, by which rule, and what it costs."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.detectors import sample_choice, scope_choice
from tulip_ood.detectors.allowance import Plan, within
from tulip_ood.detectors.recipes import Budget
from tulip_ood.errors import InputError
from tulip_ood.network.running import run_passes
from tulip_ood.numerics.metrics import spearman

if TYPE_CHECKING:
    from tulip_ood.network.passes import Passes

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(24, 24), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Staged(nn.Module):
    """Two stages of two blocks, on points of the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(2, 24)
        self.one, self.two = (nn.Sequential(Block(), Block()) for _ in range(2))
        self.fc = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.two(self.one(self.stem(x).relu())))
        return out


def trained(model: nn.Module, x: Tensor, y: Tensor, steps: int = 150) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    for parameter in model.parameters():
        parameter.grad = None
    return model.eval()


@dataclass(frozen=True)
class Setting:
    """A trained network with blocks, its data, and what it does not know."""

    model: nn.Module
    val: tuple[Tensor, Tensor]
    ood: Tensor


@pytest.fixture(scope="module")
def setting(vectors: Any) -> Setting:
    x, y = vectors.test
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = trained(Staged(), x[:200], y[:200])
    return Setting(model, (vectors.val[0][:420], vectors.val[1][:420]), vectors.ood[:60])


class Counting(nn.Module):
    """Counts the inputs that go through it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.count = inner, [0]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Counting":
        made = Counting(copy.deepcopy(self.inner, memo))
        made.count = self.count
        return made

    def forward(self, x: Tensor) -> Tensor:
        self.count[0] += len(x)
        return self.inner(x)


def auto_of(model: nn.Module, **more: Any) -> tulip_ood.Tulip:
    """Both are to be chosen; batches are large, for speed."""
    return tulip_ood.Tulip(
        model, **{"scope": "auto", "n_samples": "auto", "batch_size": 512, **more}
    )


@pytest.fixture(scope="module")
def auto(setting: Setting) -> tulip_ood.Tulip:
    """Both chosen, for a network with blocks and stages."""
    detector = auto_of(setting.model)
    return detector.fit([setting.val])


def explicit(auto: tulip_ood.Tulip, model: nn.Module, **more: Any) -> tulip_ood.Tulip:
    """The same settings, all of them said."""
    state = auto.fitted
    return tulip_ood.Tulip(
        model,
        batch_size=512,
        scope=auto.report().facts["scope"],
        n_samples=auto._settings().n_samples,
        epsilon=state.setting.epsilon,
        lam=state.lam,
        j=state.j_score,
        **more,
    )


def test_every_scope_is_judged_and_the_smallest_good_one_is_taken(auto: tulip_ood.Tulip) -> None:
    facts = auto.report().facts
    trades = facts["scopes"]
    assert [trade["scope"] for trade in trades] == ["head", "last-block", "last-stage", "all"]
    shares = [trade["share"] for trade in trades]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    for trade in trades:
        good = trade["low"] <= 0 and trade["loss"] <= 0.005
        assert trade["good"] == good
        assert trade["loss"] == pytest.approx(trades[-1]["auroc"] - trade["auroc"])
        assert trade["low"] <= trade["high"]
    assert facts["scope"] == next(trade["scope"] for trade in trades if trade["good"])


def test_scores_are_those_of_a_detector_that_was_told(
    auto: tulip_ood.Tulip, setting: Setting
) -> None:
    told = explicit(auto, setting.model).fit([setting.val], recipe="balanced")
    assert torch.equal(told.score(setting.ood), auto.score(setting.ood))
    assert torch.equal(told.calibration.scores, auto.calibration.scores)
    one, two = told._make_perturbation(told._settings()), auto._make_perturbation(auto._settings())
    assert one.scales == two.scales


def test_the_report_shows_the_trade(auto: tulip_ood.Tulip) -> None:
    text, facts = str(auto.report()), auto.report().facts
    assert f"scope {facts['scope']}: the smallest that does as well" in text
    assert "last-stage: " in text
    assert f"M = {auto._settings().n_samples}: " in text
    assert f"{auto._settings().n_samples} noisy passes" in text


@pytest.mark.parametrize(("drift", "passes"), [("pass", "8.0"), ("norm", "7.0")])
def test_the_trade_counts_the_passes_that_are_made(vectors: Any, drift: str, passes: str) -> None:
    detector = tulip_ood.Tulip(vectors.model, scope="auto", n_samples=6, drift=drift)
    text = str(detector.fit(vectors.loader(), recipe="balanced").report())
    assert f"all: {passes} passes" in text


def test_a_saved_detector_knows_what_was_chosen(
    auto: tulip_ood.Tulip, setting: Setting, tmp_path: Path
) -> None:
    auto.save(tmp_path / "d.safetensors")
    again = tulip_ood.load(tmp_path / "d.safetensors", setting.model)
    assert isinstance(again, tulip_ood.Tulip)
    assert again.report().facts["scope"] == auto.report().facts["scope"]
    assert str(again.report()) == str(auto.report())
    assert again._settings() == auto._settings()
    assert torch.equal(again.score(setting.ood), auto.score(setting.ood))
    header = tulip_ood.detectors.saving.read_header(tmp_path / "d.safetensors")
    # A changed network is looked at anew.
    assert header["config"]["as_given"]["scope"] == "auto"
    assert header["config"]["as_given"]["n_samples"] == "auto"
    assert header["config"]["n_samples"] == auto._settings().n_samples


def test_a_second_fit_chooses_anew(auto: tulip_ood.Tulip, setting: Setting) -> None:
    detector = auto_of(setting.model)
    detector._chosen_scope, detector._chosen_samples = "head", 3  # as if another fit had said so
    again, first = detector.fit([setting.val]).report().facts, auto.report().facts
    assert (again["scope"], again["samples"]) == (first["scope"], first["samples"])


@pytest.mark.parametrize("worse", [0.0, 0.02])
def test_a_scope_that_loses_is_not_taken(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, worse: float
) -> None:
    """The last block's mean AUROC is made to look lower than it is, the head's hopeless."""
    real = scope_choice.ScopeSearch._resampled

    def drawn(self: Any, one: Any) -> Tensor:
        scales = one.forwards  # the head costs next to nothing, all parameters nothing at all
        found = real(self, one)
        if one.candidate is self._tuning.ranked[0]:
            return torch.linspace(0.90, 0.95, len(found), dtype=found.dtype)
        lower = 0.2 if scales < 500 else worse
        return torch.linspace(0.90, 0.95, len(found), dtype=found.dtype) - lower

    monkeypatch.setattr(scope_choice.ScopeSearch, "_resampled", drawn)
    detector = auto_of(setting.model, n_samples=10).fit([setting.val])
    assert detector.report().facts["scope"] == ("last-block" if worse == 0 else "all")


def test_networks_without_blocks_have_fewer_scopes(vectors: Any) -> None:
    detector = auto_of(vectors.model, n_samples=10).fit(vectors.loader())
    found = [trade["scope"] for trade in detector.report().facts["scopes"]]
    assert found[0] == "head"
    assert found[-1] == "all"
    single = trained(nn.Linear(2, 3), *vectors.test)
    alone = auto_of(single, n_samples=10).fit(vectors.loader())
    assert [trade["scope"] for trade in alone.report().facts["scopes"]] == ["all"]


@pytest.mark.parametrize(("n", "samples"), [(200, "auto"), (420, 10), (420, "auto")])
def test_choosing_costs_at_most_four_plain_calibrations(
    setting: Setting, n: int, samples: int | str
) -> None:
    counted = Counting(setting.model)
    x, y = setting.val
    detector = auto_of(counted, n_samples=samples)
    detector.fit([(x[:n], y[:n])])
    assert counted.count[0] <= 4 * 12 * max(n, 1000)
    assert detector.report().facts["forwards"] < counted.count[0]


@pytest.mark.parametrize("inputs", [100, 399, 400, 1000, 1200, 2000, 50_000])
@pytest.mark.parametrize("scopes", [0, 2, 3])
@pytest.mark.parametrize("samples", [10, 16])
def test_a_plan_stays_within_the_allowance(inputs: int, scopes: int, samples: int) -> None:
    usable = inputs if inputs < 400 else 2 * inputs // 5
    plan = Plan(inputs, samples, usable, 7, 0, 4, scopes, samples == 16)
    budget = within(Budget(), plan)
    assert plan.in_any_case(budget) + plan.looked_at(budget) <= 4 * 12 * max(inputs, 1000)
    assert budget.kind_inputs >= 48
    if not scopes and samples == 10:
        assert budget == Budget()


@pytest.mark.parametrize("recipe", ["balanced", "paper"])
def test_recipes_that_search_nothing_keep_their_setting(setting: Setting, recipe: str) -> None:
    detector = auto_of(setting.model)
    detector.fit([setting.val], recipe=recipe)
    facts = detector.report().facts
    assert {trade["epsilon"] for trade in facts["scopes"]} == {0.005}
    assert detector._tuning is None
    told = tulip_ood.Tulip(
        setting.model, scope=facts["scope"], n_samples=detector._settings().n_samples
    ).fit([setting.val], recipe=recipe)
    assert torch.equal(told.score(setting.ood), detector.score(setting.ood))


def test_what_the_user_sets_is_kept(setting: Setting) -> None:
    detector = auto_of(setting.model, n_samples=10, epsilon=0.004, j=1.5)
    detector.fit([setting.val])
    assert {trade["epsilon"] for trade in detector.report().facts["scopes"]} == {0.004}
    assert detector.fitted.j_score == 1.5
    assert detector._settings().n_samples == 10


def test_smaller_scopes_are_judged_at_noise_that_moves_as_much(auto: tulip_ood.Tulip) -> None:
    trades = {trade["scope"]: trade for trade in auto.report().facts["scopes"]}
    assert trades["head"]["epsilon"] >= trades["all"]["epsilon"]


def test_layer_scales_may_speak_of_layers_outside_the_scope(setting: Setting) -> None:
    first = next(iter(dict(setting.model.named_parameters())))
    detector = auto_of(setting.model, n_samples=10, layer_scale={first: 0.5})
    assert detector.fit([setting.val], recipe="balanced").report().facts["scope"]


def test_passes_alone_are_not_enough(setting: Setting) -> None:
    known = tulip_ood.Tulip(setting.model).fit([setting.val], recipe="balanced")
    x, y = setting.val
    passes = run_passes(known.engine.perturbation(known._settings()), x, batch_size=64, labels=y)
    for arguments in ({"scope": "auto"}, {"n_samples": "auto"}):
        with pytest.raises(InputError, match="needs the inputs"):
            tulip_ood.Tulip(setting.model, **arguments).fit(passes, recipe="balanced")


def test_too_few_kinds_leave_all_parameters(setting: Setting, monkeypatch: Any) -> None:
    monkeypatch.setattr("tulip_ood.detectors.self_tuning.FEWEST_KINDS", 99)
    detector = auto_of(setting.model)
    detector.fit([setting.val])
    assert "not-chosen" in [finding.code for finding in detector.report().findings]
    assert detector._settings().n_samples == 10
    assert len(detector._make_perturbation(detector._settings()).scales) == len(
        list(setting.model.parameters())
    )


# -------------------------------------------------------------------------- n_samples


@pytest.mark.parametrize("bad", [0, -1, "many", 2.5])
def test_only_whole_numbers_and_auto(vectors: Any, bad: Any) -> None:
    with pytest.raises(
        InputError, match="a whole number of at least 1, or 'auto'"
    ):
        tulip_ood.Tulip(vectors.model, n_samples=bad)


def test_samples_are_added_until_the_ranking_stands_still(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is what plain passes with that many samples give, and nothing is run twice."""
    monkeypatch.setattr(sample_choice, "STILL", 2.0)  # never
    taken: dict[str, Any] = {}
    real = sample_choice.choose_samples

    def watched(runner: Any, looked: Any, candidate: Any, *rest: Any, **more: Any) -> Any:
        taken.update(runner=runner, looked=looked, candidate=candidate)
        before = runner.forwards
        found = real(runner, looked, candidate, *rest, **more)
        taken["spent"] = runner.forwards - before
        return found

    monkeypatch.setattr("tulip_ood.detectors.tulip_fitting.choose_samples", watched)
    detector = tulip_ood.Tulip(setting.model, n_samples="auto", j=1.0).fit([setting.val])
    assert detector._settings().n_samples == 16
    steps = detector.report().facts["samples"]
    assert [m for m, _ in steps] == list(range(2, 16, 2))
    looked = taken["looked"]
    ranked = [looked.inside.take(range(min(128, len(looked.inside))))]
    ranked += [rows.take(range(min(32, len(rows)))) for rows in looked.outside.values()]
    assert taken["spent"] == 12 * sum(map(len, ranked))

    whole = [
        run_passes(
            detector._make_perturbation(detector._settings()),
            rows,
            batch_size=64,
            labels=rows.labels,
        )
        for rows in ranked
    ]

    def scores(m: int) -> Tensor:
        parts = [
            replace(p, noisy=p.noisy[:m], settings=p.settings.with_(n_samples=m)) for p in whole
        ]
        found = sample_choice.scores_of(
            taken["candidate"], parts[0], parts[1:], detector.task, "ent", sqrt_outputs=False
        )
        return torch.cat(found)

    for m, rho in steps:
        assert spearman(scores(m), scores(m + 2)) == pytest.approx(rho, abs=1e-6)


def test_the_first_step_that_stands_still_ends_it(auto: tulip_ood.Tulip) -> None:
    steps = auto.report().facts["samples"]
    assert all(rho < sample_choice.STILL for _, rho in steps[:-1])
    if steps[-1][1] >= sample_choice.STILL:
        assert auto._settings().n_samples == steps[-1][0]
    else:
        assert auto._settings().n_samples == sample_choice.MOST_SAMPLES


def test_without_strength_there_is_nothing_to_add(setting: Setting) -> None:
    detector = tulip_ood.Tulip(setting.model, n_samples="auto", j=0.0).fit([setting.val])
    assert detector.report().facts["samples"] == []
    assert detector._settings().n_samples == 10
    assert detector._needs_to_score().settings.n_samples == 0


def test_a_shaped_score_has_a_scope_and_samples_too(setting: Setting) -> None:
    detector = tulip_ood.Tulip(
        setting.model, scope="auto", n_samples="auto", shaping="react:90", epsilon=0.005
    ).fit([setting.val])
    assert detector.report().facts["scope"] in scope_choice.SCOPES
    assert isinstance(detector.score(setting.ood), Tensor)


def test_passes_of_the_head_follow_from_features(setting: Setting) -> None:
    from tulip_ood.detectors.trial_passes import HeadRunner, Runner
    from tulip_ood.network.rows import collect_rows

    detector = tulip_ood.Tulip(setting.model, scope="head")
    rows = collect_rows([setting.val])
    detector.network.probe(rows.first(4))
    perturbation = detector._make_perturbation(detector._settings())
    plain, quick = (
        kind(perturbation, 64, 0, None, noisy_features=True) for kind in (Runner, HeadRunner)
    )
    base = plain.base(rows)
    assert HeadRunner.serves(perturbation, base)
    slow: Passes = plain.passes(rows, base, 0.02)
    fast = quick.passes(rows, base, 0.02)
    assert quick.forwards == 0
    for name in ("noisy", "drift", "noisy_features", "drift_features", "labels"):
        torch.testing.assert_close(getattr(fast, name), getattr(slow, name))
    for one, two in zip(fast.heads, slow.heads, strict=True):
        torch.testing.assert_close(one.weight, two.weight)
    assert fast.ids == slow.ids
    assert fast.settings == slow.settings
