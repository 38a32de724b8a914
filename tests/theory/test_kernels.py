"""The closed forms against neural-tangents, against a finite wide network, and at the edges."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.numerics.random import normal
from tulip_ood.theory.kernels import WideNetwork, diagonal, kernels

REFERENCE = json.loads(Path(__file__).with_name("reference.json").read_text())
PROPERTY = settings(deadline=None, max_examples=40)


def wide(row: dict) -> WideNetwork:
    return WideNetwork(row["depth"], row["activation"], row["W_std"], row["b_std"])


def named(row: dict) -> str:
    return "-".join(str(round(v, 2) if isinstance(v, float) else v) for v in list(row.values())[:4])


@pytest.mark.parametrize("row", REFERENCE["kernels"], ids=named)
def test_the_kernels_are_those_of_neural_tangents(row: dict) -> None:
    a, b = (torch.tensor(REFERENCE[name], dtype=torch.float64) for name in "ab")
    found = kernels(wide(row), a, b)
    for ours, name in zip(found, ("nngp", "ntk"), strict=True):
        theirs = torch.tensor(row[name], dtype=torch.float64)
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-9


@pytest.mark.parametrize("activation", ["relu", "erf"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_diagonal_is_that_of_the_matrix(activation: str, depth: int) -> None:
    x = torch.cat([normal((6, 5), seed=0, name="x").double(), torch.zeros(1, 5)])
    network = WideNetwork(depth, activation, 1.3, 0.2)
    for vector, matrix in zip(diagonal(network, x), kernels(network, x), strict=True):
        torch.testing.assert_close(vector, matrix.diagonal(), rtol=1e-14, atol=1e-14)


def test_relu_of_equal_inputs_loses_no_digits() -> None:
    # K(x, x) = ‖x‖²/d and Θ = (depth + 1) K at W_std = √2, b = 0; arccos alone leaves 1e-8.
    x = torch.tensor([[0.1, 0.7, -0.3], [1e5, 3.0, -2e4]], dtype=torch.float64)
    for depth in (1, 2, 5):
        found = kernels(WideNetwork(depth), x)
        own = x.square().mean(dim=1) * 2
        torch.testing.assert_close(found.ntk.diagonal(), (depth + 1) * own, rtol=1e-14, atol=0)


def test_relu_near_the_diagonal_is_linear_in_the_angle() -> None:
    for angle in (1e-3, 1e-6, 1e-9):
        x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        found = kernels(WideNetwork(1), x).ntk[0, 1]
        # Θ = K₁ + 2·K₀·κ₀ with K₀ = cos θ, κ₀ = (π − θ)/2π: exact up to θ².
        assert abs(float(2 - found) - angle / math.pi) < 2 * angle**2 + 1e-15


def test_zero_and_opposite_inputs() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0], [-1.0, -2.0]])
    for activation in ("relu", "erf"):
        found = kernels(WideNetwork(2, activation, 1.0, 0.0), x)
        assert all(bool(k.isfinite().all()) for k in found)
        assert float(found.ntk[0].abs().max()) == 0.0
    one = kernels(WideNetwork(1), x)
    assert float(one.nngp[1, 2]) == 0.0  # ReLU sees nothing in common
    assert float(one.ntk[1, 2]) == 0.0


@PROPERTY
@given(
    st.integers(0, 10**6),
    st.sampled_from(["relu", "erf"]),
    st.integers(1, 4),
    st.floats(0.1, 3.0),
    st.floats(0.0, 2.0),
    st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_both_kernels_are_symmetric_and_positive(
    seed: int, activation: str, depth: int, W_std: float, b_std: float, size: float
) -> None:
    x = normal((6, 3), seed=seed, name="x").double() * size
    for k in kernels(WideNetwork(depth, activation, W_std, b_std), x):
        assert float((k - k.T).abs().max()) <= 1e-12 * float(k.abs().max())
        assert float(torch.linalg.eigvalsh(k).min()) >= -1e-11 * float(k.abs().max())


def finite(x: Tensor, width: int, activation: str, W_std: float, b_std: float, seed: int):
    """The NNGP given the last hidden layer, and the NTK, of one network with two hidden layers."""
    act = {"relu": torch.relu, "erf": torch.erf}[activation]
    sizes = [(x.shape[1], width), (width, width), (width, 1)]
    weights = [normal(s, seed=seed, name=f"W{i}").double() for i, s in enumerate(sizes)]
    biases = [normal((s[1],), seed=seed, name=f"b{i}").double() for i, s in enumerate(sizes)]
    parameters = [p.requires_grad_() for pair in zip(weights, biases, strict=True) for p in pair]
    h = last = x
    for i, (W, b) in enumerate(zip(weights, biases, strict=True)):
        last = act(h) if i else h
        h = W_std / math.sqrt(W.shape[0]) * last @ W + b_std * b
    rows = [torch.autograd.grad(out, parameters, retain_graph=True) for out in h[:, 0]]
    jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    last = last.detach()
    return W_std**2 * last @ last.T / width + b_std**2, jacobian @ jacobian.T


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_a_finite_wide_network_comes_near(activation: str) -> None:
    x = torch.tensor([[1.0, 0.5, -0.3], [-0.4, 0.9, 0.2], [2.0, 1.0, 1.0]], dtype=torch.float64)
    runs = [finite(x, 256, activation, 1.4, 0.3, seed) for seed in range(200)]
    exact = kernels(WideNetwork(2, activation, 1.4, 0.3), x)
    for which, expected in enumerate(exact):
        found = torch.stack([run[which] for run in runs]).mean(dim=0)
        # The standard error of 200 networks is about 0.6 %; with 40 of them 4 % do occur.
        assert float((found - expected).abs().max() / expected.max()) < 0.03


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="activation 'tanh': use one of erf, relu"):
        WideNetwork(1, "tanh")
    with pytest.raises(InputError, match="W_std"):
        WideNetwork(1, W_std=-1.0)
    with pytest.raises(InputError, match=r"\[n, d\]"):
        kernels(WideNetwork(1), torch.zeros(3))
    with pytest.raises(InputError, match="2 and 3 features"):
        kernels(WideNetwork(1), torch.zeros(1, 2), torch.zeros(1, 3))
    with pytest.raises(InputError, match="NaN"):
        kernels(WideNetwork(1), torch.tensor([[math.nan]]))
