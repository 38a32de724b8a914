"""pytorch-ood's detectors on the problem, in our sign and unit."""

from dataclasses import replace
from unittest import mock

import torch
from comparing import ALPHA, Reference, gram_learned_with, score_with, temperatures
from problem import CLASSES, Problem
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector

STD = (0.2470, 0.2435, 0.2616)


def load() -> None:
    """Import it; its torchvision asks for operators that a torch without vision does not have."""
    names = ("nms", "qnms")
    library = torch.library.Library("torchvision", "DEF")
    for name in names:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    load.library = library  # type: ignore[attr-defined] – it must outlive this call
    import pytorch_ood.detector  # noqa: F401


def _logits(name: str, **settings: object):
    def run(p: Problem) -> Tensor:
        import pytorch_ood.detector as d

        return getattr(d, name)(None, **settings).predict_logits(p.logits(p.test))

    return run


def _shaped(make) -> object:
    """Detectors of feature maps, over pooled features: where OpenOOD and we shape."""

    def run(p: Problem) -> Tensor:
        def maps(x: Tensor) -> Tensor:
            return p.features(x)[:, :, None, None]

        def head(z: Tensor) -> Tensor:
            return p.net.fc(z.flatten(1))

        detector = make(maps, head)
        if detector.requires_fit:
            detector.fit([p.val])
        with torch.no_grad():
            return detector.predict(p.test)

    return run


def _react(maps, head):
    from pytorch_ood.detector import ReAct

    return ReAct(maps, head, percentile=0.9)


def _ash(variant: str):
    def make(maps, head):
        from pytorch_ood.detector import ASH

        return ASH(maps, head, variant=variant, percentile=0.9)

    return make


def _scale(maps, head):
    from pytorch_ood.detector import SCALE

    return SCALE(maps, head, percentile=0.85)


def _features(make, *, normalised: bool = False):
    """Detectors of features that are fitted on the training data."""

    def run(p: Problem) -> Tensor:
        known, asked = p.features(p.train[0]), p.features(p.test)
        if normalised:
            known, asked = (nn.functional.normalize(z, dim=1) for z in (known, asked))
        detector = make(p)
        detector.fit_features(known, p.train[1])
        return detector.predict_features(asked)

    return run


def _make(name: str, **settings: object):
    def make(p: Problem):
        import pytorch_ood.detector as d

        return getattr(d, name)(None, **settings)

    return make


def _vim(p: Problem):
    from pytorch_ood.detector import ViM

    return ViM(None, 32, p.net.fc.weight, p.net.fc.bias)


def _with_head(name: str, **settings: object):
    def make(p: Problem):
        import pytorch_ood.detector as d

        return getattr(d, name)(None, p.net.fc, **settings)

    return make


def _times(run, factor) -> object:
    return lambda p: run(p) * (factor(p) if callable(factor) else factor)


def _n_train(p: Problem) -> int:
    return len(p.train[0])


def _odin(p: Problem) -> Tensor:
    from pytorch_ood.detector import ODIN

    detector = ODIN(p.net, eps=0.0014, temperature=1000.0, norm_std=list(STD))
    return 1 + torch.cat([detector.predict(x) for x in p.test.split(100)]).double()


def _gradnorm(p: Problem) -> Tensor:
    from pytorch_ood.detector import GradNorm

    detector = GradNorm(p.net, param_filter=lambda name: name == "fc.weight")
    return CLASSES * detector.predict(p.test)


def _rankfeat(p: Problem) -> Tensor:
    """Theirs takes one place; its logits of the two that the paper fuses are averaged here."""
    from pytorch_ood.detector import RankFeat

    def end(z: Tensor) -> Tensor:
        return p.net.fc(p.net.avgpool(z).flatten(1))

    logits = [
        RankFeat(
            lambda x, i=i: p.net.intermediate_forward(x, i),
            (lambda z: end(p.net.layer4(z))) if i == 3 else end,
            detector=lambda z: z,
        ).predict(p.test)
        for i in (3, 4)
    ]
    return -torch.stack(logits).mean(0).detach().double().logsumexp(1)


def _fitted_temperature(p: Problem):
    from pytorch_ood.detector import TemperatureScaling

    return TemperatureScaling(None).fit_logits(p.logits(p.val[0]), p.val[1])


def _tempscale(p: Problem) -> Tensor:
    return 1 + _fitted_temperature(p).predict_logits(p.logits(p.test)).detach().double()


def _at_their_temperature(p: Problem, detector: Detector) -> tuple[Tensor, Tensor]:
    state = replace(detector._state, temperature=float(_fitted_temperature(p).t))
    return score_with(detector, state, p), _tempscale(p)


def _fitted_gram(p: Problem, classes: Tensor):
    from pytorch_ood.detector import Gram

    class Stem(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return p.net.intermediate_forward(x, 1)

    class Head(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return p.net.fc(p.net.avgpool(z).flatten(1))

    layers = [Stem(), p.net.layer2, p.net.layer3, p.net.layer4]
    detector = Gram(Head(), layers, CLASSES, [1, 2, 3, 4, 5])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the split that it draws
        return detector.fit(list(zip(p.train[0].split(100), classes.split(100), strict=True)))


def _gram(p: Problem) -> Tensor:
    return _fitted_gram(p, p.train[1]).predict(p.test)


def _gram_alike(p: Problem, detector: Detector) -> tuple[Tensor, Tensor]:
    """Predicted classes and one held-out part for both; ours times the largest probability."""
    predicted = p.logits(p.train[0]).argmax(1)
    held = torch.zeros(len(predicted), dtype=torch.bool)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the draws that `fit` makes, once more
        for c in range(CLASSES):
            own = (predicted == c).nonzero().squeeze(1)
            held[own[torch.randperm(len(own))[: int(0.1 * len(own))]]] = True
    found = score_with(detector, gram_learned_with(detector, p, held), p)
    largest = p.logits(p.test).double().softmax(1).amax(1)
    return found * largest, _fitted_gram(p, predicted).predict(p.test)


def _without_clip(name: str, factor: float):
    """Theirs in float64 and with nothing cut off."""

    def both(p: Problem, detector: Detector) -> tuple[Tensor, Tensor]:
        import pytorch_ood.detector as d

        with (
            mock.patch.object(Tensor, "clip", lambda self, *a, **k: self),
            mock.patch.object(Tensor, "clamp", lambda self, *a, **k: self),
        ):
            found = getattr(d, name).score(p.logits(p.test).double())
        return detector.score(p.test), factor * found

    return both


_CLIP = "pytorch-ood cuts probabilities off at 1e-7"
_STOPS_EARLY = (
    "another temperature: 50 steps of LBFGS at a rate of 0.01 end before the least negative "
    "log-likelihood is reached; ours is the minimum to the last digit"
)

REFERENCES = [
    Reference(
        "msp", lambda p: 1 + _logits("MaxSoftmax")(p).double(), unit="1 + score (ours is 1 − max p)"
    ),
    Reference("ent", _logits("Entropy"), why=_CLIP, without=_without_clip("Entropy", 1)),
    Reference("mls", _logits("MaxLogit")),
    Reference("ebo", _logits("EnergyBased")),
    Reference(
        "gen",
        _times(_logits("GEN", gamma=0.1), CLASSES),
        unit="score · o (theirs is a mean over classes, the paper's a sum)",
        why=_CLIP + ", and of tiny ones a power of 0.1 makes much",
        without=_without_clip("GEN", CLASSES),
    ),
    Reference(
        "odin",
        _odin,
        {"std": list(STD)},
        unit="1 + score",
        why="pytorch-ood's sign of a gradient of 0 is 0, ours 1 as in OpenOOD and the authors'",
    ),
    Reference("react", _shaped(_react)),
    Reference("ash-b", _shaped(_ash("ash-b"))),
    Reference("ash-s", _shaped(_ash("ash-s"))),
    Reference("ash-p", _shaped(_ash("ash-p"))),
    Reference("scale", _shaped(_scale)),
    Reference(
        "mds",
        _times(_features(_make("Mahalanobis")), lambda p: 2 * _n_train(p)),
        unit="score · 2N (theirs has a covariance that is not divided by N, and a factor 1/2)",
    ),
    Reference(
        "mds++",
        _times(_features(_make("Mahalanobis"), normalised=True), lambda p: 2 * _n_train(p)),
        unit="score · 2N, of features that were normalised for it",
        why="pytorch-ood adds 1e-6 to the diagonal of a covariance that is not divided by N",
    ),
    Reference("rmds", _times(_features(_make("RMD")), _n_train), unit="score · N"),
    Reference(
        "rmds++",
        _times(_features(_make("RMD"), normalised=True), _n_train),
        unit="score · N, of features that were normalised for it",
        why="pytorch-ood adds 1e-6 to the diagonal of a covariance that is not divided by N",
    ),
    Reference("vim", _features(_vim), {"dim": 32}),
    Reference(
        "knn",
        lambda p: _features(_make("KNN", k=50))(p).square(),
        unit="score² (theirs is the distance, ours as OpenOOD's its square)",
    ),
    Reference(
        "fdbd",
        _times(_features(_with_head("fDBD")), CLASSES - 1),
        unit="score · (o − 1) (theirs is a mean over classes)",
    ),
    Reference("nci", _features(_with_head("NCI", alpha=ALPHA)), {"alpha": ALPHA}),
    Reference("nnguide", _features(_with_head("NNGuide", k=100)), {"alpha": 1.0}),
    Reference(
        "gram",
        _gram,
        why="four things: ours divides by at least a hundredth of a layer's mean bound, theirs "
        "by 1e-6; another random tenth is held out; pytorch-ood's bounds are of true "
        "classes, ours and the authors' of predicted ones; it does not divide by the largest "
        "probability, as ours, OpenOOD and the authors do",
        without=_gram_alike,
    ),
    Reference("gradnorm", _gradnorm, unit="score · o (theirs is a mean over classes)"),
    Reference("rankfeat", _rankfeat, unit="two places fused by hand, as in the paper"),
    Reference(
        "tempscale",
        _tempscale,
        unit="1 + score",
        why=_STOPS_EARLY,
        without=_at_their_temperature,
        facts=lambda p, d: temperatures(d, p, float(_fitted_temperature(p).t)),
    ),
]
