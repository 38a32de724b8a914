"""Neither fit nor score, finished, failed or interrupted, leaves a trace in the user's model."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tulip_ood


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a module that could be changed, by value."""
    return {
        "parameters": {n: (id(p), p.detach().clone()) for n, p in model.named_parameters()},
        "buffers": {n: (id(b), b.clone()) for n, b in model.named_buffers()},
        "training": {n: m.training for n, m in model.named_modules()},
        "requires_grad": {n: p.requires_grad for n, p in model.named_parameters()},
        "grad": {n: p.grad is None for n, p in model.named_parameters()},
        "hooks": {
            n: [dict(getattr(m, h)) for h in ("_forward_hooks", "_forward_pre_hooks")]
            for n, m in model.named_modules()
        },
        "attributes": {n: sorted(vars(m)) for n, m in model.named_modules()},
    }


def random_state() -> list[Any]:
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


LAYERS = {
    "linear": lambda d: nn.Linear(d, d),
    "batchnorm": lambda d: nn.BatchNorm1d(d),
    "layernorm": lambda d: nn.LayerNorm(d),
    "relu": lambda d: nn.ReLU(),
    "dropout": lambda d: nn.Dropout(0.3),
    "prelu": lambda d: nn.PReLU(),
}


class Interrupting(nn.Module):
    """Raises in the k-th forward pass."""

    def __init__(self, inner: nn.Module, at: int, error: BaseException) -> None:
        super().__init__()
        self.inner, self.at, self.error = inner, at, error
        self.calls = [0]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Interrupting":
        import copy

        made = Interrupting(copy.deepcopy(self.inner, memo), self.at, self.error)
        made.calls = self.calls
        return made

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        if self.calls[0] == self.at:
            raise self.error
        return self.inner(x)


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    names = draw(st.lists(st.sampled_from(sorted(LAYERS)), max_size=5))
    model = nn.Sequential(nn.Linear(3, 4), *(LAYERS[n](4) for n in names), nn.Linear(4, 3))
    model.train(draw(st.booleans()))
    for part in model:
        part.train(draw(st.booleans()))
        for parameter in part.parameters():
            parameter.requires_grad_(draw(st.booleans()))
    if draw(st.booleans()):
        model[0].register_forward_hook(lambda module, args, out: None)
    return model


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, generator=generator), torch.arange(n) % 3


@settings(max_examples=25, deadline=None)
@given(model=modules(), recipe=st.sampled_from(["balanced", "paper", "self"]))
@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_fit_and_score_leave_no_trace(model: nn.Module, recipe: str) -> None:
    x, y = data()
    before, drawn = snapshot(model), random_state()
    detector = tulip_ood.Tulip(model, n_samples=2).fit([(x, y)], recipe=recipe)
    detector.score(x)
    detector.predict(x)
    assert same(before, snapshot(model))
    assert same(drawn, random_state())


@settings(max_examples=25, deadline=None)
@given(
    model=modules(),
    at=st.integers(1, 30),
    error=st.sampled_from([RuntimeError("boom"), KeyboardInterrupt()]),
)
@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_an_interruption_leaves_no_trace(model: nn.Module, at: int, error: BaseException) -> None:
    wrapped = Interrupting(model, at, error)
    x, y = data()
    before, drawn = snapshot(wrapped), random_state()
    try:
        tulip_ood.Tulip(wrapped, n_samples=4).fit([(x, y)]).score(x)
    except (RuntimeError, KeyboardInterrupt) as caught:
        assert caught is error
    assert same(before, snapshot(wrapped))
    assert same(drawn, random_state())


def test_an_interrupted_detector_can_be_fitted_again(vectors: Any) -> None:
    """What half a fit leaves behind does not spoil the next one."""
    wrapped = Interrupting(vectors.model, 7, KeyboardInterrupt())
    detector = tulip_ood.Tulip(wrapped, n_samples=2)
    with pytest.raises(KeyboardInterrupt):
        detector.fit(vectors.loader(), recipe="balanced")
    detector.fit(vectors.loader(), recipe="balanced")
    same_names = Interrupting(vectors.model, -1, KeyboardInterrupt())
    fresh = tulip_ood.Tulip(same_names, n_samples=2).fit(vectors.loader(), recipe="balanced")
    assert torch.equal(detector.score(vectors.ood), fresh.score(vectors.ood))


def test_an_interrupted_score_loses_nothing(vectors: Any) -> None:
    wrapped = Interrupting(vectors.model, -1, KeyboardInterrupt())
    detector = tulip_ood.Tulip(wrapped, n_samples=2).fit(vectors.loader(), recipe="balanced")
    expected = detector.score(vectors.ood)
    inside = detector.network.module
    inside.at = inside.calls[0] + 2
    with pytest.raises(KeyboardInterrupt):
        detector.score(vectors.ood)
    assert torch.equal(detector.score(vectors.ood), expected)
