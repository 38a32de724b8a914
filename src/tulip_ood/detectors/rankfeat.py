"""RankFeat: without the rank-1 part of the last maps (Song, Sebe & Wang, NeurIPS 2022)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.logits import Nothing
from tulip_ood.detectors.tasks_allowed import need_classification
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.stages import find_stages, parts_by_name

__all__ = ["RankFeat", "RankOneLogits", "without_rank_one"]


def without_rank_one(maps: Tensor) -> Tensor:
    """Maps [N, C, H, W] minus s₁u₁v₁ᵀ, the first singular triple of each [C, H·W] matrix.

    v₁ is the first eigenvector of AᵀA (u₁ of AAᵀ, whichever is smaller), in float64; the part is
    A v₁ v₁ᵀ. A row that is not finite stays as it is.

    Example:
        >>> without_rank_one(torch.tensor([[[[3.0, 0.0]], [[0.0, 2.0]]]])).squeeze()
        tensor([[0., 0.],
                [0., 2.]])
    """
    # Devices without float64 (MPS) have it done on the CPU.
    where = maps.device if maps.device.type in ("cpu", "cuda") else torch.device("cpu")
    matrix = maps.flatten(2).to(where, torch.float64)
    good = matrix.isfinite().flatten(1).all(dim=1).reshape(-1, 1, 1)
    safe = torch.where(good, matrix, 0.0)
    if safe.shape[1] <= safe.shape[2]:
        u = torch.linalg.eigh(safe @ safe.mT).eigenvectors[..., -1:]
        part = u @ (u.mT @ safe)
    else:
        v = torch.linalg.eigh(safe.mT @ safe).eigenvectors[..., -1:]
        part = (safe @ v) @ v.mT
    left: Tensor = (matrix - part).to(maps.device, maps.dtype).reshape(maps.shape)
    return left


class RankOneLogits(Measure):
    """Logits after the rank-1 part was taken out of a stage's output, one stage at a time.

    Args:
        stages: Names of two parts, or None for the last two stages.

    Example:
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(ResNet18Small(10), make_task("classification"))
        >>> RankOneLogits(None)(network, torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 2, 10])
    """

    def __init__(self, stages: tuple[str, ...] | None) -> None:
        self._named = stages
        self._found: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """All that it depends on."""
        return f"rankfeat:stages={'last two' if self._named is None else ','.join(self._named)}"

    @property
    def passes(self) -> int:
        """One pass a stage."""
        return 2

    def stages(self, network: Network, inputs: Inputs) -> tuple[str, ...]:
        """The two parts of the network."""
        if self._found is None:
            self._found = self._find(network, inputs)
        return self._found

    def _find(self, network: Network, inputs: Inputs) -> tuple[str, ...]:
        if self._named is not None:
            named = parts_by_name(network, inputs, self._named, "stages")
            if len(named) != 2:
                raise ModelError(
                    f"rankfeat needs two parts of the network, and stages fits {len(named)}: "
                    f"{', '.join(named)}"
                )
            return named
        found = find_stages(network, inputs)
        if len(found) < 2:
            raise ModelError(
                f"rankfeat needs the maps [N, C, H, W] of the last two stages, and "
                f"{type(network.module).__name__} has {len(found)} such stages that could be "
                f"found: looked for containers of repeated blocks with convolutions. Name two "
                f"parts with stages=(…), or use another method for a network without maps"
            )
        return found[-2:]

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """[N, 2, o]: without the rank-1 part of the one stage, and of the other."""
        logits = [
            network.run(inputs, edits={name: _editing(name)}).logits
            for name in self.stages(network, inputs)
        ]
        return torch.stack(logits, dim=1)


def _editing(name: str) -> Any:
    def edit(out: Any) -> Tensor:
        if not isinstance(out, Tensor) or out.ndim != 4 or out.shape[2] * out.shape[3] < 2:
            came = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ModelError(
                f"rankfeat takes a part out of maps [N, C, H, W] of more than one position, but "
                f"{name!r} gives {came}"
            )
        return without_rank_one(out)

    return edit


class RankFeat(Detector):
    """The energy of logits averaged over two passes, each without the rank-1 part of one stage.

    Args:
        model: A trained convolutional `torch.nn.Module` that returns logits (or has `.logits`).
        stages: Names of the two parts whose outputs are changed; by default the last two stages
            (containers of repeated blocks; layer3 and layer4 of a ResNet).
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.rankfeat import RankFeat
        >>> from tulip_ood.models.resnet import ResNet18Small
        >>> x, y = torch.randn(20, 3, 8, 8), torch.arange(20) % 4
        >>> detector = RankFeat(ResNet18Small(4), stages=("layer2", "layer3"))
        >>> detector.name
        'rankfeat'
    """

    name: ClassVar[str] = "rankfeat"
    learns: ClassVar[bool] = False
    state_class: ClassVar[type] = Nothing

    def __init__(
        self, model: nn.Module | Network, *, stages: Sequence[str] | None = None, **common: Any
    ) -> None:
        super().__init__(model, **common)
        need_classification(self.task, self.name)
        if isinstance(stages, str):
            raise InputError(f"stages must be two names, got the text {stages!r}")
        self._measure = RankOneLogits(None if stages is None else tuple(stages))
        self._stages = stages

    def _measures(self) -> tuple[Measure, ...]:
        return (self._measure,)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        stages = None if self._stages is None else list(self._stages)
        return {**config, "stages": stages}, tensors

    def _learn(self, passes: Passes) -> Nothing:
        return Nothing()

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        both = passes.extras[self._measure.key].to(torch.float64)
        return -both.mean(dim=1).logsumexp(dim=-1)
