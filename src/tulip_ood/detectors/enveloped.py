"""The prediction of whatever has TULiP's envelope in it: probabilities, bound, and reasons."""

from collections.abc import Callable, Mapping

from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.envelope_fit import FittedEnvelope, judge_passes
from tulip_ood.detectors.prediction import Prediction, Reference
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.passes import Passes
from tulip_ood.network.running import Needs
from tulip_ood.numerics.tasks import Regression

__all__ = ["needs_of_envelope", "predict_enveloped"]


def needs_of_envelope(detector: Detector, state: FittedEnvelope) -> Needs:
    """What the score needs; all passes where only the probabilities have a J.

    Args:
        detector: Fitted.
        state: The envelope.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> y = (model(x) + torch.randn(200, 3) / 2).argmax(1)
        >>> detector = tulip_ood.Tulip(model, n_samples=4, j=1.0).fit([(x, y)], recipe="balanced")
        >>> needs_of_envelope(detector, detector.fitted).passes  # with the drift's
        6
    """
    needs = detector._needs_to_score()
    return detector._needs() if state.j_probs and not needs.settings.n_samples else needs


def predict_enveloped(
    detector: Detector,
    x: Inputs | Passes,
    state: FittedEnvelope,
    said: Callable[[Passes], tuple[Tensor, ...]],
    *,
    sqrt_outputs: bool,
    references: Mapping[str, Reference] | None = None,
) -> Prediction:
    """What `predict` returns: scores of a detector's own, all else from the envelope.

    Args:
        detector: Fitted.
        x: Inputs as the model takes them, or a `Passes` record.
        state: The envelope.
        said: From passes to scores, and to what else reasons are told from.
        sqrt_outputs: Whether the drift is multiplied by √o.
        references: Where ID data stand in each of the latter, by name.

    Example:
        >>> import torch, tulip_ood
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> y = (model(x) + torch.randn(200, 3) / 2).argmax(1)
        >>> detector = tulip_ood.Tulip(model, j=1.0).fit([(x, y)], recipe="balanced")
        >>> constant = lambda passes: (torch.zeros(len(passes), dtype=torch.float64),)
        >>> predict_enveloped(detector, x[:2], detector.fitted, constant, sqrt_outputs=False).score
        tensor([0., 0.], dtype=torch.float64)
    """
    task, more = detector.task, references or {}
    needs = needs_of_envelope(detector, state)
    one_pass = not needs.settings.n_samples

    def judge(passes: Passes) -> tuple[Tensor, ...]:
        score, *others = said(passes)
        judged = judge_passes(passes, task, state, sqrt_outputs=sqrt_outputs)
        label, entropy = task.label(passes.base), task.base_uncertainty(passes.base)
        return (score, label, entropy, detector._base_probs(passes), *judged, *others)

    score, label, entropy, base, probs, bound, stretch, distance, variance, *others = (
        detector.engine.over(x, needs, judge, on_device=detector._scores_on_device())
    )
    quantities: dict[str, tuple[Tensor, Reference | None]] = {
        "entropy": (entropy, detector._entropy_reference),
        "stretch": (stretch, None if one_pass else state.stretch_reference),
        "bound": (bound, None if one_pass else state.bound_reference),
        "features": (distance, state.features_reference),
        **{name: (values, more[name]) for name, values in zip(more, others, strict=True)},
    }
    return detector._decide(
        score,
        label,
        probs,
        quantities,
        bound=state.j_score**2 * bound,
        stretch=state.j_score * stretch,
        variance=variance if isinstance(task, Regression) else None,
        base_probs=base,
    )
