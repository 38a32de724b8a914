"""What an artefact is made of: the network, its graph, the weights of all passes.

The drift pass is a finite difference, f at other weights, so every pass is the same graph run with
other numbers: no derivative is ever exported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.errors import InputError, ModelError
from tulip_ood.export.exportable import example_inputs
from tulip_ood.export.scoring import reads_features
from tulip_ood.network.exporting import filled_copy
from tulip_ood.network.inner import InnerStatistics
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.network import Network
from tulip_ood.network.partition import Partition

__all__ = ["Portable"]


@dataclass(frozen=True)
class Portable:
    """A network that can leave: cut into trunk and tail, with the weights of every tail.

    Attributes:
        network: A copy on the CPU, in float32 unless that is not enough.
        partition: Where it is cut; checked against the network.
        weights: The perturbed parameters of each pass: base, noisy ones, drift.
        n_samples: M; 0 where only the base pass is made.
        drifts: Whether the last pass is the drift pass.
        example: A few inputs.
        features: Whether penultimate features are wanted.
        inner: Which statistics of inner stages are wanted of the base pass, or None.
        mirrors: Whether the base pass is made of the mirror images, too.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> portable = Portable.of(detector)
        >>> len(portable.weights), portable.network.dtype
        (1, torch.float32)
    """

    network: Network
    partition: Partition
    weights: tuple[Mapping[str, Tensor], ...]
    n_samples: int
    drifts: bool
    example: Inputs
    features: bool = False
    inner: InnerStatistics | None = None
    mirrors: bool = False

    @staticmethod
    def of(detector: Detector, dtype: torch.dtype = torch.float32) -> "Portable":
        """From a fitted detector, with passes in float32 or in the detector's own dtype."""
        needs = detector.needs
        settings = needs.settings
        example = example_inputs(detector)
        network = _copy(detector.network, example, dtype)
        perturbation = detector.engine.perturbation(settings)
        names = perturbation.scales if settings.n_samples else {}
        moved = list(perturbation.noisy()) if settings.n_samples else []
        if settings.makes_drift:
            moved.append(perturbation.drifted())
        weights = [
            {name: parameters[name].to("cpu", dtype) for name in names}
            for parameters in (network.parameters, *moved)
        ]
        _check_finite(weights)
        inner = next((m for m in needs.measures if isinstance(m, InnerStatistics)), None)
        return Portable(
            network,
            Partition.of(network, names, example, looks=() if inner is None else (inner,)),
            tuple(weights),
            settings.n_samples,
            settings.makes_drift,
            example,
            reads_features(detector),
            inner,
            any(isinstance(measure, Mirrored) for measure in needs.measures),
        )


def _copy(network: Network, example: Inputs, dtype: torch.dtype) -> Network:
    """The network on the CPU, in another dtype than its passes have where that is asked for."""
    network.probe(example)
    if network.calls_user_hooks:
        raise ModelError(
            "the network's output is changed by hooks of yours, which no graph can follow: make "
            "them a part of its forward"
        )
    module, _ = filled_copy(network)
    copy = Network(
        module.to("cpu", dtype),
        network.task,
        output=network.output_function,
        head=network.head_name,
    )
    if copy.dtype != dtype:
        copy.stay_narrow()  # as for networks that insist on float32
    copy.probe(example)
    return copy


def _check_finite(weights: list[dict[str, Tensor]]) -> None:
    for one in weights:
        for name, value in one.items():
            if not bool(value.isfinite().all()):
                raise InputError(f"{name} is not finite: such a network is not exported")
