"""θ_ts by the kind of layer, by the operation in exported graphs, or as the user says."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.errors import InputError
from tulip_ood.network.initial_mean import initial_mean


def means(model: nn.Module, given: dict[str, float | Tensor] | None = None) -> dict[str, float]:
    found = initial_mean(model, dict(model.named_parameters()), given)
    return {k: v for k, v in found.values.items() if not isinstance(v, Tensor)}


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
        nn.RMSNorm(4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_normalisation_scales_began_at_one(layer: nn.Module) -> None:
    assert means(layer) == {"weight": 1.0}


def test_everything_else_began_at_zero() -> None:
    parts = [nn.Linear(2, 2), nn.Conv2d(1, 1, 3), nn.Embedding(3, 2), nn.LSTM(2, 2)]
    assert means(nn.ModuleList(parts)) == {}
    assert means(nn.MultiheadAttention(4, 2)) == {}


def test_prelu_began_at_a_quarter() -> None:
    assert means(nn.PReLU()) == {"weight": 0.25}


class LayerScale(nn.Module):
    """As timm has it."""

    def __init__(self, init_values: float) -> None:
        super().__init__()
        self.init_values = init_values
        self.gamma = nn.Parameter(torch.full((4,), init_values))


class LlamaRMSNorm(nn.Module):
    def __init__(self, at: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), at))
        self.bias = nn.Parameter(torch.zeros(4))


def test_layer_scale_began_where_it_says() -> None:
    assert means(LayerScale(0.1)) == {"gamma": pytest.approx(0.1)}


def test_foreign_normalisation_is_guessed_from_its_value_and_said() -> None:
    near_one, near_zero = LlamaRMSNorm(0.9), LlamaRMSNorm(0.1)
    assert means(near_one) == {"weight": 1.0}
    assert means(near_zero) == {}
    found = initial_mean(near_one, dict(near_one.named_parameters()))
    assert found.guesses == (
        "weight: LlamaRMSNorm is not PyTorch's own; its scale is taken to have begun at 1",
    )


def test_the_users_word_wins() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert means(model, {"1.weight": 0.0, "0.bias": 3.0}) == {"0.bias": 3.0, "1.weight": 0.0}
    early = copy.deepcopy(model).state_dict()
    wrapped = {f"module._orig_mod.{name}": value for name, value in early.items()}
    for state in (early, wrapped):  # buffers in a state dict are passed over
        found = initial_mean(model, dict(model.named_parameters()), state)
        assert set(found.values) == {n for n, _ in model.named_parameters()}
        assert torch.equal(found.values["0.weight"], model[0].weight)
    with pytest.raises(InputError, match="no parameter; did you mean 0.weight"):
        means(model, {"0.weigth": 1.0})


def test_exported_graphs_are_read_by_their_operations() -> None:
    """A .pt2 program has no layer classes; the operation that reads a parameter tells."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.PReLU(),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(4 * 4, 6),
        nn.LayerNorm(6),
    ).eval()
    program = torch.export.export(model, (torch.zeros(2, 1, 4, 4),)).module()
    expected = {"1.weight": 1.0, "2.weight": 0.25, "3.weight": 1.0, "6.weight": 1.0}
    assert means(model) == expected
    assert means(program) == expected
