"""What a benchmark root holds, against the protocol's counts."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tulip_ood.data.batches import batches
from tulip_ood.data.benchmark_part import Part
from tulip_ood.data.imagelist import ImageList
from tulip_ood.data.protocol import PROTOCOLS, Protocol, protocol_of
from tulip_ood.data.root import NotThereError, Root
from tulip_ood.errors import DataError

__all__ = ["Checked", "check", "ready_sets"]

_BATCH = 256

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Checked:
    """How one part of a benchmark was found.

    Attributes:
        id_set: The ID set that it belongs to.
        role: "train", "val", "test", "ood_val", or the name of the set.
        name: Of the set.
        group: "id", "ood_val", "near", "far" or "shifted".
        state: "complete"; "stand-in" (something else in the set's place); "incomplete" (fewer
            images than the protocol has); "missing"; "damaged" (it is there, but not all of it can
            be read).
        n: Images that are there; 0 if it is missing.
        expected: As many as the protocol has; None where it does not say.
        detail: In words.
        published: Who publishes the set.

    Example:
        >>> Checked("cifar10", "svhn", "svhn", "far", "missing", 0, 26_032, "", "").usable
        False
    """

    id_set: str
    role: str
    name: str
    group: str
    state: str
    n: int
    expected: int | None
    detail: str
    published: str

    @property
    def usable(self) -> bool:
        """Whether a benchmark can use it: it is there, and all of it can be read."""
        return self.state in ("complete", "stand-in", "incomplete")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def check(
    root: Root,
    id_sets: Sequence[str] | None = None,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> list[Checked]:
    """Look for every set of every protocol.

    Args:
        root: Where.
        id_sets: For which ID sets; by default for all.
        deep: Decode every image.
        progress: Called with (part, images done, images in all) while images are decoded.

    Example:
        >>> import json, pathlib, tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(pathlib.Path(folder, "m.npz"), x=np.zeros((20, 28, 28), np.uint8))
        ...     sets = {"mnist": {"file": "m.npz", "list": "none", "stand_in": "black"}}
        ...     _ = pathlib.Path(folder, "sets.json").write_text(json.dumps(sets))
        ...     found = check(Root.open(folder), ["cifar10"])
        >>> [(each.name, each.state, each.n) for each in found if each.state != "missing"]
        [('mnist', 'stand-in', 20)]
    """
    checker = _Checker(root, deep, progress)
    return [
        checker.look(protocol, role)
        for protocol in map(protocol_of, PROTOCOLS if id_sets is None else id_sets)
        for role in protocol.roles
    ]


def ready_sets(found: Iterable[Checked]) -> tuple[str, ...]:
    """The ID sets that can be benchmarked: validation, test, and at least one near or far set.

    Example:
        >>> ready_sets([])
        ()
    """
    usable = [each for each in found if each.usable]
    ready = []
    for id_set in dict.fromkeys(each.id_set for each in usable):
        own = [each for each in usable if each.id_set == id_set]
        roles, groups = {each.role for each in own}, {each.group for each in own}
        if {"val", "test"} <= roles and groups & {"near", "far"}:
            ready.append(id_set)
    return tuple(ready)


@dataclass
class _Checker:
    root: Root
    deep: bool
    progress: Progress | None
    # Several ID sets share their OOD sets: a file is looked at once.
    sizes: dict[str, int] = field(default_factory=dict)
    decoded: dict[str, tuple[int, str]] = field(default_factory=dict)

    def look(self, protocol: Protocol, role: str) -> Checked:
        name, group, count, published = _facts(protocol, role)
        n, part = 0, None
        try:
            part = self.root.part(protocol.id_set, role)
            n = len(part)
            state, detail = self._state(protocol, part)
        except NotThereError as error:
            state, detail = "missing", str(error).partition(" is not there: ")[2]
        except DataError as error:
            state, detail = "damaged", str(error)
        notes = () if part is None else part.notes
        words = "; ".join(text for text in (detail, *notes) if text)
        words = words.replace(f"{self.root.path}{os.sep}", "")  # long, and the same everywhere
        return Checked(protocol.id_set, role, name, group, state, n, count, words, published)

    def _state(self, protocol: Protocol, part: Part) -> tuple[str, str]:
        damage = self._absent(part) or (self._unreadable(protocol, part) if self.deep else "")
        if damage:
            return "damaged", damage
        if part.stand_in is not None:
            return "stand-in", part.stand_in
        if part.expected is None or len(part) == part.expected:
            return "complete", ""
        if len(part) > part.expected:
            return "stand-in", "more rows than the protocol has: no list chose among them"
        return "incomplete", ""

    def _absent(self, part: Part) -> str:
        """Images that a list names, but that are not there or are empty."""
        if not isinstance(part.source, ImageList):
            return ""
        absent, empty, example = 0, 0, ""
        for row, _ in part.source.read():
            if row.path not in self.sizes:
                self.sizes[row.path] = _size(row.path)
            size = self.sizes[row.path]
            absent += size < 0
            empty += size == 0
            if size <= 0 and not example:
                example = row.path
        counts = ((absent, "are not there"), (empty, "are empty"))
        told = [f"{count:,} {what}" for count, what in counts if count]
        if not told:
            return ""
        return f"{' and '.join(told)} of {len(part):,} listed images, for instance {example}"

    def _unreadable(self, protocol: Protocol, part: Part) -> str:
        key = part.digest()
        if key not in self.decoded:
            self.decoded[key] = self._decode(protocol, part)
        bad, example = self.decoded[key]
        return f"{bad:,} of {len(part):,} images cannot be read: {example}" if bad else ""

    def _decode(self, protocol: Protocol, part: Part) -> tuple[int, str]:
        bad, done, example = 0, 0, ""
        preprocess = protocol.preprocess_of(part.role)
        for batch in batches(part.source, preprocess, batch_size=_BATCH):
            bad += len(batch.errors)
            done += batch.size
            if batch.errors and not example:
                example = f"{batch.errors[0].path}: {batch.errors[0].reason}"
            if self.progress is not None:
                self.progress(f"{protocol.id_set}, {part.role}", done, len(part))
        return bad, example


def _facts(protocol: Protocol, role: str) -> tuple[str, str, int | None, str]:
    """(name, group, count, who publishes it) of a role."""
    counts = {"train": protocol.train, "val": protocol.val, "test": protocol.test}
    if role in counts:
        return protocol.id_set, "id", counts[role], protocol.published
    held = protocol.ood_val if role == "ood_val" else protocol.set_of(role)
    group = "ood_val" if role == "ood_val" else held.group
    return held.name, group, held.count, held.published


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
