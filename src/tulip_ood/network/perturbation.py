"""The perturbed weights of Alg. 1: θ + εΓv_i for the noisy passes, θ + εδΓ(θ − θ_ts) for the drift.

The noise is a pure function of (seed, pair, canonical parameter name): scope, dtype, device, order
and wrappers do not change it, and tied parameters share one draw.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.network.forking import fork_safe_lock
from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.network import Network
from tulip_ood.numerics import random

__all__ = ["PassSettings", "Perturbation"]

_log = logging.getLogger("tulip_ood")


@dataclass(frozen=True)
class PassSettings:
    """Everything that decides what the passes are, apart from the network and the inputs.

    Attributes:
        epsilon: ε, the size of the noise.
        delta: δ, the drift's step is εδ.
        n_samples: M, the number of noisy passes; 0 for the base pass alone.
        antithetic: Whether noise comes in pairs (v, −v).
        seed: The seed of the noise.
        drift: Whether the drift pass is made too.

    Example:
        >>> PassSettings(0.005).n_samples
        10
        >>> PassSettings(0.005).n_passes, PassSettings(0.005, drift=False).n_passes
        (12, 11)
    """

    epsilon: float
    delta: float = 8.0
    n_samples: int = 10
    antithetic: bool = True
    seed: int = 0
    drift: bool = True

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and self.epsilon < float("inf")):
            raise InputError(f"epsilon must be positive, got {self.epsilon}")
        if not (self.delta > 0 and self.delta < float("inf")):
            raise InputError(f"delta must be positive, got {self.delta}")
        if self.n_samples < 0:
            raise InputError(f"n_samples must not be negative, got {self.n_samples}")
        random.check_seed(self.seed)

    @property
    def n_passes(self) -> int:
        """Forward passes for an input: base, M noisy, drift; or the base alone."""
        return self.n_samples + 1 + self.makes_drift

    @property
    def makes_drift(self) -> bool:
        """Whether there is a drift pass: with noisy passes, unless it is not wanted."""
        return self.drift and self.n_samples > 0

    def serves(self, wanted: "PassSettings") -> bool:
        """Whether passes of these settings hold all that passes of the wanted ones would."""
        if not wanted.n_samples:
            return True
        if wanted.drift:
            return self == wanted
        return self.with_(drift=False, delta=wanted.delta) == wanted

    def sample(self, i: int) -> tuple[int, float]:
        """Which pair noisy pass i belongs to, and its sign."""
        return (i // 2, 1.0 - 2.0 * (i % 2)) if self.antithetic else (i, 1.0)

    def with_(self, **changes: Any) -> "PassSettings":
        """A copy with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """For a JSON header."""
        return asdict(self)


class Perturbation:
    """Makes the parameters of every pass.

    Args:
        network: The network.
        scales: Γ by parameter name; a parameter that is not named is left alone.
        means: θ_ts.
        settings: ε, δ, M, pairs, seed.
        hold: Keep all perturbed parameters in memory (fast for many small calls); otherwise they
            are made again for every call.

    Example:
        >>> import torch
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(2, 2), make_task("classification"))
        >>> means = InitialMean({}, ())
        >>> p = Perturbation(network, {"weight": 1.0}, means, PassSettings(0.01, n_samples=2))
        >>> plus, minus = (dict(w)["weight"] for w in p.noisy())
        >>> torch.allclose(plus + minus, 2 * network.parameters["weight"])
        True
    """

    def __init__(
        self,
        network: Network,
        scales: Mapping[str, float],
        means: InitialMean,
        settings: PassSettings,
        *,
        hold: bool = True,
    ) -> None:
        self.network = network
        self.scales = {n: s for n, s in scales.items() if network.parameters[n].is_floating_point()}
        self.names = frozenset(self.scales)
        self.means = means
        self.settings = settings
        self.hold = hold
        self._held: list[dict[str, Tensor]] | None = None
        self._lock = fork_safe_lock()

    @property
    def held_bytes(self) -> int:
        """What holding the perturbed copies, M and perhaps the drifted one, takes."""
        one = sum(
            self.network.parameters[name].numel() * self.network.parameters[name].element_size()
            for name in self.scales
        )
        return one * (self.settings.n_passes - 1)

    def unit_noise(self, pair: int) -> dict[str, Tensor]:
        """v of one pair: standard normal, float32, on the network's device."""
        return {
            name: random.normal(
                self.network.parameters[name].shape,
                seed=self.settings.seed,
                name=self.network.noise_names[name],
                index=pair,
                device=self.network.device,
            )
            for name in self.scales
        }

    def moved(self, step: Mapping[str, Tensor], size: float) -> dict[str, Tensor]:
        """θ + size·Γ·step, in the dtype of the passes."""
        parameters = dict(self.network.parameters)
        for name, direction in step.items():
            theta = parameters[name]
            wide = theta.to(torch.promote_types(theta.dtype, torch.float32))
            parameters[name] = wide.add(
                direction.to(wide.dtype), alpha=size * self.scales[name]
            ).to(theta.dtype)
        return parameters

    def noisy(self, epsilon: float | None = None, first: int = 0) -> Iterator[dict[str, Tensor]]:
        """The parameters of the M noisy passes, one after another, from one of them on."""
        if epsilon is None and self.hold:
            yield from self._hold()[first : self.settings.n_samples]
            return
        size = self.settings.epsilon if epsilon is None else epsilon
        drawn, noise = -1, {}
        for i in range(first, self.settings.n_samples):
            pair, sign = self.settings.sample(i)
            if pair != drawn:
                drawn, noise = pair, self.unit_noise(pair)
            yield self.moved(noise, sign * size)

    def drifted(self, epsilon: float | None = None) -> dict[str, Tensor]:
        """The parameters of the drift pass."""
        if epsilon is None and self.hold and self.settings.makes_drift:
            return self._hold()[-1]
        return self._drifted(self.settings.epsilon if epsilon is None else epsilon)

    def _drifted(self, epsilon: float) -> dict[str, Tensor]:
        step = {}
        for name in self.scales:
            theta, mean = self.network.parameters[name], self.means.of(name)
            if isinstance(mean, Tensor):
                mean = mean.to(theta.device, theta.dtype)
            step[name] = theta - mean
        return self.moved(step, epsilon * self.settings.delta)

    def _hold(self) -> list[dict[str, Tensor]]:
        with self._lock:
            if self._held is None:
                _log.info(
                    "holding %d perturbed copies of %d parameters: %.1f MB",
                    self.settings.n_passes - 1,
                    len(self.scales),
                    self.held_bytes / 1e6,
                )
                epsilon = self.settings.epsilon
                drifted = [self._drifted(epsilon)] if self.settings.makes_drift else []
                self._held = [*self.noisy(epsilon), *drifted]
            return self._held

    def release(self) -> None:
        """Let go of what is held: it is made again where it is needed."""
        with self._lock:
            self._held = None

    def checksum(self) -> str:
        """A short hash of the noise itself: differs if another release draws other numbers."""
        state = hashlib.blake2b(digest_size=16)
        last, _ = self.settings.sample(max(0, self.settings.n_samples - 1))
        for name in sorted(self.scales):
            drawn_as = self.network.noise_names[name]
            state.update(name.encode())
            for pair in (0, last):
                drawn = random.normal((8,), seed=self.settings.seed, name=drawn_as, index=pair)
                state.update(drawn.numpy().tobytes())
        return state.hexdigest()
