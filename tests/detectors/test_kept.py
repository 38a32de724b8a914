"""What stays in memory after a fit: what was learned, and none of the inputs."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tulip_ood

pytestmark = pytest.mark.usefixtures("short_search")

quiet = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


class Loader:
    """Batches of a copy of its own."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.clone(), y.clone()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.x.split(64), self.y.split(64), strict=True)


def alive(shape: torch.Size) -> int:
    """How many inputs of such a shape are held by anybody."""
    gc.collect()
    found = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if type(tensor) is Tensor and tensor.ndim == 4 and tensor.shape[1:] == shape
    }
    return sum(found.values()) // (4 * shape.numel())


@quiet
@pytest.mark.parametrize(
    ("name", "settings"),
    [("tulip", {}), ("tulip", {"scope": "auto"}), ("auto", {}), ("knn", {}), ("odin", {})],
)
def test_no_inputs_are_kept(name: str, settings: dict[str, Any], images: Any) -> None:
    x, y = images.val
    loader = Loader(x[:300], y[:300])
    watched, before = weakref.ref(loader), alive(x.shape[1:])
    detector = tulip_ood.detectors.make(name, images.model, **settings).fit(loader)
    del loader
    assert alive(x.shape[1:]) <= before - 300
    assert watched() is None
    assert len(str(detector.report())) > 100
