"""What the process or the caller has set does not change a score, to the last bit.

The network is large enough that its passes are in float32: float64 would hide everything.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tulip_ood
from tulip_ood.detectors.knn import near_rows
from tulip_ood.network.precision import SMALL

METHODS = (
    *("msp", "react", "ash-s", "scale", "adascale-a", "odin", "mds", "knn", "nnguide", "vim"),
    *("laplace", "weiper", "noise", "tulip", "tulip+scale"),
)
quiet = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 320), nn.ReLU(), nn.Linear(320, 5))
        )
        x, ood = torch.randn(420, 20), 2 * torch.randn(30, 20)
        y = (model(x) + 0.1 * torch.randn(420, 5)).argmax(1)
    assert sum(p.numel() for p in model.parameters()) > SMALL
    return model.eval(), x, y, ood


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


SETTINGS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "half products": lambda: products("medium"),
    "inference": torch.inference_mode,
    "gradients": torch.enable_grad,
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "default device": lambda: torch.device("meta"),  # stands for a GPU; nothing can lie there
}


@quiet
@pytest.mark.parametrize("name", METHODS)
def test_scores_do_not_hang_on_them(
    name: str, problem: tuple[nn.Module, Tensor, Tensor, Tensor]
) -> None:
    model, x, y, ood = problem
    detector = tulip_ood.detectors.make(name, model)
    how = {"recipe": "balanced"} if isinstance(detector, tulip_ood.Tulip) else {}
    random = torch.get_rng_state()
    detector.fit([(x, y)], **how)
    expected = detector.score(ood)
    for setting, entered in SETTINGS.items():
        with entered():
            assert torch.equal(detector.score(ood), expected), setting
    assert torch.equal(torch.get_rng_state(), random)


@quiet
def test_what_is_fitted_does_not_hang_on_autocast(
    problem: tuple[nn.Module, Tensor, Tensor, Tensor],
) -> None:
    model, x, y, _ = problem
    for name in ("scale", "tulip+scale", "adascale-l"):
        found = []
        for on in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                detector = tulip_ood.detectors.make(name, model)
                how = {"recipe": "balanced"} if isinstance(detector, tulip_ood.Tulip) else {}
                found.append(detector.fit([(x, y)], **how).calibration.scores)
        assert torch.equal(*found), name


@quiet
@pytest.mark.parametrize("name", [*METHODS, "auto", "gram"])
def test_what_is_fitted_does_not_hang_on_the_default_dtype(
    name: str, problem: tuple[nn.Module, Tensor, Tensor, Tensor]
) -> None:
    model, x, y, _ = problem
    more: dict[str, Any] = {"layers": ["1", "3"]} if name == "gram" else {}
    found = []
    for dtype in (torch.float32, torch.float64, torch.float16):
        with default_dtype(dtype):
            detector = tulip_ood.detectors.make(name, model, **more)
            how = {"recipe": "balanced"} if isinstance(detector, tulip_ood.Tulip) else {}
            found.append(detector.fit([(x[:100], y[:100])], **how).calibration.scores)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class Asking(nn.Linear):
    """Notes which default device it runs under."""

    seen: set[str] = set()  # noqa: RUF012 – of the copy that runs, too

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(torch.get_default_device().type)
        return super().forward(x)


class Reading:
    """A loader that notes the same."""

    def __init__(self, *batch: Tensor) -> None:
        self.batch, self.seen = batch, set[str]()

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self.seen.add(torch.get_default_device().type)
        yield self.batch


@quiet
@pytest.mark.parametrize("name", ["ent", "rmds", "weiper", "tulip", "tulip&knn"])
def test_a_default_device_is_the_users_own_affair(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 4, generator=generator), torch.arange(200) % 3
    model = Asking(4, 3)
    expected = tulip_ood.detectors.make(name, model).fit([(x, y)]).score(x)
    loader, device = Reading(x, y), torch.device("meta")
    Asking.seen.clear()
    with device:
        detector = tulip_ood.detectors.make(name, model).fit(loader)
        assert torch.equal(detector.predict(x).score, expected)
        detector.set_threshold(false_alarm=0.1).save(tmp_path / "detector")
        assert torch.equal(tulip_ood.load(tmp_path / "detector", model).score(x), expected)
        assert len(str(detector.report())) > 100
        assert torch.get_default_device() == device
    assert loader.seen == Asking.seen == {"meta"}
    assert torch.get_default_device().type == "cpu"


class Products(TorchDispatchMode):
    """Notes how precise products are while they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.mm.default:
            self.seen.add(torch.get_float32_matmul_precision())
        return function(*args, **(kwargs or {}))


def test_neighbours_are_searched_in_full_precision() -> None:
    """With TF32 on a GPU more neighbours change places than are looked at again."""
    with products("high"), Products() as noted:
        list(near_rows(torch.eye(3), torch.eye(3), 1))
    assert noted.seen == {"highest"}
