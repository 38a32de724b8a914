"""MC-Dropout: predictions averaged over dropout masks (Gal & Ghahramani, ICML 2016).

One mask a pass, shared by all inputs and batches: drawn anew for every input, as in training, a
score would depend on the place in the batch. Each input still has an average over random masks.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tulip_ood.detectors.base import Detector
from tulip_ood.detectors.logits import Nothing
from tulip_ood.detectors.tasks_allowed import refuse_dense
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network import inputs as structures
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.stages import look_at
from tulip_ood.numerics import random

__all__ = ["DroppedLogits", "MCDropout", "drop"]

_KINDS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_SATURATION = -1.7580993408473766  # −λα of SELU, what alpha dropout sets values to


def drop(layer: nn.Module, x: Tensor, *, seed: int, name: str, index: int) -> Tensor:
    """What a dropout layer in training mode makes of x [N, …], with one mask for all N inputs.

    Args:
        layer: nn.Dropout, Dropout1d, 2d, 3d, AlphaDropout or FeatureAlphaDropout.
        x: What it is given.
        seed: The user's seed.
        name: The layer's name.
        index: The number of the pass.

    Example:
        >>> drop(nn.Dropout(0.5), torch.ones(2, 6), seed=0, name="drop", index=0)
        tensor([[0., 2., 0., 2., 0., 0.],
                [0., 2., 0., 2., 0., 0.]])
    """
    p = float(layer.p)  # type: ignore[arg-type]
    shape = x.shape[1:]
    if isinstance(layer, _CHANNELS):
        shape = torch.Size([x.shape[1], *[1] * (x.ndim - 2)])
    drawn = random.uniform(shape, seed=seed, name=f"dropout/{name}", index=index, device=x.device)
    kept = (drawn >= p).to(x.dtype)
    if not isinstance(layer, _ALPHA):
        return x * kept if p == 1 else x * kept / (1.0 - p)
    if p == 1:
        return torch.zeros_like(x)
    # Values in the place of dropped ones, then scaled so that mean 0 and variance 1 stay.
    a: float = ((1.0 - p) * (1.0 + p * _SATURATION**2)) ** -0.5
    replaced: Tensor = x * kept + _SATURATION * (1.0 - kept)
    return a * replaced - a * _SATURATION * p


class DroppedLogits(Measure):
    """The logits of passes with dropout on, [N, passes, o].

    Args:
        n_samples: The number of passes.
        seed: Of the masks.

    Example:
        >>> from tulip_ood.numerics.tasks import make_task
        >>> model = nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5), nn.Linear(9, 3))
        >>> network = Network(model, make_task("classification"))
        >>> DroppedLogits(5, seed=0)(network, torch.randn(2, 4)).shape
        torch.Size([2, 5, 3])
    """

    def __init__(self, n_samples: int, seed: int) -> None:
        self._n, self._seed = n_samples, seed
        self._found: dict[str, nn.Module] | None = None

    @property
    def key(self) -> str:
        """All that it depends on."""
        return f"mcd:passes={self._n}:seed={self._seed}"

    @property
    def passes(self) -> int:
        """As many as there are masks."""
        return self._n

    def layers(self, network: Network, inputs: Inputs) -> dict[str, nn.Module]:
        """The dropout layers with p > 0 that run."""
        if self._found is None:
            self._found = _dropout_layers(network, inputs)
        return self._found

    def __call__(self, network: Network, inputs: Inputs) -> Tensor:
        """[N, passes, o]."""
        layers = self.layers(network, inputs)
        logits = []
        for i in range(self._n):
            edits = {name: self._dropping(name, layer, i) for name, layer in layers.items()}
            logits.append(network.run(inputs, edits=edits).logits)
        return torch.stack(logits, dim=1)

    def _dropping(self, name: str, layer: nn.Module, index: int) -> Callable[[Tensor], Tensor]:
        calls = iter(range(1 << 62))

        def edit(out: Tensor) -> Tensor:
            call = next(calls)  # a layer that runs again in one pass has another mask
            own = name if call == 0 else f"{name}#{call}"
            return drop(layer, out, seed=self._seed, name=own, index=index)

        return edit


def _shape(out: Tensor) -> tuple[int, ...]:
    if out.is_nested:
        raise ModelError(
            "MC-Dropout shares a mask between inputs, which rows of unequal length in a nested "
            "tensor have not: give nn.TransformerEncoder enable_nested_tensor=False"
        )
    return tuple(out.shape)


def _dropout_layers(network: Network, inputs: Inputs) -> dict[str, nn.Module]:
    wanted = {
        name: part
        for name, part in network.module.named_modules()
        if isinstance(part, _KINDS) and part.p > 0
    }
    first = torch.zeros(1, dtype=torch.int64)
    shapes = [
        look_at(
            network,
            structures.take(inputs, first.repeat(n)),
            dict.fromkeys(wanted, _shape),
        )
        for n in (1, 2)
    ]
    ran: dict[str, nn.Module] = {name: part for name, part in wanted.items() if name in shapes[0]}
    if not ran:
        raise ModelError(
            f"MC-Dropout needs dropout layers with p > 0 that run, and "
            f"{type(network.module).__name__} has none: every pass would be the same, and the "
            f"score that of the plain network. Dropout by functions (F.dropout, or dropout=… of "
            f"attention and recurrent layers) cannot be seen: use nn.Dropout modules, or another "
            f"method"
        )
    for name in ran:
        one, two = shapes[0][name], shapes[1][name]
        if one[1:] != two[1:]:
            raise ModelError(
                f"MC-Dropout shares a mask between inputs, so dropout layers must have the inputs "
                f"in the first dimension: {name!r} gives {list(one)} for one input and "
                f"{list(two)} for two. Use batch_first=True"
            )
    return ran


class MCDropout(Detector):
    """The score of the prediction averaged over passes with the network's own dropout on.

    Args:
        model: A trained `torch.nn.Module` with dropout layers that returns logits (or has
            `.logits`).
        score: "ent", "msp", "gen", "mls" or "ebo".
        n_samples: The number of passes, each with a mask of its own.
        **common: As for every detector.

    Example:
        >>> import torch
        >>> from tulip_ood.detectors.mcd import MCDropout
        >>> from torch.nn import Dropout, Linear, ReLU, Sequential
        >>> model = Sequential(Linear(4, 9), ReLU(), Dropout(0.5), Linear(9, 3))
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> detector = MCDropout(model).fit([(x, y)])
        >>> detector.score(x[:5]).shape
        torch.Size([5])
    """

    name: ClassVar[str] = "mcd"
    learns: ClassVar[bool] = False
    state_class: ClassVar[type] = Nothing

    def __init__(
        self,
        model: nn.Module | Network,
        *,
        score: str = "ent",
        n_samples: int = 5,
        **common: Any,
    ) -> None:
        super().__init__(model, **common)
        refuse_dense(self.task, self.name)
        self.score_name = self.task.check_score(score)
        if score == "bound" or n_samples < 1:
            raise InputError("MC-Dropout has no bound, and needs n_samples of at least 1")
        self.n_samples = n_samples
        self._measure = DroppedLogits(n_samples, self.seed)

    def _measures(self) -> tuple[Measure, ...]:
        return (self._measure,)

    def configuration(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The constructor's arguments, for a detector file."""
        config, tensors = super().configuration()
        return {**config, "score": self.score_name, "n_samples": self.n_samples}, tensors

    def _learn(self, passes: Passes) -> Nothing:
        return Nothing()

    def _score(self, state: Nothing, passes: Passes) -> Tensor:
        logits = passes.extras[self._measure.key].to(torch.float64)
        return self.task.score(self.score_name, logits.transpose(0, 1))

    def _probs(self, state: Nothing, passes: Passes) -> Tensor:
        logits = passes.extras[self._measure.key].to(torch.float64)
        return self.task.predict(logits.transpose(0, 1))
