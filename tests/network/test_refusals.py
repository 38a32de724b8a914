"""What is no network, or returns no logits, is refused with a message that says what to do."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import InputError, ModelError

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def fit(model: Any, **settings: Any) -> tulip_ood.Tulip:
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    return tulip_ood.Tulip(model, n_samples=2, **settings).fit([(x, y)], recipe="balanced")


class Returning(nn.Module):
    """Wraps the logits in whatever is asked for."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.net, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.net(x))


@dataclass
class Answer:
    scores: Tensor
    note: str = ""


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda z: {"aux": None, "out": z}, r"a dict with keys aux, out, .*: out\['out'\]"),
        (lambda z: ("", z), r"a tuple of length 2, .*: out\[1\]"),
        (lambda z: Answer(z), r"an? Answer with the tensors scores, .*: out\.scores"),
        (lambda z: z.numpy(), r"a NumPy array, .*: torch\.as_tensor\(out\)"),
        (lambda z: None, "returns None, not logits"),
    ],
)
def test_where_the_logits_may_be_is_said(wrap: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fit(Returning(wrap))


def test_an_output_function_that_fails() -> None:
    model = Returning(lambda z: (z, z.sum()))
    with pytest.raises(ModelError, match=r"fails on .*a tuple of length 2: TypeError: .*out\[0\]"):
        fit(model, output=lambda out: out["logits"])
    with pytest.raises(InputError, match="output='logits' is a str"):
        fit(model, output="logits")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Returning, "got the class Returning: pass a network of that class"),
        (nn.Linear(4, 3).state_dict(), "got OrderedDict: .*load_state_dict"),
        ("resnet50.pt", "got str: load the network first"),
        (lambda x: x, "got function"),
    ],
)
def test_what_is_no_network(given: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fit(given)


def test_bytes_for_a_network_of_real_numbers() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    images = torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ModelError, match=r"\[N, 3, 8, 8\] and uint8: .*normalise images as in"):
        tulip_ood.Tulip(model).fit([(images, torch.arange(40) % 3)])


class Keyword(nn.Module):
    """Takes its input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features)


def test_keys_that_forward_does_not_take() -> None:
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    batch = {"features": x, "name": ["a"] * 60, "label": y}
    with pytest.raises(ModelError, match=r"keys features, name, .*model\(features=…\): .*'name'"):
        tulip_ood.Tulip(Keyword()).fit([batch])
    del batch["name"]
    assert tulip_ood.detectors.MSP(Keyword()).fit([batch]).score({"features": x}).shape == (60,)


@pytest.mark.parametrize("factor", [2.0, {"*": "much"}])
def test_layer_scales_that_are_none(factor: Any) -> None:
    with pytest.raises(InputError, match="layer_scale must be a (mapping|number)"):
        fit(nn.Linear(4, 3), layer_scale=factor)


class Asserting(nn.Module):
    """Says nothing where it refuses, as a bare `assert` does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 4:
            raise AssertionError
        return self.net(x)


def test_a_network_that_refuses_without_a_word() -> None:
    with pytest.raises(ModelError, match=r"shape \[N, 5\]: AssertionError$"):
        tulip_ood.detectors.MSP(Asserting()).fit([(torch.zeros(60, 5), torch.arange(60) % 3)])
