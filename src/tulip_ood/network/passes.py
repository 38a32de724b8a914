"""The record that passes leave: everything that a detector learns and scores from.

Everything that tunes, compares or benchmarks works on these records; they are made in one place
(`running.py`), keyed by content, and never made twice.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, cast

import torch
from safetensors import safe_open
from torch import Tensor

from tulip_ood.errors import FileFormatError, ModelError
from tulip_ood.network.features import Head
from tulip_ood.network.files import reading, save_tensors
from tulip_ood.network.perturbation import PassSettings
from tulip_ood.numerics.blocks import row_blocks

__all__ = ["Passes"]

_OPTIONAL = ("drift", "features", "labels", "noisy_features", "drift_features")
_HEADS = ("head_weights", "head_biases")


class _Rowwise(Protocol):
    """Something that holds for each input by itself."""

    def take(self, index: Tensor | slice) -> Self: ...


_OfRows = TypeVar("_OfRows", bound=_Rowwise)


@dataclass(frozen=True)
class Passes:
    """What the passes gave for N inputs, on the CPU, float32 (float64 for float64 networks).

    Attributes:
        base: f, [N, …, o].
        noisy: f_i, [M, N, …, o]; M = 0 where only the base pass was made.
        drift: f at the drifted parameters, [N, …, o]; None where that pass was not made.
        features: Penultimate features [N, d], or None.
        labels: [N, …], or None.
        settings: What made them.
        key: A hash of everything that they depend on, or "" if it was not asked for.
        ids: A fingerprint of each input's content, or None.
        noisy_features: Penultimate features of the noisy passes, [M, N, d], where asked for.
        drift_features: Those of the drift pass, [N, d], where asked for.
        heads: The last linear layer in the base, noisy and drift passes, in this order; as many
            as there are passes with features; empty where its output is not the logits.
        extras: What else was measured, by key, [N, …] each.
        known: What was computed of each input for itself, by key; see `once`.

    Example:
        >>> import torch
        >>> p = Passes(torch.zeros(3, 2), torch.zeros(4, 3, 2), None, None, None, PassSettings(.01))
        >>> len(p), p.take(torch.tensor([0, 2])).base.shape
        (3, torch.Size([2, 2]))
    """

    base: Tensor
    noisy: Tensor
    drift: Tensor | None
    features: Tensor | None
    labels: Tensor | None
    settings: PassSettings
    key: str = ""
    ids: tuple[bytes, ...] | None = None
    noisy_features: Tensor | None = None
    drift_features: Tensor | None = None
    heads: tuple[Head, ...] = ()
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    # Not an argument: a record that is made from this one by `replace` begins without it.
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return self.base.shape[0]

    def take(self, index: Tensor | slice) -> "Passes":
        """Some of the inputs."""

        def rows(t: Tensor | None) -> Tensor | None:
            return None if t is None else t[index]

        taken = replace(
            self,
            base=self.base[index],
            noisy=self.noisy[:, index],
            drift=rows(self.drift),
            features=rows(self.features),
            labels=rows(self.labels),
            key="",
            ids=None if self.ids is None else _pick(self.ids, index),
            noisy_features=None if self.noisy_features is None else self.noisy_features[:, index],
            drift_features=rows(self.drift_features),
            extras={name: value[index] for name, value in self.extras.items()},
        )
        taken.known.update({key: value.take(index) for key, value in self.known.items()})
        return taken

    def once(self, key: Hashable, compute: Callable[[], _OfRows]) -> _OfRows:
        """What `compute` gives, computed once for this record and all that is taken from it later.

        Args:
            key: All that it depends on beside the record.
            compute: Gives something that holds for each input by itself, whatever the others are.
        """
        if key not in self.known:
            self.known[key] = compute()
        found: _OfRows = self.known[key]
        return found

    def base_alone(self) -> "Passes":
        """The record without all but the base pass."""
        return replace(
            self,
            noisy=self.noisy[:0],
            drift=None,
            noisy_features=None,
            drift_features=None,
            settings=self.settings.with_(n_samples=0),
            key="",
        )

    @property
    def finite(self) -> Tensor:
        """Which inputs have only finite logits in every pass, [N]."""
        good = self.base.isfinite().flatten(1).all(dim=1)
        if self.drift is not None:
            good &= self.drift.isfinite().flatten(1).all(dim=1)
        good &= self.noisy.isfinite().flatten(2).all(dim=2).all(dim=0)
        for value in self.extras.values():
            good &= value.isfinite().flatten(1).all(dim=1)
        return good

    def only_finite(self) -> "Passes":
        """Without the inputs that are not `finite`."""
        return self.take(self.finite.nonzero().squeeze(1))

    @property
    def head(self) -> Head:
        """The network's own last linear layer."""
        if not self.heads and self.features is not None:
            raise ModelError(
                "this method needs that the logits are the output of the network's last linear "
                "layer. One was found, or named with head=…, and something behind it (a scale, a "
                "softmax) makes other numbers of its output: give the network without that"
            )
        if not self.heads:
            raise ModelError(
                "this method needs the network's last linear layer, and that its output are the "
                "logits: looked for the last executed nn.Linear (or 1 × 1 convolution after "
                "pooling) whose output equals them. Name it with head=…"
            )
        return self.heads[0]

    def serving(self, settings: PassSettings) -> "Passes":
        """The record without the drift pass, if such settings do not make one."""
        if settings.drift or self.drift is None:
            return self
        less = self.settings.with_(drift=False)
        return replace(self, drift=None, drift_features=None, settings=less, key="")

    def need_features(self) -> Tensor:
        """Penultimate features [N, d]; refuses where the network has none."""
        if self.features is None:
            raise ModelError(
                "this method needs penultimate features, and no last linear layer was found: "
                "looked for the last executed nn.Linear (or 1 × 1 convolution after pooling) with "
                "as many outputs as the network. Name it with head=…"
            )
        return self.features

    def reshaped(self, shape: Callable[[Tensor], Tensor]) -> "Passes":
        """The passes as they would be with the features changed in front of the last layer.

        Args:
            shape: From features [N, d] to features [N, d], each row for itself.
        """
        if (known := self.known.get(_shaped_by(shape))) is not None:
            return cast("_Some", known).passes
        own = self.head  # refuses where there is none
        base = _shaped_logits(own, self.need_features(), shape)
        if not len(self.noisy):
            return replace(self, base=base)
        lacks_drift = self.drift is not None and self.drift_features is None
        if self.noisy_features is None or lacks_drift:
            raise ModelError("these passes hold no features of the noisy passes to be shaped")
        noisy = _all_shaped(self.heads[1 : 1 + len(self.noisy)], self.noisy_features, shape)
        drift = None
        if self.drift_features is not None:
            drift = _shaped_logits(self.heads[-1], self.drift_features, shape)
        return replace(self, base=base, noisy=noisy, drift=drift)

    def shaped_once(self, shape: Callable[[Tensor], Tensor]) -> "Passes":
        """The record that knows what it is when `reshaped`, and so does all that is taken from it.

        Features of the other passes serve nothing else and are let go: they may take more memory
        than the logits. What is reshaped holds logits and labels alone.
        """
        shaped = replace(
            self.reshaped(shape),
            features=None,
            ids=None,
            noisy_features=None,
            drift_features=None,
            extras={},
        )
        less = replace(self, noisy_features=None, drift_features=None)
        less.known.update({**self.known, _shaped_by(shape): _Some(shaped)})
        return less

    # ------------------------------------------------------------------------ disk

    def save(self, path: str | Path) -> None:
        """Write a safetensors file (whole, or not at all)."""
        tensors = {"base": self.base, "noisy": self.noisy}
        tensors |= {name: v for name in _OPTIONAL if (v := getattr(self, name)) is not None}
        tensors |= {f"extras.{name}": value for name, value in self.extras.items()}
        if self.heads:
            tensors["head_weights"] = torch.stack([head.weight for head in self.heads])
            tensors["head_biases"] = torch.stack([head.bias for head in self.heads])
        if self.ids is not None:
            tensors["ids"] = torch.frombuffer(bytearray(b"".join(self.ids)), dtype=torch.uint8)
        header = {"format": "tulip-passes-1", "key": self.key, "settings": self.settings.to_dict()}
        save_tensors(path, tensors, {"tulip": json.dumps(header)})

    @staticmethod
    def load(path: str | Path) -> "Passes":
        """Read what `save` wrote."""
        with reading(path, "passes"):
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get("tulip", "{}"))
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if header.get("format") != "tulip-passes-1":
                raise FileFormatError(f"{path} holds no passes (format {header.get('format')!r})")
            return _passes(header, found)


def _passes(header: dict[str, Any], found: dict[str, Tensor]) -> Passes:
    heads: tuple[Head, ...] = ()
    if "head_weights" in found:
        heads = tuple(map(Head, *(found[name].unbind() for name in _HEADS)))
    return Passes(
        base=found["base"],
        noisy=found["noisy"],
        settings=PassSettings(**header["settings"]),
        key=header["key"],
        ids=_unpack(found["ids"], len(found["base"])) if "ids" in found else None,
        heads=heads,
        extras={
            name.removeprefix("extras."): value
            for name, value in found.items()
            if name.startswith("extras.")
        },
        **{name: found.get(name) for name in _OPTIONAL},
    )


@dataclass(frozen=True)
class _Some:
    """Some rows of a record, picked only when they are asked for: most folds never ask."""

    whole: Passes
    rows: Tensor | None = None

    def take(self, index: Tensor | slice) -> "_Some":
        rows = torch.arange(len(self.whole)) if self.rows is None else self.rows
        return _Some(self.whole, rows[index])

    @property
    def passes(self) -> Passes:
        return self.whole if self.rows is None else self.whole.take(self.rows)


def _shaped_by(shape: Callable[[Tensor], Tensor]) -> Hashable:
    return "shaped", shape


def _shaped_logits(head: Head, features: Tensor, shape: Callable[[Tensor], Tensor]) -> Tensor:
    """Logits [N, o] of shaped features [N, d], computed in float64.

    In float32 they would hang on what is set outside of our passes (autocast, the precision of
    products), and on how many inputs go together.
    """
    return head.logits(shape(features.to(torch.float64)))


def _all_shaped(
    heads: Sequence[Head], features: Tensor, shape: Callable[[Tensor], Tensor]
) -> Tensor:
    """Logits [M, N, o] of the features [M, N, d] of several passes, each with its own head."""
    if features.device.type == "cpu":
        pairs = zip(heads, features, strict=True)
        return torch.stack([_shaped_logits(head, own, shape) for head, own in pairs])
    # Every operation costs a GPU a start, and one of them may be large.
    found = []
    for rows in row_blocks(features.shape[1], features[:, :1].numel()):
        some = features[:, rows]
        shaped = shape(some.flatten(0, 1).to(torch.float64)).view(some.shape)
        weight, bias = (torch.stack(part).to(torch.float64) for part in zip(*heads, strict=True))
        found.append(torch.baddbmm(bias.unsqueeze(1), shaped, weight.mT))
    return torch.cat(found, dim=1)


def _pick(ids: tuple[bytes, ...], index: Tensor | slice) -> tuple[bytes, ...]:
    if isinstance(index, slice):
        return ids[index]
    where = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
    return tuple(ids[i] for i in where.tolist())


def _unpack(packed: Tensor, n: int) -> tuple[bytes, ...]:
    raw = packed.numpy().tobytes()
    width = len(raw) // max(n, 1)
    return tuple(raw[i * width : (i + 1) * width] for i in range(n))
