"""OOD inputs that a user gives to choose parameters against, read as the network is fed."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from tulip_ood.detectors.engine import Engine
from tulip_ood.network import inputs as structures
from tulip_ood.network import loaders
from tulip_ood.network.rows import Rows, collect_rows
from tulip_ood.network.trying import in_our_words

__all__ = ["hold_ood"]


def hold_ood(
    engine: Engine, loader: Iterable[Any], rows: Rows | None, limit: int, *, seed: int, memory: int
) -> Rows:
    """A seeded sample of a loader's inputs; refuses what the network cannot run on.

    Args:
        engine: What will run passes over them.
        loader: Batches, with labels or without; a tensor counts as one batch.
        rows: The ID inputs, which show how batches are to be read; None where they are not known.
        limit: How many to hold at most.
        seed: Of the sample.
        memory: Bytes that the inputs may take.

    Example:
        >>> import torch, tulip_ood
        >>> engine = tulip_ood.detectors.MSP(torch.nn.Linear(4, 3)).engine
        >>> len(hold_ood(engine, [torch.zeros(9, 4)], None, 5, seed=0, memory=1 << 20))
        5
    """
    known = None if rows is None else {structures.structure(row) for row in rows.inputs}
    batches = loaders.batches([loader] if isinstance(loader, Tensor) else loader)
    # A tuple of one thing holds inputs, whatever they look like.
    read = ((structures.inputs_only(batch, known),) for batch in batches)
    held = collect_rows(read, seed=seed, memory=memory, labelled=False, limit=limit)
    with in_our_words(engine.network, held.inputs[0]):
        engine.network.run(held.inputs[0])
    return held
