"""The mean AUROC on resampled images, all resamples at once, so that two scores can be paired.

Images are drawn with replacement, and everything that was made of an image is drawn with it: an
input and the pseudo-OOD made from it, all positions of a dense output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.numerics.random import uniform

__all__ = ["Paired", "Scored", "resampled_auroc"]

RESAMPLES = 1000
_POSITIONS = 16  # of a dense output; they were drawn at random already


@dataclass(frozen=True)
class Scored:
    """Scores, and the image that each belongs to.

    Attributes:
        scores: [N], or [N, positions].
        images: What tells images apart, as many.

    Example:
        >>> Scored(torch.zeros(2), (b"a", b"b")).images[0]
        b'a'
    """

    scores: Tensor
    images: Sequence[bytes]


@dataclass(frozen=True)
class Paired:
    """How much lower one mean AUROC is than another, with a 95 % interval over images.

    Attributes:
        loss: The difference on the images themselves.
        low: The 2.5th percentile over resamples.
        high: The 97.5th.

    Example:
        >>> Paired.of(torch.tensor([0.9, 0.91]), torch.tensor([0.9, 0.92])).loss
        0.0
    """

    loss: float
    low: float
    high: float

    @staticmethod
    def of(reference: Tensor, other: Tensor) -> "Paired":
        """From what `resampled_auroc` gave for both, with the same seed."""
        gap = reference - other
        ends = torch.tensor([0.025, 0.975], dtype=gap.dtype)
        low, high = torch.quantile(gap[1:], ends).tolist()
        return Paired(float(gap[0]), low, high)


def resampled_auroc(
    inside: Scored, outside: Mapping[str, Scored], *, seed: int, resamples: int = RESAMPLES
) -> Tensor:
    """The AUROC averaged over OOD sets: first of the images themselves, then of every resample.

    Args:
        inside: Scores of ID inputs.
        outside: Scores of each OOD set. Images that are among the ID images are drawn with them.
        seed: Decides the resamples.
        resamples: How many.

    Example:
        >>> inside = Scored(torch.arange(4.0), [b"a", b"b", b"c", b"d"])
        >>> outside = {"more": Scored(torch.arange(4.0) + 1.5, inside.images)}
        >>> found = resampled_auroc(inside, outside, seed=0, resamples=100)
        >>> found.shape, float(found[0])
        (torch.Size([101]), 0.8125)
    """
    known = _numbers(inside.images)
    drawn = _draws(len(known), seed, "id", resamples)
    own = drawn[:, [known[image] for image in inside.images]]
    each = []
    for name, part in outside.items():
        if all(image in known for image in part.images):
            theirs = drawn[:, [known[image] for image in part.images]]
        else:
            numbers = _numbers(part.images)
            apart = _draws(len(numbers), seed, name, resamples)
            theirs = apart[:, [numbers[image] for image in part.images]]
        above = _above(inside.scores, part.scores)
        mass = own.sum(dim=1) * theirs.sum(dim=1)
        each.append(((own @ above) * theirs).sum(dim=1) / mass.clamp_min(1.0))
    return torch.stack(each).mean(dim=0)


def _numbers(images: Sequence[bytes]) -> dict[bytes, int]:
    return {image: i for i, image in enumerate(dict.fromkeys(images))}


def _draws(n: int, seed: int, name: str, resamples: int) -> Tensor:
    """How often each of n images is drawn, [1 + resamples, n]; in the first row once."""
    places = uniform((resamples, n), seed=seed, name=f"paired/{name}")
    chosen = (places * n).long().clamp_max(n - 1)
    counts = torch.zeros(resamples, n, dtype=torch.float64)
    counts.scatter_add_(1, chosen, torch.ones_like(counts))
    return torch.cat([torch.ones(1, n, dtype=torch.float64), counts])


def _above(inside: Tensor, outside: Tensor) -> Tensor:
    """How often an OOD score lies above an ID score, ties one half, [ID, OOD]."""
    low, high = (
        s.to(torch.float64).reshape(len(s), -1)[:, :_POSITIONS].cpu() for s in (inside, outside)
    )
    a, b = low[:, None, :, None], high[None, :, None, :]
    return ((b > a).to(torch.float64) + (b == a).to(torch.float64) / 2).mean(dim=(2, 3))
