"""Passes of networks on the sets at hand: made once, kept on disk, and read by several figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tulip_ood.benchmark.ablations import NoisyInputLogits
from tulip_ood.benchmark.bench_networks import open_network
from tulip_ood.benchmark.cells import BenchNetwork, network_id
from tulip_ood.benchmark.pass_cache import CachedPasses, PassCache
from tulip_ood.benchmark.pieces import pieces_of
from tulip_ood.data.protocol import protocol_of
from tulip_ood.data.root import NotThereError, Part, Root
from tulip_ood.detectors.envelope_fit import Constants
from tulip_ood.detectors.measured import Measured, measure
from tulip_ood.detectors.recipes import Setting
from tulip_ood.detectors.tulip import Tulip
from tulip_ood.errors import DataError, InputError
from tulip_ood.network.measures import Measure
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.running import Needs
from tulip_ood.numerics import envelope, metrics
from tulip_ood.numerics.tasks import make_task

__all__ = [
    "EPSILON",
    "MeasuredNetwork",
    "MeasuredSet",
    "measure_networks",
    "open_for",
    "sizes",
]

EPSILON = 0.005  # the paper's, and that of the recipe `balanced`
PAPER_LAMBDA = 1.25
CACHE_LIMIT = 4 << 30
_TASK = make_task("classification")
_LEAST_VALIDATION = 300  # J* is found on the network's errors, and a good one makes few
_MATCHED_ON = 64  # images that the size of the input noise is found on
_MATCH_STEPS = 4
Progress = Callable[[str, int, int], None]  # (what, done, of how many), in images


@dataclass(frozen=True)
class MeasuredSet:
    """One set, and a network's passes on it.

    Attributes:
        name: As the protocol calls it.
        group: "val", "id", "near" or "far".
        stand_in: What it is instead of the protocol's own set; None if it is that.
        passes: By ε; those of ID sets are labelled.

    Example:
        >>> MeasuredSet("svhn", "far", "10,000 of 26,032", {}).group
        'far'
    """

    name: str
    group: str
    stand_in: str | None
    passes: Mapping[float, Passes]


@dataclass(frozen=True)
class MeasuredNetwork:
    """A network with its passes on every set at hand.

    Attributes:
        name: Of the network.
        id_set: The protocol's ID set.
        sets: Validation data first, then the ID test set, then OOD sets.
        limit: Images of each set at most; None for all.
        input_noise: What input noise was measured with, if it was.

    Example:
        >>> MeasuredNetwork("s0", "cifar10", (), None).of("near")
        ()
    """

    name: str
    id_set: str
    sets: tuple[MeasuredSet, ...]
    limit: int | None
    input_noise: NoisyInputLogits | None = None

    def of(self, *groups: str) -> tuple[MeasuredSet, ...]:
        """The sets of some groups."""
        return tuple(each for each in self.sets if each.group in groups)

    def only(self, group: str) -> MeasuredSet:
        """The one set of a group: "val" or "id"."""
        (found,) = self.of(group)
        return found

    def constants(self, setting: Setting) -> Constants:
        """Θ_XX, λ and J* of the validation images, as a detector would find them."""
        val = self.only("val").passes[setting.epsilon]
        return Constants.of(val, _TASK, setting, sqrt_outputs=False)

    def literal_lambda(self, epsilon: float = EPSILON) -> float:
        """The λ of Alg. 1, where the drift is multiplied by √o, for a drift that is not."""
        outputs = self.only("val").passes[epsilon].base.shape[-1]
        return float(PAPER_LAMBDA * outputs**0.5)

    def aurocs(self, score: Callable[[Passes], Tensor], epsilon: float = EPSILON) -> dict[str, Any]:
        """AUROC against every OOD set by name, and the means of "near" and "far"."""
        inside = score(self.only("id").passes[epsilon])
        found = {
            each.name: metrics.auroc(inside, score(each.passes[epsilon]))
            for each in self.of("near", "far")
        }
        return found | {
            group: sum(found[each.name] for each in self.of(group)) / len(self.of(group))
            for group in self.groups
        }

    @property
    def groups(self) -> tuple[str, ...]:
        """Which of "near" and "far" there are."""
        return tuple(group for group in ("near", "far") if self.of(group))


def sizes(passes: Passes) -> Measured:
    """Θ and D of every input; D without √o.

    Example:
        >>> from tulip_ood.network.perturbation import PassSettings
        >>> base = torch.zeros(1, 2)
        >>> sizes(Passes(base, base[None], base, None, None, PassSettings(0.1, n_samples=1))).drift
        tensor([0.], dtype=torch.float64)
    """
    return measure(passes, sqrt_outputs=False)


class _Measuring(Tulip):
    """TULiP whose passes are wanted before it is fitted."""

    def __init__(
        self, network: Network, epsilon: float, n_samples: int, extra: tuple[Measure, ...]
    ) -> None:
        super().__init__(network, epsilon=epsilon, n_samples=n_samples, antithetic=True)
        self._setting = self._with_given(self._setting)
        self._extra = extra

    def _ready(self) -> None:
        return None

    def _needs_to_predict(self) -> Needs:
        return Needs(self._settings(), measures=self._extra)


def measure_networks(
    data: str | Path,
    networks: Sequence[str],
    *,
    cache: str | Path | PassCache,
    id_set: str | None = None,
    epsilons: Sequence[float] = (EPSILON,),
    n_samples: int = 10,
    limit: int | None = 500,
    input_noise: bool = False,
    batch_size: int = 64,
    device: str | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Iterator[MeasuredNetwork]:
    """Base, noisy and drift passes of every network on every set of its protocol.

    Args:
        data: A benchmark root (OpenOOD's own layout, or one with `sets.json`).
        networks: Checkpoints or specs, as `tulip bench` takes them.
        cache: Where passes are kept (a folder, or a cache itself): the same call again makes none.
        id_set: The protocol; by default the one in the root with as many classes.
        epsilons: Every ε that is wanted.
        n_samples: M, in pairs (v, −v).
        limit: Images of each set, a seeded subset (of validation images at least 300); None for
            all.
        input_noise: Also M passes with noise on the inputs, as large as needed to move the logits
            of validation images as far as the weight noise does.
        batch_size: Images in one forward pass.
        device: Where passes run.
        trust: Whether files that can run code may be opened.
        progress: Called with (what, done, of how many).

    Example:
        >>> list(measure_networks("/no/such/folder", ["a.safetensors"], cache="x"))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: there is no folder /no/such/folder
    """
    root = Root.open(data)
    kept = cache if isinstance(cache, PassCache) else PassCache(Path(cache), CACHE_LIMIT)
    say = progress or (lambda *_: None)
    for spec in networks:
        name, opened = open_for(spec, root, id_set=id_set, device=device, trust=trust)
        parts = _parts(root, name, limit)
        work = _Work(opened, Network(opened.module, _TASK), parts, kept, batch_size, say)
        found = {eps: work.passes(_Plan(eps, n_samples)) for eps in epsilons}
        noise = None
        if input_noise:
            at = EPSILON if EPSILON in epsilons else epsilons[0]
            noise = work.matched_noise(found[at]["val"], n_samples)
            found[at] = work.passes(_Plan(at, n_samples, (noise,)))
        protocol = protocol_of(name)
        groups = {"val": "val", "test": "id", **{s.name: s.group for s in protocol.sets}}
        sets = tuple(
            MeasuredSet(
                part.name, groups[role], part.stand_in, {e: found[e][role] for e in epsilons}
            )
            for role, part in parts.items()
        )
        yield MeasuredNetwork(opened.name, name, sets, limit, noise)


def open_for(
    spec: str,
    root: Root,
    *,
    id_set: str | None = None,
    device: str | None = None,
    trust: bool = False,
) -> tuple[str, BenchNetwork]:
    """The ID set in a root that has as many classes as a network, and the network.

    Example:
        >>> open_for("net.pt2", Root(Path("."), {}, None))
        Traceback (most recent call last):
        ...
        tulip_ood.errors.DataError: . has no ID set with OOD sets (see tulip data check)
    """
    names = (id_set,) if id_set else root.id_sets()
    if not names:
        raise DataError(f"{root.path} has no ID set with OOD sets (see tulip data check)")
    refused: list[str] = []
    for name in names:
        try:
            return name, open_network(spec, protocol_of(name), device=device, trust=trust)
        except InputError as error:
            refused.append(str(error))
    raise InputError("; ".join(dict.fromkeys(refused)))


def _parts(root: Root, id_set: str, limit: int | None) -> dict[str, Part]:
    """Validation and test images, and all OOD sets that are there."""
    found = {role: root.part(id_set, role) for role in ("val", "test")}
    for each in protocol_of(id_set).sets:
        if each.group in ("near", "far"):
            try:
                found[each.name] = root.part(id_set, each.name)
            except NotThereError:
                continue
    if len(found) == 2:
        raise DataError(f"{root.path} has none of the OOD sets of {id_set} (tulip data check)")
    if limit is None:
        return found
    val = found["val"].limited(max(limit, _LEAST_VALIDATION))
    return {role: part.limited(limit) for role, part in found.items()} | {"val": val}


@dataclass(frozen=True)
class _Plan:
    """Which passes are wanted."""

    epsilon: float
    n_samples: int
    extra: tuple[Measure, ...] = ()


class _Work:
    """One network on all sets."""

    def __init__(
        self,
        opened: BenchNetwork,
        network: Network,
        parts: Mapping[str, Part],
        cache: PassCache,
        batch_size: int,
        say: Progress,
    ) -> None:
        self._network, self._cache, self._say = network, cache, say
        self._size = batch_size
        self._name, self._owner = opened.name, network_id(opened, network)
        self._parts = parts
        self._pieces = {
            role: pieces_of(part, opened.preprocess, part.digest()) for role, part in parts.items()
        }

    def passes(self, plan: _Plan) -> dict[str, Passes]:
        """By role."""
        self._network.probe(self._pieces["val"][0].inputs()[:4])
        detector = _Measuring(self._network, plan.epsilon, plan.n_samples, plan.extra)
        shared = CachedPasses(self._network, {"": detector}, self._size, self._cache, self._owner)
        total, done = sum(map(len, self._parts.values())), 0
        found = {}
        for role, pieces in self._pieces.items():
            made = []
            for piece in pieces:
                self._say(f"{self._name}: {self._parts[role].name}", done, total)
                # As `tulip bench` names them: passes that it has kept are taken up.
                prepared = piece.preprocess.fingerprint
                which = f"{self._owner}/{prepared}/{piece.digest}/{piece.first}-{piece.stop}"
                passes, valid = shared.of_piece(which, piece.inputs)
                made.append((passes[""], valid))
                done += len(piece)
            found[role] = self._whole(role, made)
        self._say(f"{self._name}: passes", total, total)
        return found

    def _whole(self, role: str, made: Sequence[tuple[Passes, Tensor]]) -> Passes:
        """The passes of all pieces, labelled if they are ID, without what cannot be read."""
        first = made[0][0]
        drifts = [passes.drift for passes, _ in made]
        joined = replace(
            first,
            base=torch.cat([passes.base for passes, _ in made]),
            noisy=torch.cat([passes.noisy for passes, _ in made], dim=1),
            drift=torch.cat([drift for drift in drifts if drift is not None]),
            features=None,
            extras={
                key: torch.cat([passes.extras[key] for passes, _ in made]) for key in first.extras
            },
        )
        if role in ("val", "test"):
            labels = torch.tensor([int(v) for v in self._parts[role].source.labels()])  # type: ignore[arg-type]
            joined = replace(joined, labels=labels)
        return joined.take(torch.cat([valid for _, valid in made]) & joined.finite)

    def matched_noise(self, val: Passes, n_samples: int) -> NoisyInputLogits:
        """Input noise that moves the logits of validation images as far as weight noise does."""
        target = float(sizes(val).trace.mean())
        few = self._pieces["val"][0].inputs()[:_MATCHED_ON]
        base = self._network.run(few).logits
        sigma = 0.05
        for _ in range(_MATCH_STEPS):
            noisy = NoisyInputLogits(sigma, min(4, n_samples))(self._network, few)
            moved = float(envelope.trace(base, noisy.movedim(1, 0)).nanmean())
            if not moved > 0:
                raise InputError("noise on the inputs does not move this network's logits")
            # The change grows about like σ².
            sigma *= (target / moved) ** 0.5
        # Few digits: a last bit that differs elsewhere must not make other passes.
        return NoisyInputLogits(float(f"{sigma:.2g}"), n_samples)
