"""One set of passes for many detectors: nothing is run twice because two methods need it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tulip_ood.detectors.base import Detector
from tulip_ood.errors import kind_and_text
from tulip_ood.network.fast import FastPasses
from tulip_ood.network.inputs import Inputs, finite_rows
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import Perturbation
from tulip_ood.network.running import Forwarded, Needs, forward

if TYPE_CHECKING:
    from tulip_ood.network.measures import Measure

__all__ = ["SharedPasses"]


class SharedPasses:
    """Makes the passes that several fitted detectors of one network need, together.

    The base pass and every measure are made once; noisy passes once for each distinct way of
    perturbing the weights.

    Args:
        network: The network that all detectors share.
        detectors: Fitted, by name.
        batch_size: Inputs in one forward pass.

    Example:
        >>> import torch, tulip_ood
        >>> from tulip_ood.numerics.tasks import make_task
        >>> network = Network(torch.nn.Linear(4, 3), make_task("classification"))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> make = tulip_ood.detectors.make
        >>> detectors = {name: make(name, network).fit([(x, y)]) for name in ("msp", "ebo")}
        >>> sorted(SharedPasses(network, detectors, 64).of(x[:5])[0])
        ['ebo', 'msp']
    """

    def __init__(
        self, network: Network, detectors: Mapping[str, Detector], batch_size: int
    ) -> None:
        self._network = network
        self._fast = FastPasses(network, exact=True)
        self._batch_size = batch_size
        self._needs: dict[str, Needs] = {}
        self._perturbations: dict[str, Perturbation] = {}
        kept: dict[Any, Perturbation] = {}
        for name, detector in detectors.items():
            needs = self._needs[name] = detector.needs
            made = detector.engine.perturbation(needs.settings)
            scales = tuple(sorted(made.scales.items()))
            way = (type(made), needs.settings, scales, _of_means(made))
            # Equal noise is held in memory once.
            self._perturbations[name] = kept.setdefault(way, made)
        self._measures: dict[str, Measure] = {
            measure.key: measure for needs in self._needs.values() for measure in needs.measures
        }

    def failing(self, inputs: Inputs) -> dict[str, str]:
        """Detectors whose measure cannot be made of these inputs, with the reason."""
        found: dict[str, str] = {}
        for key, measure in self._measures.items():
            try:
                measure(self._network, inputs)
            except Exception as error:
                reason = kind_and_text(error)
                for name, needs in self._needs.items():
                    if any(one.key == key for one in needs.measures):
                        found[name] = reason
        return found

    def of(self, inputs: Inputs) -> tuple[dict[str, Passes], Tensor]:
        """The passes for each detector, and which inputs are finite themselves."""
        self._network.probe(inputs)
        base = self._base(inputs, tuple(self._measures.values()))
        return self._each(lambda name: self._run(name, inputs, base)), finite_rows(inputs)

    def _base(self, inputs: Inputs, measures: "tuple[Measure, ...]") -> Forwarded:
        return forward(
            self._network, inputs, batch_size=self._batch_size, features=True, measures=measures
        )

    def _run(self, name: str, inputs: Inputs, base: Forwarded) -> Passes:
        return self._fast.run(
            self._perturbations[name],
            inputs,
            batch_size=self._batch_size,
            needs=self._needs[name],
            base=base,
        )

    def _each(self, make: Callable[[str], Passes]) -> dict[str, Passes]:
        """For every detector its passes; made once for those that need the same."""
        made: dict[Any, Passes] = {}
        found: dict[str, Passes] = {}
        for name, needs in self._needs.items():
            way = (id(self._perturbations[name]), needs.noisy_features)
            if way not in made:
                made[way] = make(name)
            found[name] = made[way]
        return found


def _of_means(perturbation: Perturbation) -> tuple[Any, ...]:
    """θ_ts as something that can be compared."""
    return tuple(
        (name, value if isinstance(value, int | float) else value.detach().cpu().numpy().tobytes())
        for name, value in sorted(perturbation.means.values.items())
    )
