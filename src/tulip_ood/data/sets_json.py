"""`sets.json`: which file stands for which set of the protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tulip_ood.data.protocol import PROTOCOLS
from tulip_ood.errors import DataError
from tulip_ood.wording import from_json

__all__ = ["SETS_FILE", "SetFile", "known_sets", "read_sets"]

SETS_FILE = "sets.json"
_SPLITS = ("train", "val", "test")
_KEYS = ("file", "list", "lists", "stand_in")
_SUFFIXES = (".parquet", ".npz")


@dataclass(frozen=True)
class SetFile:
    """The file of one split of a set.

    Attributes:
        file: Parquet in the layout of Hugging Face, or npz.
        listed: Whether OpenOOD's lists choose the rows, by their paths; otherwise all are taken.
        lists: The folder of the lists where the set is the ID set; None for `imglist/<id set>`.
        stand_in: What it is instead of the protocol's own set; None if it is that.

    Example:
        >>> SetFile("mnist.parquet", listed=False, stand_in="the test digits alone").lists is None
        True
    """

    file: str
    listed: bool = False
    lists: str | None = None
    stand_in: str | None = None


def known_sets() -> tuple[str, ...]:
    """The names of all sets of all protocols, ID sets first.

    Example:
        >>> known_sets()[:5]
        ('cifar10', 'cifar100', 'imagenet200', 'imagenet', 'tin')
    """
    sets = [each.name for protocol in PROTOCOLS.values() for each in protocol.sets]
    return tuple(dict.fromkeys([*PROTOCOLS, *sets]))


def read_sets(file: Path) -> dict[str, dict[str, SetFile]]:
    """The files of every set, by split ("train", "val", "test").

    An entry with a `file` of its own, without splits, is the test split.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "sets.json")
        ...     _ = path.write_text('{"mnist": {"test": {"file": "mnist.npz", "list": "none"}}}')
        ...     read_sets(path)["mnist"]["test"].file
        'mnist.npz'
    """
    try:
        held = from_json(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(held, dict):
        raise DataError(f"{file} holds {_kind(held)}; expected an object of sets by their names")
    unknown = sorted(set(held) - set(known_sets()))
    if unknown:
        raise DataError(
            f"{file} names {unknown[0]!r}, which is no set of the protocol; its sets are "
            f"{', '.join(known_sets())}"
        )
    return {name: _splits(f"{file}: {name}", entry) for name, entry in held.items()}


def _splits(where: str, entry: Any) -> dict[str, SetFile]:
    if isinstance(entry, Mapping) and "file" in entry:
        entry = {"test": entry}
    if not isinstance(entry, Mapping) or not entry or not set(entry) <= set(_SPLITS):
        raise DataError(
            f"{where} must hold the splits {', '.join(_SPLITS)} (at least one), got "
            f"{_kind(entry) if not isinstance(entry, Mapping) else ', '.join(entry) or 'none'}"
        )
    return {split: _set_file(f"{where}, {split}", value) for split, value in entry.items()}


def _set_file(where: str, value: Any) -> SetFile:
    if not isinstance(value, Mapping):
        raise DataError(f'{where} must be an object like {{"file": …}}, got {_kind(value)}')
    unknown = sorted(set(value) - set(_KEYS))
    if unknown:
        raise DataError(f"{where} has {unknown[0]!r}; known are {', '.join(_KEYS)}")
    file, chosen = value.get("file"), value.get("list", "none")
    if not isinstance(file, str) or not file.lower().endswith(_SUFFIXES) or "\0" in file:
        raise DataError(f"{where}: file must name a {' or '.join(_SUFFIXES)} file, got {file!r}")
    if chosen not in ("path", "none"):
        raise DataError(f'{where}: list must be "path" or "none", got {chosen!r}')
    for key in ("lists", "stand_in"):
        if not isinstance(value.get(key), str | None):
            raise DataError(f"{where}: {key} must be text or null, got {value[key]!r}")
    # An empty text says nothing: there would be a stand-in that no table marks.
    return SetFile(file, chosen == "path", value.get("lists"), value.get("stand_in") or None)


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
