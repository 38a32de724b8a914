"""What a table of scores comes to: how many were accepted, refused, and without a score."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tulip_ood.data.batches import Unreadable
from tulip_ood.data.remote import bare, is_remote, remote_files
from tulip_ood.data.tables import pieces

__all__ = ["Summary", "summarise", "table_files"]

_LISTED = 20  # unreadable inputs that are named


@dataclass(frozen=True)
class Summary:
    """A table of scores in short.

    Attributes:
        out: Where the table is.
        rows: How many inputs.
        accepted: How many of them the detector trusts.
        errors: How many have no score.
        first_errors: The first of these.

    Example:
        >>> Summary(Path("x.parquet"), rows=10, accepted=7, errors=1, first_errors=()).refused
        2
    """

    out: Path | str
    rows: int
    accepted: int
    errors: int
    first_errors: tuple[Unreadable, ...]

    @property
    def refused(self) -> int:
        """How many have a score that is too high."""
        return self.rows - self.accepted - self.errors


def summarise(out: Path | str) -> Summary:
    """Count what is in a table, a piece at a time.

    Args:
        out: A parquet file, or a folder of them; a path, or a URI of such a folder.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> columns = {"row": [0], "path": ["a.png"], "accepted": [True], "error": [None]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pq.write_table(pa.table(columns), f"{folder}/part-0.parquet")
        ...     summarise(Path(folder)).accepted
        1
    """
    rows = accepted = errors = 0
    first: list[Unreadable] = []
    for batch in _pieces(out):
        rows += len(batch)
        accepted += pc.sum(batch["accepted"]).as_py() or 0
        wrong = batch.filter(pc.is_valid(batch["error"]))
        errors += len(wrong)
        few = wrong.slice(0, max(0, _LISTED - len(first))).to_pylist()
        first += [Unreadable(row["row"], row["path"], row["error"]) for row in few]
    return Summary(out, rows, accepted, errors, tuple(first))


def _pieces(out: Path | str) -> Iterator[Any]:
    for name in table_files(out):
        yield from pieces(name, ["row", "path", "accepted", "error"])


def table_files(out: Path | str) -> list[str]:
    """The files of a table, in order.

    Args:
        out: A parquet file, or a folder of parts; the latter may be a URI.

    Example:
        >>> table_files(Path("x.parquet"))
        ['x.parquet']
    """
    if is_remote(str(out)):
        return [name for name in remote_files(str(out)) if bare(name).endswith(".parquet")]
    here = Path(out)
    return [str(path) for path in (sorted(here.glob("*.parquet")) if here.is_dir() else [here])]
