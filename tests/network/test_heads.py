"""The last linear layer, among others that look like it: second heads, side inputs, gates."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import ModelError
from tulip_ood.network.network import Network
from tulip_ood.network.probing import Probe
from tulip_ood.numerics.tasks import make_task


class Body(nn.Module):
    """`main` is the last layer; `other` has as many outputs, and runs later or earlier."""

    def __init__(self, fed: int = 6) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body, self.main, self.other = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(fed, 3)

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.main(torch.relu(self.body(x)))
        return out


class SecondHead(Body):
    """Its logits are scaled, so that no layer's output equals them."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.logits(x) / 2, "domain": self.other(x)}


class Capped(Body):
    """A soft cap, and a regulariser's layer that nobody asks for."""

    def forward(self, x: Tensor) -> Tensor:
        logits = 5 * torch.tanh(self.logits(x) / 5)
        self.other(x)
        return logits


class Series(nn.Module):
    """Two layers with as many outputs, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.main = nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.main(torch.relu(self.first(x))) / 2
        return out


class Excited(Body):
    """Squeeze and excitation of features, in front of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Linear(16, 3), nn.Linear(3, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x))
        out: Tensor = self.main(h * torch.sigmoid(self.excite(torch.relu(self.squeeze(h))))) / 2
        return out


class SideInput(Body):
    def __init__(self) -> None:
        super().__init__(fed=2)

    def forward(self, x: Tensor, about: Tensor) -> Tensor:
        out: Tensor = self.logits(x) + self.other(about)
        return out


class Gated(Body):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) * torch.sigmoid(self.other(x))


class Tempered(Body):
    """A temperature of each input's own: no second candidate, but the logits are not `main`'s."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) / (1 + self.temperature(x).abs())


def inputs(model: nn.Module, n: int = 120) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator)
    return (x, torch.randn(n, 2, generator=generator)) if isinstance(model, SideInput) else x


def probe(model: nn.Module, rows: int = 4, **how: Any) -> Probe:
    return Network(model, make_task("classification"), **how).probe(inputs(model, rows))


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("kind", [SecondHead, Capped, Series, Excited])
def test_the_layer_that_the_logits_come_from(kind: type[nn.Module], rows: int) -> None:
    found = probe(kind(), rows)
    assert (found.head, found.head_is_logits, found.head_decides) == ("main", False, True)


@pytest.mark.parametrize(
    ("kind", "others"), [(SideInput, ("other",)), (Gated, ("other",)), (Tempered, ("other",))]
)
def test_logits_that_come_from_no_layer_alone(
    kind: type[nn.Module], others: tuple[str, ...]
) -> None:
    model = kind()
    if kind is Tempered:
        del model.other
        others = ()
    found = probe(model)
    assert (found.head, found.head_decides, found.other_heads) == ("main", False, others)
    named = probe(model, head="main")
    assert (named.head, named.head_decides) == ("main", True)


def fit(method: str, model: nn.Module, **how: Any) -> Any:
    detector = tulip_ood.detectors.make(method, model, **how)
    more = {"recipe": "balanced"} if method == "tulip" else {}
    return detector.fit([(inputs(model), torch.arange(120) % 3)], **more)


@pytest.mark.parametrize(
    ("method", "how"), [("knn", {}), ("mds", {}), ("tulip", {"scope": "head"})]
)
@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_who_asks_for_the_last_layer_is_told(method: str, how: dict[str, Any]) -> None:
    findings = fit(method, SideInput(), **how).report().findings
    told = next(str(finding) for finding in findings if finding.code == "head")
    assert re.search(r"'main' is taken for the last .* 'other' has as many .* head='…'", told)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_nobody_else_is_told(tmp_path: Path) -> None:
    told = [
        finding.code
        for detector in (fit("tulip", SideInput()), fit("knn", SideInput(), head="main"))
        for finding in detector.report().findings
    ]
    assert "head" not in told


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_features_are_those_of_the_head_after_loading(tmp_path: Path) -> None:
    model = SecondHead()
    detector = fit("knn", model)
    x = inputs(model)[:9]
    out = detector.network.run(x)
    torch.testing.assert_close(out.features, torch.relu(model.body(x)).double(), atol=1e-6, rtol=0)
    detector.save(tmp_path / "knn.safetensors")
    again = tulip_ood.load(tmp_path / "knn.safetensors", model)
    assert again.network.known_probe.head == "main"
    assert torch.equal(again.score(x), detector.score(x))


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
@pytest.mark.parametrize("named", [{}, {"head": "main"}])
def test_a_layer_that_was_found_need_not_be_named(named: dict[str, str]) -> None:
    """What lies behind it is in the way, not its name."""
    with pytest.raises(ModelError, match="something behind it .* without that"):
        fit("nci", Capped(), **named)
