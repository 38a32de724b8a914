"""How large an artefact will be and what an input costs in it: said before anything is written."""

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from tulip_ood.detectors.auto import Auto
from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import InputError
from tulip_ood.export.portable import Portable
from tulip_ood.export.scoring import kept_tensors
from tulip_ood.network import inputs as structures
from tulip_ood.network.network import Network
from tulip_ood.network.scope import parameters_in_scope

__all__ = ["LIMIT", "Plan", "check_size", "estimated_bytes"]

LIMIT = (2 << 30) - (16 << 20)  # an ONNX file is one protobuf message, which ends at 2 GiB
_SMALLER = ("last-stage", "last-block", "head")
_NUMBER = 4  # bytes in float32


@dataclass(frozen=True)
class Plan:
    """What is going to be written.

    Attributes:
        method: The detector's name.
        format: "onnx" or "pt2".
        megabytes: The size of the file, about.
        passes: Forward passes: base, noisy, drift, mirror image.
        perturbed: The share of the parameters that differ between passes.
        trunk_share: The share of a pass that is done once for all passes.
        cost: What an input costs, in passes of the network alone.
        milliseconds: What an input costs here in PyTorch, about; runtimes differ.

    Example:
        >>> plan = Plan("tulip", "onnx", 213.0, 12, 0.9, 0.25, 9.3, 120.0)
        >>> print(plan)
        tulip as onnx: about 213 MB; 12 passes (25 % of each done once for all), so an input costs \
9.3 passes of the network alone, about 120 ms on this machine
    """

    method: str
    format: str
    megabytes: float
    passes: int
    perturbed: float
    trunk_share: float
    cost: float
    milliseconds: float

    @staticmethod
    def of(detector: Detector, portable: Portable, format: str) -> "Plan":  # noqa: A002
        """From a network that is cut already."""
        network, passes = portable.network, len(portable.weights)
        share = portable.partition.trunk_share if passes > 1 else 0.0
        cost = share + (1.0 - share) * passes + portable.mirrors
        one = sum(value.numel() for value in portable.weights[0].values())
        return Plan(
            method=detector.name,
            format=format,
            megabytes=estimated_bytes(detector) / 1e6 * network.dtype.itemsize / _NUMBER,
            passes=passes + portable.mirrors,
            perturbed=one / sum(p.numel() for p in network.parameters.values()),
            trunk_share=share,
            cost=cost,
            milliseconds=1e3 * cost * _seconds_of_one(portable),
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        once = f" ({100 * self.trunk_share:.0f} % of each done once for all)"
        many = f"{self.passes} passes{once if self.trunk_share else ''}, so an input costs "
        return (
            f"{self.method} as {self.format}: about {self.megabytes:.3g} MB; "
            f"{many if self.passes > 1 else 'an input costs '}{self.cost:.3g} "
            f"{'passes' if self.passes > 1 else 'pass'} of the network alone, about "
            f"{self.milliseconds:.3g} ms on this machine"
        )


def _seconds_of_one(portable: Portable) -> float:
    """A base pass over one input, the better of two: the first one warms up."""
    row = structures.take(portable.example, slice(0, 1))
    times = []
    for _ in range(2):
        start = time.perf_counter()
        portable.network.run(row)
        times.append(time.perf_counter() - start)
    return min(times)


def estimated_bytes(detector: Detector, scope: Collection[str] | None = None) -> int:
    """The size of an artefact: the network once, and what is perturbed once more for each pass.

    Args:
        detector: Fitted.
        scope: The names of the perturbed parameters, if not the detector's own.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> estimated_bytes(detector)  # 15 parameters, 200 calibration scores
        1660
    """
    network, settings = detector.network, detector.needs.settings
    if scope is None:
        scope = detector.engine.perturbation(settings).scales if settings.n_samples else ()
    more = sum(network.parameters[name].numel() for name in scope) * (settings.n_passes - 1)
    kept = sum(t.nbytes for t in (detector.calibration.scores, *kept_tensors(detector)))
    return _NUMBER * (_numbers(network) + more) + kept


def _numbers(network: Network) -> int:
    buffers = sum(buffer.numel() for buffer in network.module.buffers())
    return buffers + sum(p.numel() for p in network.parameters.values())


def check_size(detector: Detector, format: str) -> None:  # noqa: A002
    """Refuse what does not fit into one ONNX file, and say what would.

    Example:
        >>> import torch, tulip_ood
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).fit([(x, y)])
        >>> check_size(detector, "onnx")
    """
    size = estimated_bytes(detector)
    if format != "onnx" or size <= LIMIT:
        return
    ways = []
    if isinstance(detector, Tulip | Auto):
        smaller = {name: _bytes_in_scope(detector, name) for name in _SMALLER}
        ways = [f"scope={n!r} ({b / 1e9:.2g} GB)" for n, b in smaller.items() if 0 < b <= LIMIT]
    ways += ["fewer n_samples", "--format pt2, which has no limit"]
    raise InputError(
        f"the artefact would have {size / 1e9:.2g} GB, and one ONNX file holds "
        f"{LIMIT / 1e9:.3g} GB: fit with {', or '.join(ways)}"
    )


def _bytes_in_scope(detector: Detector, scope: str) -> int:
    """0 where the network has no such scope."""
    network = detector.network
    names = [n for n, p in network.parameters.items() if p.is_floating_point()]
    probe = network.known_probe
    try:
        inside = parameters_in_scope(network.module, names, scope, probe.calls, probe.head)
    except InputError:
        return 0
    return estimated_bytes(detector, inside)
