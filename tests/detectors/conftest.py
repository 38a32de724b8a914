"""Networks and records that several files of this folder share, made once."""

from typing import Any

import pytest
import torch

from .distance_records import Records, records_of
from .staged import Setting, trained


@pytest.fixture(scope="session")
def setting(images: Any) -> Setting:
    """Three staged networks on bars: the one that is asked, and two more for an ensemble."""
    with torch.random.fork_rng():
        models = [trained(*images.test, seed) for seed in range(3)]
    x, y = images.val
    return Setting(models[0], tuple(models[1:]), (x[:420], y[:420]), x[420:460], images.ood[:60])


@pytest.fixture(scope="session", params=["vectors", "images"])
def records(request: pytest.FixtureRequest) -> Records:
    """32 features of 600 inputs; and 256 features of 500, half of which do not span them."""
    return records_of(request.getfixturevalue(request.param))


@pytest.fixture(scope="session")
def small(vectors: Any) -> Records:
    """The records of 32 features alone."""
    return records_of(vectors)
