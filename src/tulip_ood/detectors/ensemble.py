"""Deep ensembles: several networks trained alike (Lakshminarayanan et al., NeurIPS 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.tasks_allowed import refuse_dense
from tulip_ood.errors import FileFormatError, InputError, ModelError
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.wording import counted

__all__ = ["Ensemble", "EnsembleState", "OtherLogits"]


class OtherLogits(Measure):
    """The logits of other networks, [N, networks, o].

    Args:
        networks: The others.
        first: The detector's own, which none of them may equal.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> one, two = (Network(nn.Linear(4, 3), make_task("classification")) for _ in range(2))
        >>> OtherLogits((two,), one)(one, torch.randn(5, 4)).shape
        torch.Size([5, 1, 3])
    """

    def __init__(self, networks: tuple[Network, ...], first: Network) -> None:
        self._networks, self._first = networks, first
        self._weights: tuple[str, ...] | None = None

    @property
    def weights(self) -> tuple[str, ...]:
        """SHA-256 of each network's weights as they are now."""
        changed = [network for network in self._networks if network.stale]
        for network in changed:
            network.refresh()
        if changed or self._weights is None:
            self._weights = tuple(n.fingerprint()["weights_sha256"] for n in self._networks)
        return self._weights

    def check_different(self) -> None:
        """Refuse networks with equal weights: they would only count twice."""
        every = (self._first.fingerprint()["weights_sha256"], *self.weights)
        for i, digest in enumerate(every):
            if digest in every[:i]:
                twin = every.index(digest)
                before = "the model itself" if twin == 0 else f"others[{twin - 1}]"
                raise InputError(
                    f"others[{i - 1}] has the same weights as {before}: an ensemble needs networks "
                    f"that were trained separately"
                )

    @property
    def key(self) -> str:
        """All that it depends on: the other networks' weights."""
        return f"ensemble:{','.join(self.weights)}"

    @property
    def passes(self) -> int:
        """One a network."""
        return len(self._networks)

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """[N, networks, o]."""
        outputs = network.probe(inputs).n_outputs
        logits = []
        for i, other in enumerate(self._networks):
            if other.device != network.device:
                other.move(network.device)
            width = other.probe(inputs).n_outputs
            if width != outputs:
                raise ModelError(
                    f"others[{i}] has {counted(width, 'output')}, the model {outputs}: the "
                    f"networks of an ensemble must answer the same question"
                )
            logits.append(other.run(inputs).logits)
        return torch.stack(logits, dim=1)


@dataclass(frozen=True)
class EnsembleState:
    """Which networks were fitted on.

    Attributes:
        key: The measure's key, with a hash of each network's weights.

    Example:
        >>> EnsembleState("ensemble:…").key
        'ensemble:…'
    """

    key: str


class Ensemble(Detector):
    """The score of the prediction averaged over several networks.

    A file holds fingerprints of the networks, not the networks. They are all given again to load
    it: `tulip_ood.load(path, torch.nn.ModuleList([model, *others]))`.

    Args:
        model: Any trained `torch.nn.Module` that returns logits (or has `.logits`). Its labels
            are what `predict` returns.
        others: Networks for the same task, trained separately; `output` holds for them too.
        score: "ent", "msp", "gen", "mls" or "ebo".
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.ensemble import Ensemble
        >>> one, two, three = (torch.nn.Linear(4, 3) for _ in range(3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = Ensemble(one, others=[two, three]).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "ensemble"
    learns: ClassVar[bool] = False
    state_class: ClassVar[type] = EnsembleState

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        others: Sequence[nn.Module | Network] = (),
        score: str = "ent",
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        refuse_dense(self.task, self.name)
        self.score_name = self.task.check_score(score)
        if score == "bound":
            raise InputError("an ensemble has no bound: choose another score")
        given: Any = others
        if isinstance(given, Network) or (
            isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList)
        ):
            raise InputError("others must be a list of networks, got a single network")
        if len(others) == 0:
            raise InputError(
                "an ensemble needs others=[…], at least one more network for the same task"
            )
        self._networks = tuple(
            other
            if isinstance(other, Network)
            else Network(
                other,
                self.task,
                output=common.get("output"),
                device=self.network.device,
                precision=self.network.precision,
            )
            for other in others
        )
        self._measure = OtherLogits(self._networks, self.network)
        self._measure.check_different()

    def _measures(self) -> tuple[Measure, ...]:
        return (self._measure,)

    def _learn(self, passes: Passes) -> EnsembleState:
        return EnsembleState(self._measure.key)

    def _score(self, state: EnsembleState, passes: Passes) -> Tensor:
        if state.key not in passes.extras:
            raise ModelError(
                "the weights of a network in others=… have changed since this ensemble was "
                "fitted: fit it again, or put the old weights back"
            )
        return self.task.score(self.score_name, _samples(state, passes))

    def _probs(self, state: EnsembleState, passes: Passes) -> Tensor:
        return self.task.predict(_samples(state, passes))

    # ---------------------------------------------------------------------- save

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, with a fingerprint in the place of each network."""
        config, tensors = super().configuration()
        prints = [network.fingerprint() for network in self._networks]
        return {**config, "score": self.score_name, "others": prints}, tensors

    @classmethod
    def from_configuration(
        cls, model: nn.Module, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any
    ) -> Self:
        """The ensemble that `configuration` described, from a ModuleList of all its networks."""
        config = dict(config)
        expected = config.pop("others")
        networks = list(model) if isinstance(model, nn.ModuleList) else [model]
        if len(networks) != len(expected) + 1:
            raise InputError(
                f"this file holds an ensemble of {len(expected) + 1} networks, got "
                f"{len(networks)}: load it with torch.nn.ModuleList([model, *others]) in the "
                f"place of the model"
            )
        config["others"] = networks[1:]
        made = super().from_configuration(networks[0], config, tensors, **more)
        for i, (network, then) in enumerate(zip(made._networks, expected, strict=True)):
            if network.fingerprint() != then:
                raise FileFormatError(
                    f"others[{i}] is not the network that this ensemble was fitted with (another "
                    f"architecture, other weights or buffers, or another order)"
                )
        return made


def _samples(state: EnsembleState, passes: Passes) -> Tensor:
    """The logits of all networks, [networks, N, o]."""
    rest = passes.extras[state.key].transpose(0, 1)
    return torch.cat([passes.base.unsqueeze(0), rest]).to(torch.float64)
