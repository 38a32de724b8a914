"""Degenerate or suspicious situations are said in plain words, as a warning and in the report."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import TulipWarning


def fit_and_find(model: nn.Module, x: Any, y: Any, **settings: Any) -> dict[str, str]:
    """The findings by code; every one of them must also have been a warning."""
    recipe = settings.pop("recipe", "balanced")
    with pytest.warns(TulipWarning) as caught:
        detector = tulip_ood.Tulip(model, **settings).fit([(x, y)], recipe=recipe)
    warned = " ".join(str(w.message) for w in caught)
    report = detector.report()
    for finding in report.findings:
        assert finding.text in warned
        assert finding.text in str(report)
    return {finding.code: finding.text for finding in report.findings}


@pytest.mark.parametrize(
    ("task", "end", "undo"),
    [
        ("classification", lambda z: z.softmax(-1), lambda p: p.clamp_min(1e-12).log()),
        ("multilabel", lambda z: z.sigmoid(), lambda p: p.logit(eps=1e-6)),
    ],
)
def test_probabilities_are_no_logits(task: str, end: Any, undo: Any) -> None:
    class Ended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return end(self.net(x))

    model, x = Ended(), torch.randn(120, 4)
    logits = model.net(2 * x) + torch.randn(120, 3) / 2
    y = logits.argmax(1) if task == "classification" else (logits > 0).long()

    def codes(network: nn.Module, **settings: Any) -> list[str]:
        detector = tulip_ood.detectors.make("ent", network, task=task, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [f.code for f in detector.fit([(x, y)]).report().findings]

    assert "probabilities" in codes(model)
    assert "probabilities" not in codes(model, output=undo)
    assert "probabilities" not in codes(model.net)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_log_probabilities_have_lost_the_size_of_logits(vectors: Any) -> None:
    """Energy is then 0 for every input; methods that look at differences alone lose nothing."""
    ended = nn.Sequential(*vectors.model, nn.LogSoftmax(dim=-1))
    for method, settings, lost in (
        ("ebo", {}, True),
        ("mls", {}, True),
        ("nnguide", {}, True),
        ("ebo&knn", {}, True),
        ("noise", {"score": "ebo"}, True),
        ("msp", {}, False),
        ("gen", {}, False),
        ("odin", {}, False),
        ("tempscale", {}, False),
        ("knn", {}, False),
        ("noise", {"score": "ent"}, False),
    ):
        for model, found in ((ended, lost), (vectors.model, False)):
            detector = tulip_ood.detectors.make(method, model, **settings).fit(vectors.loader())
            texts = {f.code: f.text for f in detector.report().findings}
            assert ("log-probabilities" in texts) == found, method
            assert "probabilities" not in texts
            assert ("the network's last log_softmax" in str(detector.report())) == found
    energy = tulip_ood.detectors.make("ebo", ended).fit(vectors.loader())
    assert float(energy.score(vectors.ood).abs().max()) < 1e-6


def test_an_ordinary_fit_finds_nothing(vectors: Any) -> None:
    detector = tulip_ood.Tulip(vectors.model).fit(vectors.loader(), recipe="balanced")
    assert detector.report().findings == ()


def test_j_zero(vectors: Any) -> None:
    found = fit_and_find(vectors.model, *vectors.val, j=0.0)
    assert "costs one pass" in found["j-zero"]


def test_the_letter_of_the_paper_can_switch_the_method_off(vectors: Any) -> None:
    found = fit_and_find(vectors.model, *vectors.val, lam=100.0, recipe="paper")
    assert "TULiP changes nothing there: λ = 100 is too large" in found["inactive"]
    assert "the bound is hardly ever positive" in found["j-zero"]


def test_few_inputs(vectors: Any) -> None:
    x, y = vectors.val
    assert "only 50 validation inputs" in fit_and_find(vectors.model, x[:50], y[:50])["few-inputs"]


def test_training_images(vectors: Any) -> None:
    x, _ = vectors.val
    with torch.no_grad():
        own = vectors.model(x).argmax(1)
    assert "look like training images" in fit_and_find(vectors.model, x, own)["too-accurate"]


def test_labels_in_another_order(vectors: Any) -> None:
    x, y = vectors.val
    found = fit_and_find(vectors.model, x, (y + 1) % 3)
    assert "labels seem to be in another order" in found["label-order"]


def test_random_labels_are_not_called_reordered(vectors: Any) -> None:
    x, y = vectors.val
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    detector = tulip_ood.Tulip(vectors.model).fit([(x, shuffled)], recipe="balanced")
    assert "label-order" not in {f.code for f in detector.report().findings}


def test_missing_classes(vectors: Any) -> None:
    x, y = vectors.val
    kept = y != 2
    found = fit_and_find(vectors.model, x[kept], y[kept])
    assert "1 of 3 classes have no validation input (2)" in found["missing-classes"]


def test_duplicates(vectors: Any) -> None:
    x, y = vectors.val
    found = fit_and_find(vectors.model, torch.cat([x, x[:30]]), torch.cat([y, y[:30]]))
    assert "30 of 630 validation inputs repeat another one" in found["duplicates"]


def test_duplicates_never_stand_on_both_sides_of_the_split(vectors: Any) -> None:
    from tulip_ood.detectors.fitting import splits, usable

    x, y = vectors.val
    detector = tulip_ood.Tulip(vectors.model)
    rows = detector.engine.collect(
        [(x.repeat(3, 1), y.repeat(3))], detector._needs(), seed=0, memory=1 << 30
    )
    passes, _ = usable(detector.engine.passes_of(rows, detector._needs(), seed=0), detector.task, 0)
    ((inside, held),) = splits(passes)
    assert passes.ids is not None
    assert not {passes.ids[i] for i in inside} & {passes.ids[i] for i in held}


def test_a_network_that_guesses(vectors: Any) -> None:
    x, y = vectors.val
    with torch.random.fork_rng():
        torch.manual_seed(0)
        guessing = nn.Sequential(nn.Linear(2, 3))
    with torch.no_grad():
        guessing[0].weight.mul_(1e-3)
        guessing[0].bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    found = fit_and_find(guessing, x, y)
    assert "is it trained" in found["no-better-than-chance"]


def test_noise_that_destroys_the_network(vectors: Any) -> None:
    found = fit_and_find(vectors.model, *vectors.val, epsilon=5.0)
    assert "ε = 5 is too large" in found["near-chance"]


class OddNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_guessed_initial_mean(vectors: Any) -> None:
    found = fit_and_find(nn.Sequential(OddNorm(), *vectors.model), *vectors.val)
    assert "0.scale: OddNorm is not PyTorch's own" in found["guessed-mean"]


def test_the_report_reads_well(vectors: Any) -> None:
    text = str(tulip_ood.Tulip(vectors.model).fit(vectors.loader()).report())
    for phrase in (
        "tulip, fitted on 600 validation inputs",
        "recipe self-2: weight noise ε =",
        "× balanced",
        "held-out NLL",
        "threshold data: 300 inputs, held out from fitting",
        "at most 5.0 % of in-distribution inputs are refused",
        "90 % band",
        "AURC of the network's own errors",
    ):
        assert phrase in text
