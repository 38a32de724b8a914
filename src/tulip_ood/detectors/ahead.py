"""What every fold would compute of an input again, computed once before the folds are made.

Θ, D and shaped logits belong to an input by itself: what is learned from a fold is a matter of a
few numbers then. Shaping a thousand logits of twelve passes anew in each of the five times five
folds of a sum took longer than all else of its fit.
"""

from tulip_ood.detectors.measured import measure
from tulip_ood.detectors.recipes import Setting
from tulip_ood.detectors.shaping import make_shaping
from tulip_ood.network.passes import Passes

__all__ = ["measured_ahead"]


def measured_ahead(passes: Passes, setting: Setting, *, sqrt_outputs: bool) -> Passes:
    """The record that knows Θ and D of its inputs, and its shaped logits if those will be needed.

    A clip that is learned (ReAct) is another one in every fold: such logits are left to the folds.

    Args:
        passes: Of ID inputs, all that will be learned from.
        setting: How ε, λ and J are to be found.
        sqrt_outputs: Whether D is multiplied by √o.

    Example:
        >>> import torch
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> base = torch.zeros(3, 2)
        >>> passes = Passes(base, base[None], base, None, None, PassSettings(0.01, n_samples=1))
        >>> found = measured_ahead(passes, Setting(0.01), sqrt_outputs=False).take(slice(0, 2))
        >>> [measured.trace.shape for measured in found.known.values()]
        [torch.Size([2])]
    """
    measure(passes, sqrt_outputs=sqrt_outputs)
    if setting.shaping is None:
        return passes
    given = make_shaping(setting.shaping)
    if given.learned(passes.need_features()) != given:
        return passes
    found = passes.shaped_once(given)
    measure(found.reshaped(given), sqrt_outputs=sqrt_outputs)
    return found
