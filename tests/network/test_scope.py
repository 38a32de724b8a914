"""Scopes on networks of every common make."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.errors import InputError
from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.network.network import Network
from tulip_ood.network.scope import parameters_in_scope
from tulip_ood.numerics.tasks import make_task


def scope_of(model: nn.Module, x: Tensor, scope: Any) -> list[str]:
    network = Network(model, make_task("classification"))
    probe = network.probe(x)
    return parameters_in_scope(
        network.module, network.parameters, scope, probe.calls, probe.head, probe.compute
    )


def tops(names: list[str], depth: int = 1) -> set[str]:
    return {".".join(name.split(".")[:depth]) for name in names}


class Layer(nn.Module):
    """A transformer layer whose MLP is itself a Sequential of repeated Linears."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Transformer(nn.Module):
    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(8))
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.token
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def test_resnet() -> None:
    model, x = ResNet18Small(10), torch.zeros(2, 3, 32, 32)
    assert tops(scope_of(model, x, "head")) == {"fc"}
    assert tops(scope_of(model, x, "last-block"), 2) == {"layer4.1", "fc.weight", "fc.bias"}
    assert tops(scope_of(model, x, "last-stage")) == {"layer4", "fc"}
    assert len(scope_of(model, x, "all")) == len(list(model.parameters()))
    assert tops(scope_of(model, x, ["layer3.*", "fc.*"])) == {"layer3", "fc"}


def test_transformer_with_one_container() -> None:
    """The last quarter of the blocks, and all that is executed after them; not the token."""
    model, x = Transformer(), torch.zeros(2, 4)
    last = scope_of(model, x, "last-block")
    assert tops(last, 2) == {"layers.7", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert {"layers.6", "layers.7"} < tops(scope_of(model, x, "last-stage"), 2)
    assert "layers.5" not in tops(scope_of(model, x, "last-stage"), 2)
    assert "token" not in scope_of(model, x, "last-stage")


def test_plain_layers() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)])
    x = torch.zeros(2, 4)
    assert tops(scope_of(model, x, "last-block")) == {"7"}
    assert tops(scope_of(model, x, "last-stage")) == {"6", "7"}
    assert tops(scope_of(model, x, "head")) == {"7"}


def test_stages_of_blocks_in_stages() -> None:
    """Blocks inside repeated stages are the innermost ones (Swin, ConvNeXt)."""

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(Layer(), Layer())

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(x)

    model = nn.Sequential(nn.Sequential(Stage(), Stage()), nn.Linear(8, 3))
    x = torch.zeros(2, 8)
    assert tops(scope_of(model, x, "last-block"), 4) == {
        "0.1.blocks.1",
        "1.weight",
        "1.bias",
    }
    assert tops(scope_of(model, x, "last-stage"), 3) == {"0.1.blocks", "1.weight", "1.bias"}


def test_the_last_stage_is_its_whole_container() -> None:
    """What stands between the blocks, or before them, belongs to the stage."""

    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Sequential(nn.Linear(8, 8), Layer(), Layer())
            self.two = nn.Sequential(nn.Linear(8, 8), Layer(), nn.LayerNorm(8), Layer())
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(self.one(x)))

    model, x = Stages(), torch.zeros(2, 8)
    stage = scope_of(model, x, "last-stage")
    assert tops(stage, 2) == {"two.0", "two.1", "two.2", "two.3", "head.weight", "head.bias"}
    assert tops(scope_of(model, x, "last-block"), 2) == {"two.3", "head.weight", "head.bias"}


def test_order_is_that_of_execution_not_of_definition() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for layer in reversed(self.layers):
                x = layer(x)
            return self.last(x)

    names = scope_of(Backwards(), torch.zeros(2, 4), "last-block")
    assert tops(names, 2) == {"layers.0", "last.weight", "last.bias"}


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="needs repeated blocks"):
        scope_of(nn.Linear(4, 3), torch.zeros(2, 4), "last-block")
    convolutional = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten())
    with pytest.raises(InputError, match="needs a last linear layer"):
        scope_of(convolutional, torch.zeros(2, 1, 4, 4), "head")
    with pytest.raises(InputError, match="globs on these names: weight, bias"):
        scope_of(nn.Linear(4, 3), torch.zeros(2, 4), "tail")


def test_a_share_of_the_compute() -> None:
    """Linear layers of 8 × 8: eight equal parts."""
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(8)]), torch.zeros(2, 8)
    assert tops(scope_of(model, x, "last-25%")) == {"6", "7"}
    assert tops(scope_of(model, x, "last-12.5%")) == {"7"}
    assert tops(scope_of(model, x, "last-37%")) == {"6", "7"}  # no more than that
    assert scope_of(model, x, "last-100%") == scope_of(model, x, "all")


def test_shares_of_the_compute_are_nested_and_follow_execution() -> None:
    model, x = ResNet18Small(10), torch.zeros(2, 3, 32, 32)
    chosen = [set(scope_of(model, x, f"last-{share}%")) for share in (5, 20, 50, 100)]
    assert all(one < two for one, two in pairwise(chosen))
    assert tops(sorted(chosen[1])) == {"layer4", "fc"}
    assert "conv1.weight" in chosen[3] - chosen[2]


def test_a_parameter_that_is_used_twice_counts_from_its_first_use() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            for layer in (self.first, self.last, self.first, self.last):
                x = layer(x)
            return x

    assert tops(scope_of(Shared(), torch.zeros(2, 8), "last-75%")) == {"last"}


@pytest.mark.parametrize("share", ["0", "150"])
def test_a_share_that_cannot_be_is_refused(share: str) -> None:
    with pytest.raises(InputError, match=f"above 0 up to 100; got {share}$"):
        scope_of(nn.Linear(4, 3), torch.zeros(2, 4), f"last-{share}%")


def test_a_share_without_parameters_says_how_large_the_last_one_is() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(InputError, match=r"last 10 % of the compute.*followed by 50 % of it"):
        scope_of(model, torch.zeros(2, 8), "last-10%")


def test_what_cannot_be_counted_has_no_shares() -> None:
    class Scaled(nn.Module):  # no product of matrices, which are what is counted
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    with pytest.raises(InputError, match=r"cannot be counted: name parameters by globs.*scale"):
        scope_of(Scaled(), torch.rand(2, 3), "last-25%")
