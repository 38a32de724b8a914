"""What a network makes of an image's mirror image: one more pass, and a second opinion.

Most networks for photographs were trained on mirrored images too and answer both alike. Where they
do not, on an input of their own kind, is a sign of doubt that no perturbed weight gives.

Mirroring moves pixels and computes nothing, so bytes that the network normalises itself are
mirrored like real numbers, and images whose colours come last along the axis before them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import View
from tulip_ood.network.network import Output
from tulip_ood.network.passes import Passes
from tulip_ood.numerics.layout import colours_last

__all__ = ["Mirrored"]


class Mirrored(View):
    """Logits and penultimate features of the mirror image, side by side.

    Example:
        >>> from tulip_ood.network.network import Network
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
        >>> network = Network(model, make_task("classification"))
        >>> x = torch.rand(2, 3, 2, 2)
        >>> torch.equal(Mirrored()(network, x), network.run(x.flip(-1)).logits)
        True
    """

    key = "mirrored"

    @staticmethod
    def fits(inputs: Inputs) -> bool:
        """Whether inputs are images: one tensor of four dimensions, real numbers or bytes.

        Other whole numbers may be tokens or classes, which have no left and right.
        """
        found = [tensor for _, tensor in structures.tensors(inputs)]
        return (
            len(found) == 1
            and found[0].ndim == 4
            and (found[0].is_floating_point() or found[0].dtype == torch.uint8)
        )

    def change(self, inputs: Inputs) -> Inputs:
        """The mirror images."""
        ((place, images),) = structures.tensors(inputs)
        return structures.replace(inputs, place, images.flip(-2 if colours_last(images) else -1))

    def of(self, out: Output) -> Tensor:
        """[N, o + d], or [N, o] where the network has no such features."""
        if out.features is None:
            return out.logits
        return torch.cat([out.logits, out.features.to(out.logits.dtype)], dim=-1)

    def passes_of(self, passes: Passes) -> Passes:
        """The base pass of the mirror images, from a record that holds this measure."""
        kept, outputs = passes.extras[self.key], passes.base.shape[-1]
        features = kept[:, outputs:] if kept.shape[-1] > outputs else None
        return replace(
            passes,
            base=kept[:, :outputs],
            features=features,
            noisy=passes.noisy[:0],
            drift=None,
            noisy_features=None,
            drift_features=None,
            settings=passes.settings.with_(n_samples=0),
            key="",
            extras={},
        )
