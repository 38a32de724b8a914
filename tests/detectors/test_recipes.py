"""What each recipe fits, and what self-tuning chooses, drops and costs."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import InputError, TulipWarning
from tulip_ood.network.running import run_passes

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


class Counting(nn.Module):
    """Counts the inputs that go through it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.count = [0]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Counting":
        import copy

        made = Counting(copy.deepcopy(self.inner, memo))
        made.count = self.count
        return made

    def forward(self, x: Tensor) -> Tensor:
        self.count[0] += len(x)
        return self.inner(x)


def test_paper_is_the_letter(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model).fit(images.loader(), recipe="paper")
    state, settings = detector._state, detector._settings()
    assert (settings.epsilon, settings.delta, settings.n_samples) == (0.005, 8.0, 10)
    assert settings.antithetic is False
    assert state.lam == 1.25
    assert detector._uses_sqrt is True
    assert state.j_score == state.j_star


def test_balanced_lets_s_average_to_zero(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model).fit(images.loader(), recipe="balanced")
    state = detector._state
    assert state.lam == state.balanced_lam
    assert detector._settings().antithetic is True
    passes = run_passes(
        detector.engine.perturbation(detector._settings()), images.val[0], batch_size=64
    )
    # On all validation data, of which the fit has seen one half, the mean is 0 to sampling error.
    from tulip_ood.detectors.measured import measure

    bound = measure(passes, sqrt_outputs=False).bound(state.trace_xx, state.lam)
    assert bound.mean().abs() < 5 * bound.std() / len(bound) ** 0.5


@pytest.mark.parametrize("recipe", ["self-1", "self-2"])
def test_self_takes_the_best_mean_over_the_kinds(images: Any, recipe: str) -> None:
    """self-1 by rank, self-2 by AUROC; both recomputed here from the AUROCs, plainly."""
    detector = tulip_ood.Tulip(images.model).fit(images.loader(), recipe=recipe)
    tuning = detector._tuning
    assert tuning is not None
    tried = tuning.ranked

    def value(candidate: Any) -> float:
        if recipe == "self-2":
            return sum(candidate.aurocs.values()) / len(candidate.aurocs)
        ranks = []
        for kind, mine in candidate.aurocs.items():
            others = [c.aurocs[kind] for c in tried]
            better, equal = sum(o > mine for o in others), sum(o == mine for o in others)
            ranks.append(1 + better + (equal - 1) / 2)
        return -sum(ranks) / len(ranks)

    values = [value(candidate) for candidate in tried]
    assert values == pytest.approx([candidate.value for candidate in tried])
    assert values == sorted(values, reverse=True)
    assert detector._state.j_score == tried[0].j
    assert detector._state.setting.epsilon == tried[0].setting.epsilon
    assert any(candidate.j == 0.0 for candidate in tried)
    assert detector.report().facts["recipe"] == recipe


@pytest.mark.parametrize("n", [200, 500])
def test_self_tuning_costs_at_most_four_plain_calibrations(images: Any, n: int) -> None:
    """Counted in inputs that go through the network: 4 × 12 × max(N, 1000)."""
    counted = Counting(images.model)
    x, y = images.val
    tulip_ood.Tulip(counted).fit([(x[:n], y[:n])])
    assert counted.count[0] <= 4 * 12 * max(n, 1000)


def test_what_the_user_sets_is_never_searched(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model, epsilon=0.003, lam=0.25, j=1.25)
    detector.fit(images.loader())
    state = detector._state
    assert (state.setting.epsilon, state.lam, state.j_score) == (0.003, 0.25, 1.25)
    assert {c.setting.epsilon for c in detector._tuning.ranked} == {0.003}


def test_a_search_space_restricts_the_search(images: Any) -> None:
    space = {"epsilon": [0.002], "balance": [0.5, 1.0], "j": [0.0, 2.0], "j_scaling": []}
    detector = tulip_ood.Tulip(images.model).fit(images.loader(), tune=space)
    tried = {(c.setting.epsilon, c.setting.balance, c.j) for c in detector._tuning.ranked}
    assert tried == {(0.002, 0.5, 0.0), (0.002, 0.5, 2.0), (0.002, 1.0, 2.0)}
    with pytest.raises(InputError, match="a search space has the keys"):
        tulip_ood.Tulip(images.model).fit(images.loader(), tune={"gamma": [1]})


def test_real_ood_data_is_searched_against(images: Any) -> None:
    ood = [images.ood[:150]]
    detector = tulip_ood.Tulip(images.model).fit(images.loader(), tune=ood)
    best = detector._tuning.ranked[0]
    assert list(best.aurocs) == ["OOD validation data"]
    assert best.aurocs["OOD validation data"] == max(
        c.aurocs["OOD validation data"] for c in detector._tuning.ranked
    )


def test_paper_searches_j_scaling_where_there_is_ood_data(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model, lam=0.01, sqrt_outputs=False)
    detector.fit(images.loader(), recipe="paper", tune=[images.ood[:150]])
    tried = sorted(c.setting.j_scaling for c in detector._tuning.ranked)
    assert tried == [1.0, 1.25, 1.5, 1.75, 2.0]
    chosen = detector._state
    assert chosen.j_score == pytest.approx(chosen.setting.j_scaling * chosen.j_star)


def test_kinds_of_ones_own(images: Any) -> None:
    def sideways(x: Tensor) -> Tensor:
        return x.transpose(2, 3)

    detector = tulip_ood.Tulip(images.model).fit(images.loader(), tune=sideways)
    assert detector._tuning.kinds == ("sideways",)
    both = tulip_ood.Tulip(images.model).fit(
        images.loader(), tune={"kinds": [sideways, "negative", "grating"]}
    )
    assert set(both._tuning.kinds) <= {"sideways", "negative", "grating"}


class Symmetric(nn.Module):
    """A network that does not care about order, sign or place: every shift keeps the label."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 2)
        with torch.no_grad():
            self.net.weight.copy_(torch.tensor([[0.0], [0.02]]))
            self.net.bias.copy_(torch.tensor([4.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.abs().sum(dim=(1, 2, 3)).unsqueeze(1).clamp(0, 1))


def test_kinds_that_keep_the_label_are_dropped_and_balanced_takes_over() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 1, 8, 8, generator=generator)
    y = (torch.rand(300, generator=generator) < 0.1).long()  # the network says 0 for everything
    with pytest.warns(TulipWarning, match="fewer than three kinds of pseudo-OOD were left"):
        detector = tulip_ood.Tulip(Symmetric()).fit([(x, y)])
    assert detector._tuning.kinds == ()
    assert len(detector._tuning.kept_label) == 7
    assert detector._state.lam == pytest.approx(detector._state.balanced_lam)
    assert "kinds dropped because the network keeps its answers on them" in str(detector.report())


def test_an_epsilon_that_spoils_the_network_is_dropped(vectors: Any) -> None:
    """A network with tiny weights between huge ones is spoiled by ε = .001; smaller is found."""
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = vectors.val
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(200):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    with torch.no_grad():  # the same function with the first layer 10⁴ times smaller
        model[0].weight.mul_(1e-4)
        model[0].bias.mul_(1e-4)
        model[2].weight.mul_(1e4)
    detector = tulip_ood.Tulip(model).fit([vectors.test])
    assert detector._setting.epsilon < 0.001
    assert set(detector._tuning.spoiled) >= {0.001, 0.002, 0.005, 0.01}


def test_j_zero_costs_one_pass(images: Any) -> None:
    counted = Counting(images.model)
    with pytest.warns(TulipWarning, match="J = 0"):
        detector = tulip_ood.Tulip(counted, j=0.0).fit(images.loader(), recipe="balanced")
    before = counted.count[0]
    score = detector.score(images.ood)
    assert counted.count[0] - before == len(images.ood)
    plain = tulip_ood.detectors.Entropy(images.model).fit(images.loader())
    torch.testing.assert_close(score, plain.score(images.ood), rtol=0, atol=0)


def test_memory_is_what_an_answer_holds(images: Any) -> None:
    """With J = 0 a score needs no perturbed weights; probabilities with J* do."""
    with pytest.warns(TulipWarning, match="J = 0"):
        detector = tulip_ood.Tulip(images.model, j=0.0).fit(images.loader(), recipe="balanced")
    assert detector.fitted.j_probs > 0
    detector.predict(images.ood[:2])
    perturbation = detector.engine.perturbation(detector.needs.settings)
    assert detector.memory() == perturbation.held_bytes > 0
    assert "perturbed weights held in memory: 0.2 MB" in str(detector.report())
    detector._state = dataclasses.replace(detector.fitted, j_probs=0.0)  # as where J* is no help
    assert detector.memory() == 0


def test_a_fit_on_passes_equals_a_fit_on_inputs(images: Any) -> None:
    direct = tulip_ood.Tulip(images.model).fit(images.loader(), recipe="balanced")
    rows = direct.engine.collect(images.loader(), direct._needs(), seed=0, memory=1 << 30)
    passes = direct.engine.passes_of(rows, direct._needs(), seed=0)
    from_passes = tulip_ood.Tulip(images.model).fit(passes, recipe="balanced")
    assert torch.equal(direct.calibration.scores, from_passes.calibration.scores)
    assert torch.equal(direct.score(images.ood), from_passes.score(images.ood))
    with pytest.raises(InputError, match="needs the inputs"):
        tulip_ood.Tulip(images.model).fit(passes)


def test_passes_made_otherwise_are_refused(images: Any) -> None:
    detector = tulip_ood.Tulip(images.model).fit(images.loader(), recipe="balanced")
    other = detector._settings().with_(seed=5)
    passes = run_passes(detector.engine.perturbation(other), images.ood, batch_size=64)
    with pytest.raises(InputError, match="this detector needs"):
        detector.score(passes)


def test_more_data_than_memory_is_sampled_and_said(vectors: Any) -> None:
    """A seeded sample of the whole stream, whatever its order."""
    x, y = vectors.val
    small = 300 * (2 * 4 + 12 * 3 * 4)
    with pytest.warns(TulipWarning, match="the loader gave 600 inputs; a seeded sample of 300"):
        one = tulip_ood.Tulip(vectors.model, fit_memory=small).fit([(x, y)], recipe="balanced")
    two = tulip_ood.Tulip(vectors.model, fit_memory=small).fit(
        [(x.flip(0), y.flip(0))], recipe="balanced"
    )
    assert one._facts["n_validation"] == 300
    assert torch.equal(one.calibration.scores, two.calibration.scores)


@pytest.mark.parametrize("score", ["ent", "msp", "gen", "mls", "ebo", "bound"])
def test_every_score_separates(images: Any, score: str) -> None:
    from tulip_ood.numerics.metrics import auroc

    detector = tulip_ood.Tulip(images.model, score=score, j=1.0)
    detector.fit(images.loader(), recipe="balanced")
    assert auroc(detector.score(images.test[0]), detector.score(images.ood)) > 0.55


def test_bound_is_s_over_j_squared(images: Any) -> None:
    bound = tulip_ood.Tulip(images.model, score="bound", j=3.0).fit(
        images.loader(), recipe="balanced"
    )
    usual = tulip_ood.Tulip(images.model, j=3.0).fit(images.loader(), recipe="balanced")
    torch.testing.assert_close(9 * bound.score(images.ood), usual.predict(images.ood).bound)


def test_progress_counts_every_pass(vectors: Any) -> None:
    seen: list[tuple[int, int]] = []
    tulip_ood.Tulip(vectors.model).fit(
        vectors.loader(), recipe="balanced", progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (600 * 12, 600 * 12)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_search_without_kinds_does_not_claim_a_j_that_was_given() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 1, 8, 8, generator=generator)
    y = (torch.rand(300, generator=generator) < 0.1).long()
    with pytest.warns(TulipWarning, match=r"J is 2, as it was given"):
        tulip_ood.Tulip(Symmetric(), j=2.0).fit([(x, y)])
