"""The content key of a record: a hash of everything that passes depend on, and of nothing else.

Two records with the same key hold the same passes of the same inputs, perhaps in another order:
in which order rows are held, and how many go through the network at once, is not content.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from torch import Tensor

from tulip_ood.network import inputs as structures
from tulip_ood.network.fingerprint import hash_tensor
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.rows import Rows
from tulip_ood.version import __version__

__all__ = ["content_key", "noise_identity"]


def content_key(
    perturbation: Perturbation,
    settings: PassSettings,
    source: Rows | Inputs,
    *,
    labels: Tensor | None = None,
    positions: Tensor | None = None,
    noisy_features: bool = False,
    extras: Iterable[str] = (),
) -> str:
    """The key of a record.

    Args:
        perturbation: The network and what is done to it.
        settings: Those of the noisy passes, which may have another ε.
        source: The inputs, as the network is fed: how they were prepared shows in them.
        labels: One for each input.
        positions: Which positions are kept of each dense output.
        noisy_features: Whether the features of the noisy passes are in the record.
        extras: The keys of what else was measured.

    Example:
        >>> import torch
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 2), make_task("classification"))
        >>> base_alone = PassSettings(1.0, n_samples=0)
        >>> plain = Perturbation(network, {}, InitialMean({}, ()), base_alone)
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> content_key(plain, base_alone, x) == content_key(plain, base_alone, x.flip(0))
        True
    """
    parts = {
        "version": __version__,
        "network": _network(perturbation.network),
        "noise": noise_identity(perturbation, settings),
        "noisy_features": noisy_features and settings.n_samples > 0,
        "extras": sorted(extras),
        "rows": _rows(source, labels, positions),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _network(network: Network) -> dict[str, Any]:
    probe = network.known_probe if network.probed else None
    return {
        **network.fingerprint(),
        # Strides, paddings, the ε of a norm: what no parameter shows.
        "layers": hashlib.sha256(repr(network.module).encode()).hexdigest(),
        "task": network.task.name,
        "output": _code(network.output_function),
        "hooks": network.calls_user_hooks,
        "head": None if probe is None else [probe.head, probe.head_is_logits],
        "precision": network.precision,
        "dtype": str(network.dtype),
        "device": network.device.type,
    }


def noise_identity(perturbation: Perturbation, settings: PassSettings) -> dict[str, Any] | None:
    """What noisy and drift passes depend on beside the network; None where there are none.

    Example:
        >>> import torch
        >>> from tulip_ood.network.initial_mean import InitialMean
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 2), make_task("classification"))
        >>> settings = PassSettings(0.01, n_samples=2)
        >>> noisy = Perturbation(network, {"weight": 1.0}, InitialMean({}, ()), settings)
        >>> noise_identity(noisy, settings)["epsilon"]
        0.01
    """
    if not settings.n_samples:
        return None
    names = perturbation.network.noise_names
    parts: dict[str, Any] = {
        "kind": type(perturbation).__name__,
        "epsilon": settings.epsilon,
        "n_samples": settings.n_samples,
        "antithetic": settings.antithetic and settings.n_samples > 1,
        "seed": settings.seed,
        "scales": [[n, names[n], s] for n, s in sorted(perturbation.scales.items())],
    }
    if settings.drift:
        means = {name: perturbation.means.of(name) for name in sorted(perturbation.scales)}
        parts["delta"] = settings.delta
        parts["means"] = {n: _number(m) for n, m in means.items() if isinstance(m, Tensor) or m}
    return parts


def _number(value: float | Tensor) -> float | str:
    if not isinstance(value, Tensor):
        return float(value)
    if not value.ndim:
        return float(value)
    state = hashlib.sha256(f"{tuple(value.shape)}:".encode())
    hash_tensor(state, value.double())
    return state.hexdigest()


def _rows(source: Rows | Inputs, labels: Tensor | None, positions: Tensor | None) -> str:
    """A hash of the rows as a set: each with its label and its positions."""
    singles = source.inputs if isinstance(source, Rows) else [source]
    digests = [d for rows in singles for d in structures.row_digests(rows, seed=0)]
    states = [hashlib.blake2b(digest, digest_size=16) for digest in digests]
    for name, values in (("label", labels), ("positions", positions)):
        if values is None:
            continue
        for state, value in zip(states, values, strict=True):
            state.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
            hash_tensor(state, value)
    return hashlib.sha256(b"".join(sorted(s.digest() for s in states))).hexdigest()


def _code(function: Callable[..., Any] | None) -> str | None:
    """What a function does, as far as it can be said without its globals."""
    if function is None:
        return None
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return repr(function)
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return repr((_constants(code), cells, getattr(function, "__defaults__", None)))


def _constants(code: CodeType) -> tuple[Any, ...]:
    inner = [_constants(c) if isinstance(c, CodeType) else c for c in code.co_consts]
    return code.co_code, code.co_names, inner
