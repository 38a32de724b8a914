"""laplace-torch's last-layer Laplace on the problem."""

import contextlib
import io
import warnings

import torch
from comparing import Reference
from problem import BATCH, Problem
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.laplace import LastLayerLaplace


def load() -> None:
    """Import it; `reference_pytorch_ood.load` goes first, for torchvision's sake."""
    import laplace  # noqa: F401


def _fitted(p: Problem, prior_precision: float | None = None):
    from laplace import Laplace

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        found = Laplace(
            p.net,
            "classification",
            subset_of_weights="last_layer",
            hessian_structure="kron",
            last_layer_name="fc",
        )
        found.fit(DataLoader(TensorDataset(*p.train), batch_size=BATCH))
        if prior_precision is None:
            found.optimize_prior_precision(method="marglik")
        else:
            found.prior_precision = prior_precision
    return found


def _entropy(fitted, p: Problem) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [fitted(x, link_approx="probit") for x in p.test.split(BATCH)]
    probs = torch.cat(parts).detach().double()
    return -torch.special.xlogy(probs, probs).sum(1)


def with_our_prior(p: Problem, detector: Detector) -> tuple[Tensor, Tensor]:
    """Theirs with the prior precision that ours found."""
    assert isinstance(detector, LastLayerLaplace)
    theirs = _fitted(p, detector._state.prior_precision)
    return detector.score(p.test), _entropy(theirs, p)


def facts(p: Problem, detector: Detector) -> dict[str, float]:
    """Both prior precisions, and the marginal likelihoods that laplace-torch gives them."""
    own, found = detector._state.prior_precision, _fitted(p)
    theirs = float(found.prior_precision)
    return {
        "prior_precision": own,
        "their_prior_precision": theirs,
        "log_marginal_likelihood": float(_fitted(p, own).log_marginal_likelihood()),
        "their_log_marginal_likelihood": float(found.log_marginal_likelihood()),
    }


REFERENCES = [
    Reference(
        "laplace",
        lambda p: _entropy(_fitted(p), p),
        why="another prior precision: laplace-torch takes 100 steps of Adam from 1 towards the "
        "largest marginal likelihood; ours is the maximum, by halving",
        without=with_our_prior,
        facts=facts,
    )
]
