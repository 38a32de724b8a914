"""`compare`: the same scores as detectors fitted one by one, intervals, tracks, the verdict."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.benchmark.bootstrap import differences, resample
from tulip_ood.benchmark.comparing import Compared
from tulip_ood.benchmark.ranking import verdict
from tulip_ood.errors import InputError
from tulip_ood.numerics import metrics

METHODS = ["msp", "ent", "ebo", "scale", "knn", "mds", "noise", "tulip", "tulip+react", "ebo&knn"]
pytestmark = pytest.mark.usefixtures("short_search")


def batches(x: Tensor, y: Tensor | None = None, size: int = 64) -> Any:
    """A generator: it can be read once."""
    for i in range(0, len(x), size):
        yield x[i : i + size] if y is None else (x[i : i + size], y[i : i + size])


def data(problem: Any) -> dict[str, Any]:
    near = problem.test[0][:150] + 1.5
    return {
        "id_val": batches(*problem.val),
        "id_test": batches(*problem.test),
        "ood": {"far": batches(problem.ood), "shifted": batches(near)},
        "groups": {"far": "far", "shifted": "near"},
    }


@pytest.fixture(scope="module")
def found(vectors: Any) -> Compared:
    x, y = vectors.val
    train = batches(x + 0.1, y)
    return tulip_ood.compare(vectors.model, **data(vectors), train=train, methods=METHODS)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_scores_are_those_of_detectors_fitted_one_by_one(found: Compared, vectors: Any) -> None:
    for name in METHODS:
        alone = tulip_ood.detectors.make(name, vectors.model).fit(vectors.loader())
        result = found.val.methods[name]
        allowed = 1e-5 * alone.calibration.spread
        assert (result.id_scores - alone.score(vectors.test[0])).abs().max() <= allowed, name
        assert (result.sets["far"].scores - alone.score(vectors.ood)).abs().max() <= allowed, name
        assert result.threshold == pytest.approx(alone.threshold.value, abs=allowed)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_settings_in_brackets_are_those_of_the_constructor_and_of_fit(vectors: Any) -> None:
    x, y = vectors.val
    found = tulip_ood.compare(
        vectors.model,
        **data(vectors),
        train=batches(x + 0.1, y),
        tune="pseudo",
        methods="knn[k=5],gen[tune=none],tulip[recipe=balanced,tune=none,n_samples=4]",
    )
    fitted = {
        "knn[k=5]": tulip_ood.detectors.KNN(vectors.model, k=5).fit(vectors.loader()),
        "gen[tune=none]": tulip_ood.detectors.GEN(vectors.model).fit(vectors.loader()),
        "tulip[n_samples=4,recipe=balanced,tune=none]": tulip_ood.Tulip(
            vectors.model, n_samples=4
        ).fit(vectors.loader(), recipe="balanced"),
    }
    assert set(found.val.methods) == {"ent", *fitted}
    assert found.train is not None
    assert set(found.train.methods) == {"ent", "knn[k=5]"}
    for name, alone in fitted.items():
        allowed = 1e-5 * alone.calibration.spread
        mine = found.val.methods[name].id_scores
        assert (mine - alone.score(vectors.test[0])).abs().max() <= allowed, name


def test_arguments_are_given_by_the_name_with_brackets(vectors: Any) -> None:
    asked = {"methods": ["msp", "knn[k=5]"], "settings": {"knn[ k=5 ]": {"batch_size": 7}}}
    found = tulip_ood.compare(vectors.model, **data(vectors), **asked)
    assert found.detectors["knn[k=5]"].parameters == {"k": 5}


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["knn[kk=5]"], r"settings of knn\[kk=5\]"),
        (["knn[k=0]"], r"settings of knn\[k=0\]"),
        (["gen[tune=ood]"], "no OOD inputs to tune on"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(
    vectors: Any, methods: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tulip_ood.compare(vectors.model, **data(vectors), methods=methods)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_the_train_track_is_that_of_fit(found: Compared, vectors: Any) -> None:
    x, y = vectors.val
    assert found.train is not None
    assert set(found.train.methods) == {"ent", "knn", "mds", "ebo&knn"}
    for name in ("knn", "mds"):
        alone = tulip_ood.detectors.make(name, vectors.model)
        alone.fit(vectors.loader(), train=batches(x + 0.1, y))
        mine = found.train.methods[name].id_scores
        allowed = 1e-5 * alone.calibration.spread
        assert (mine - alone.score(vectors.test[0])).abs().max() <= allowed
    assert (found.n_val, found.n_train) == (len(x), len(x))


def test_numbers_are_the_metrics(found: Compared) -> None:
    for result in found.val.methods.values():
        for part in result.sets.values():
            assert part.auroc == metrics.auroc(result.id_scores, part.scores)


def test_passes_are_shared(vectors: Any) -> None:
    """Nine methods that need the base pass alone cost one pass a test input."""

    class Counting(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return self.inner(x)

    seen: list[int] = []
    names = ["msp", "ent", "mls", "ebo", "gen", "tempscale", "knn", "mds", "vim"]
    model = Counting(vectors.model)
    tulip_ood.compare(model, **data(vectors), methods=names)
    inputs = len(vectors.val[0]) + len(vectors.test[0]) + len(vectors.ood) + 150
    assert sum(seen) <= inputs + 100  # a few more to look at the network first


# ------------------------------------------------------------------------------ bootstrap


def brute(scores: Tensor, drawn: Tensor) -> Tensor:
    return scores[torch.repeat_interleave(torch.arange(len(scores)), drawn.long())]


def test_the_bootstrap_is_the_metric_of_resampled_images(found: Compared) -> None:
    """Weights instead of copies: against scores that are really repeated, ties included."""
    from tulip_ood.benchmark.weighted import OF_SETS, Draws

    drawn = resample(found.val, resamples=20, seed=3)
    n = found.val.n_id
    inside = Draws(n, n, 3, "id").block(0, 20)
    assert torch.equal(inside.sum(dim=1), torch.full((20,), float(n), dtype=torch.float64))
    for name in ("msp", "knn", "tulip"):
        result = found.val.methods[name]
        for b in range(20):
            mine = brute(result.id_scores, inside[b])
            expected: dict[str, list[float]] = {m: [] for m in OF_SETS}
            for each, part in result.sets.items():
                size = len(part.scores)
                draws = Draws(size, size, 3, f"ood/{each}").block(0, 20)
                theirs = brute(part.scores, draws[b])
                for metric, values in expected.items():
                    values.append(getattr(metrics, metric)(mine, theirs))
            for metric, values in expected.items():
                ours = float(drawn.values[name][metric][b])
                assert ours == pytest.approx(sum(values) / len(values), abs=1e-9), metric
            aurc = metrics.aurc(mine, brute(result.wrong, inside[b]))
            assert float(drawn.values[name]["aurc"][b]) == pytest.approx(aurc, abs=1e-9)


def test_differences_are_paired(found: Compared) -> None:
    drawn = resample(found.val, resamples=50, seed=0)
    gaps = differences(found.val, drawn, "ent")
    assert gaps["ent"]["auroc"].low == gaps["ent"]["auroc"].high == 0.0
    assert not gaps["ent"]["auroc"].clear
    far = gaps["knn"]["auroc"]
    assert far.low <= far.value <= far.high


# ---------------------------------------------------------------------------------- shown


def test_the_text_has_two_tables_and_a_verdict(found: Compared) -> None:
    text = str(found)
    assert text.count("method ") == 2
    val, train = text.split("Fitted on 600 training inputs")
    assert "tulip " in val
    assert "tulip " not in train.split("\n\n")[1]
    assert verdict(found, "val") in " ".join(text.split())
    assert "Use " in verdict(found, "train")
    assert max(map(len, text.splitlines())) <= 120


def test_it_is_json(found: Compared) -> None:
    shown = json.loads(json.dumps(found.to_dict()))
    assert set(shown["tracks"]) == {"val", "train"}
    assert shown["n_train"] == 600
    assert shown["yardstick"] == "ent"
    assert "auroc" in shown["against"]["val"]["tulip"]


def test_what_cannot_be_run_is_listed_with_the_reason(vectors: Any) -> None:
    found = tulip_ood.compare(vectors.model, **data(vectors), methods="all")
    assert {"mcd", "ensemble", "rankfeat"} <= set(found.skipped)
    assert "dropout" in found.skipped["mcd"]
    assert "at least one more network" in found.skipped["ensemble"]
    assert all(f"  {name}:" in str(found) for name in found.skipped)
    assert {"tulip", "weiper", "laplace", "gram", "tulip&knn"} & set(found.val.methods)


def test_an_ensemble_can_be_given(vectors: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        other = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    found = tulip_ood.compare(
        vectors.model, **data(vectors), methods=["ensemble"], ensemble=[other]
    )
    assert not found.skipped
    assert "ensemble" in found.val.methods


def test_parameters_can_be_chosen(vectors: Any) -> None:
    ood = [vectors.ood[:50]]
    found = tulip_ood.compare(vectors.model, **data(vectors), methods=["gen", "knn"], tune=ood)
    assert found.detectors["gen"].report().facts["tried"] == 42


def test_the_same_seed_gives_the_same_numbers(vectors: Any) -> None:
    one, two = (
        tulip_ood.compare(vectors.model, **data(vectors), methods=["tulip", "knn"]).to_dict()
        for _ in range(2)
    )
    assert one == two


def test_inputs_without_a_score(vectors: Any) -> None:
    x, y = vectors.test
    bad = x[:100].clone()
    bad[::10] = math.nan
    given = {**data(vectors), "id_test": [(bad, y[:100])], "ood": {"far": [bad]}, "groups": {}}
    found = tulip_ood.compare(vectors.model, **given, methods=["msp"])
    result = found.val.methods["msp"]
    assert int(result.id_scores.isinf().sum()) == 10
    assert result.sets["far"].auroc == pytest.approx(0.5)
    assert math.isfinite(result.aurc)


def test_what_makes_no_sense_is_refused(vectors: Any) -> None:
    given = data(vectors)
    for wrong, words in (
        ({"ood": {}}, "OOD"),
        ({"methods": ["nonsense"]}, "unknown method"),
        ({"groups": {"far": "middle"}}, "near"),
        ({"ood": {"far": []}, "groups": {}}, "no inputs"),
        ({"id_test": []}, "ID test"),
        ({"ood": {"none": None}, "groups": {}}, "loader"),
        ({"ood": [vectors.ood], "groups": {}}, "name at least one"),
        ({"resamples": 3}, "at least 20"),
        ({"settings": {"knnn": {}}}, "not among the methods"),
        ({"tune": "pseud"}, "'pseudo'"),
        ({"ensemble": vectors.model}, "list of networks"),
        ({"ensemble": [vectors.model], "methods": ["msp"]}, "not asked for"),
    ):
        with pytest.raises(InputError, match=words):
            tulip_ood.compare(vectors.model, **{**given, "methods": ["msp"], **wrong})
        given = data(vectors)


# ----------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("where", ["_learn", "_score"])
def test_a_method_that_fails_does_not_take_the_others_with_it(
    vectors: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("cusolver says no")

    monkeypatch.setattr(tulip_ood.detectors.KNN, where, broken)
    found = tulip_ood.compare(vectors.model, **data(vectors), methods=["msp", "knn"])
    assert "cusolver says no" in found.skipped["knn"]
    assert set(found.val.methods) == {"ent", "msp"}


def test_training_data_that_nothing_can_be_learned_from(vectors: Any) -> None:
    x, y = vectors.val
    found = tulip_ood.compare(
        vectors.model, **data(vectors), train=[(x[:1], y[:1])], methods=["msp", "mds"]
    )
    assert "mds (train)" in found.skipped
    assert "mds" in found.val.methods
    assert found.train is None


def test_a_measure_that_fails_on_a_test_set(vectors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tulip_ood.detectors.odin import ODIN

    measure = ODIN(vectors.model)._measures()[0]
    whole = type(measure).__call__

    def picky(self: Any, network: Any, inputs: Tensor) -> Tensor:
        if bool((inputs > 5).any()):
            raise RuntimeError("too large")
        return whole(self, network, inputs)

    monkeypatch.setattr(type(measure), "__call__", picky)
    given = {**data(vectors), "ood": {"huge": [vectors.ood + 50]}, "groups": {}}
    found = tulip_ood.compare(vectors.model, **given, methods=["msp", "odin"])
    assert "too large" in found.skipped["odin"]
    assert set(found.val.methods) == {"ent", "msp"}


def test_different_initial_means_do_not_share_a_drift_pass(vectors: Any) -> None:
    means = {name: 0.7 for name, _ in vectors.model.named_parameters()}
    given = {"tulip&msp": {"settings": {"tulip": {"initial_mean": means}}}}
    found = tulip_ood.compare(
        vectors.model, **data(vectors), methods=["tulip&msp", "tulip"], settings=given
    )
    alone = tulip_ood.Tulip(vectors.model).fit(vectors.loader())
    mine = found.val.methods["tulip"].id_scores
    assert (mine - alone.score(vectors.test[0])).abs().max() <= 1e-5 * alone.calibration.spread


def test_the_best_of_many_that_are_alike_is_not_praised(vectors: Any) -> None:
    """Thirty detectors whose scores are noise: one of them looks good by chance."""
    from dataclasses import replace

    from tulip_ood.benchmark.bootstrap import clear_gains
    from tulip_ood.benchmark.results import SetResult

    found = tulip_ood.compare(vectors.model, **data(vectors), methods=["msp"])
    start = found.val.methods["ent"]
    generator = torch.Generator().manual_seed(0)
    praised = 0
    for _ in range(10):
        methods = {}
        for i in range(20):
            inside = torch.rand(300, generator=generator, dtype=torch.float64)
            outside = torch.rand(200, generator=generator, dtype=torch.float64)
            part = SetResult(outside, metrics.auroc(inside, outside), 0.0, 0.0, 0.0)
            name = "ent" if i == 0 else f"m{i}"
            wrong = torch.zeros(300, dtype=torch.float64)
            methods[name] = replace(start, id_scores=inside, wrong=wrong, sets={"a": part})
        comparison = replace(found.val, methods=methods, n_id=300, n_ood={"a": 200}, groups={})
        drawn = resample(comparison, resamples=100, seed=0)
        praised += any(clear_gains(comparison, drawn, "ent").values())
    assert praised <= 3


def test_positions_of_one_image_are_drawn_together() -> None:
    from tulip_ood.benchmark.weighted import Draws

    drawn = Draws(10, 40, 0, "id").block(0, 5)
    assert drawn.shape == (5, 40)
    assert torch.equal(drawn.reshape(5, 10, 4).amin(dim=2), drawn.reshape(5, 10, 4).amax(dim=2))


def test_inputs_that_were_fitted_on_are_no_test(vectors: Any) -> None:
    x, y = vectors.val
    given = {**data(vectors), "id_test": [(x[:70], y[:70]), vectors.test]}
    found = tulip_ood.compare(vectors.model, **given, methods=["msp"])
    assert found.repeated == 70
    assert "70 of the 670 ID test inputs were fitted on" in str(found)
    clean = tulip_ood.compare(vectors.model, **data(vectors), methods=["msp"])
    assert clean.repeated == 0
    assert "look at this" not in str(clean)


def test_inputs_that_are_both_id_and_ood_are_no_test(vectors: Any) -> None:
    mixed = torch.cat([vectors.test[0][:30], vectors.ood, vectors.val[0][:5]])
    given = {**data(vectors), "ood": {"mixed": [mixed], "far": [vectors.ood]}, "groups": {}}
    found = tulip_ood.compare(vectors.model, **given, methods=["msp"])
    assert found.inside == found.to_dict()["inside"] == {"mixed": 35}
    assert "35 of the 335 inputs of the OOD set mixed are ID inputs as well" in str(found)


def test_what_was_dropped_counts_in_the_threshold(vectors: Any) -> None:
    x, y = vectors.val
    bad = x.clone()
    bad[:60] = math.nan
    given = {**data(vectors), "id_val": [(bad, y)]}
    found = tulip_ood.compare(vectors.model, **given, methods=["msp"])
    with pytest.warns(tulip_ood.TulipWarning):
        alone = tulip_ood.detectors.MSP(vectors.model).fit([(bad, y)])
    assert found.val.methods["msp"].threshold == alone.threshold.value
    assert found.detectors["msp"].engine.inputs == alone.engine.inputs


def test_inputs_that_were_tuned_on_are_no_test(vectors: Any) -> None:
    given = {**data(vectors), "tune": batches(vectors.ood[:50])}
    found = tulip_ood.compare(vectors.model, **given, methods=["gen"])
    assert found.tuned_on == found.to_dict()["tuned_on"] == {"far": 50}
    assert "50 of the 300 inputs of the OOD set far were tuned on as well" in str(found)
    clean = tulip_ood.compare(
        vectors.model, **data(vectors), tune=vectors.ood[:50] + 0.5, methods=["gen"]
    )
    assert clean.tuned_on == {}
    assert "look at this" not in str(clean)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_probabilities_may_need_more_passes_than_the_score(vectors: Any) -> None:
    """With J = 0 a score takes one pass; probabilities with J* take all."""
    alone = tulip_ood.Tulip(vectors.model, j=0.0).fit(vectors.loader(), recipe="balanced")
    assert (alone._needs_to_score().passes, alone.needs.passes) == (1, 12)
    name = "tulip[j=0,recipe=balanced]"
    found = tulip_ood.compare(vectors.model, **data(vectors), methods=["ent", name])
    assert not found.skipped
    result = found.val.methods[name]
    assert torch.equal(result.id_scores, found.val.methods["ent"].id_scores)
    assert torch.equal(result.id_scores, alone.score(vectors.test[0]))
