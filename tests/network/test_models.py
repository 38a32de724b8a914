"""Models of every make: each one works, or is refused with a message that says what to do."""

import copy
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import tulip_ood
from tulip_ood.errors import InputError, ModelError
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

pytestmark = [
    pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # torch's own imports
]


def data(n: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


def fit(model: nn.Module, **settings: Any) -> tulip_ood.Tulip:
    return tulip_ood.Tulip(model, n_samples=2, j=1.0, **settings).fit([data()], recipe="balanced")


def plain(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


class Returning(nn.Module):
    """Wraps the logits in whatever is asked for."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.net, self.wrap = plain(), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.net(x))


# ------------------------------------------------------------------- wrappers


@pytest.mark.parametrize(
    "wrap",
    [torch.compile, nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m))],
    ids=["compiled", "data-parallel", "both"],
)
def test_wrappers_are_looked_through(wrap: Any) -> None:
    """The same noise, the same score: wrapper prefixes do not change names."""
    model = plain()
    assert torch.equal(fit(wrap(model)).score(data()[0]), fit(model).score(data()[0]))


def test_a_compiled_part_inside_is_looked_through() -> None:
    model = plain()
    outer = nn.Sequential(OrderedDict(first=model[0], rest=nn.Sequential(model[1], model[2])))
    inner = nn.Sequential(
        OrderedDict(first=model[0], rest=torch.compile(nn.Sequential(model[1], model[2])))
    )
    assert torch.equal(fit(outer).score(data()[0]), fit(inner).score(data()[0]))


def test_a_module_compiled_in_place() -> None:
    model = plain()
    expected = fit(model).score(data()[0])
    model.compile()
    assert torch.equal(fit(model).score(data()[0]), expected)


# -------------------------------------------------------------------- outputs


@pytest.mark.parametrize(
    "wrap",
    [lambda z: {"logits": z}, lambda z: SimpleNamespace(logits=z)],
    ids=["mapping", "attribute"],
)
def test_logits_are_found(wrap: Any) -> None:
    assert torch.equal(
        fit(Returning(wrap)).score(data()[0]), fit(Returning(lambda z: z)).score(data()[0])
    )


def test_other_outputs_are_refused_until_named() -> None:
    model = Returning(lambda z: (z, z.sum()))
    with pytest.raises(
        ModelError, match=r"returns a tuple of length 2, not logits.*output=lambda out: out\[0\]"
    ):
        fit(model)
    assert fit(model, output=lambda out: out[0]).score(data()[0]).shape == (120,)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda z: z[:, 0], "task='binary'"),
        (lambda z: z[:, :1], "task='regression'"),
        (lambda z: z[:, :, None, None], "task='dense'"),
        (lambda z: z[:5], "5 outputs for 120 inputs|outputs for .* inputs"),
        (lambda z: {"scores": z}, "keys scores"),
    ],
)
def test_outputs_of_the_wrong_shape(wrap: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        fit(Returning(wrap), batch_size=120)


# ----------------------------------------------------------------- parameters


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


def test_tied_parameters_share_one_draw() -> None:
    model = Tied()
    detector = fit(model)
    perturbation = detector.engine.perturbation(detector._settings())
    assert sorted(perturbation.scales) == ["first.weight", "head.bias", "head.weight"]
    moved = next(iter(perturbation.noisy()))
    by_hand = copy.deepcopy(model).double()  # small networks make float64 passes
    by_hand.load_state_dict(dict(moved), strict=False)
    x = data()[0]
    assert torch.equal(detector.network.run(x, moved).logits, by_hand(x.double()))


def test_frozen_parameters_are_perturbed_too() -> None:
    model = plain()
    expected = fit(model).score(data()[0])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert torch.equal(fit(model).score(data()[0]), expected)


def test_integer_parameters_and_buffers_are_left_alone() -> None:
    model = plain()
    model.register_buffer("steps", torch.tensor(7))
    model.register_parameter("code", nn.Parameter(torch.arange(3), requires_grad=False))
    detector = fit(model)
    moved = next(iter(detector.engine.perturbation(detector._settings()).noisy()))
    assert torch.equal(moved["code"], torch.arange(3))
    assert int(detector.network.module.steps) == 7


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """Half-precision weights are scored in wide copies: float64 for a network as small as this."""
    model = plain().to(dtype)
    detector = fit(model)
    wide = fit(copy.deepcopy(model).to(torch.float64))
    x = data()[0]
    assert detector.network.dtype == torch.float64
    assert torch.equal(detector.score(x), wide.score(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_large_networks_make_float32_passes(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 200), nn.ReLU(), nn.Linear(200, 500), nn.Linear(500, 3))
    assert Network(model.to(dtype), make_task("classification")).dtype == torch.float32


class InsistsOnFloat32(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.float())


def test_a_small_network_that_insists_on_float32_gets_it() -> None:
    model = InsistsOnFloat32()
    detector = fit(model)
    assert detector.network.dtype == torch.float32
    x = data()[0]
    with torch.no_grad():
        torch.testing.assert_close(detector.network.run(x).logits, model(x))


def test_lazy_modules_are_refused_until_they_have_run() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ModelError, match="run one batch through it first"):
        fit(model)
    model(data()[0])
    assert fit(model).score(data()[0]).shape == (120,)


def test_what_cannot_be_handled_is_refused() -> None:
    with pytest.raises(ModelError, match="no floating-point parameters"):
        fit(nn.Sequential(nn.ReLU()))
    with torch.device("meta"):
        empty = nn.Linear(4, 3)
    with pytest.raises(ModelError, match="load its weights"):
        fit(empty)
    holding = plain()
    holding.lock = threading.Lock()
    with pytest.raises(ModelError, match="__deepcopy__"):
        fit(holding)


@pytest.mark.parametrize(
    "normalise",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        torch.nn.utils.spectral_norm,
    ],
)
def test_parametrised_weights(normalise: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # power iterations begin with a random vector
        model = plain()
        normalise(model[0])
    model.eval()
    detector = fit(model)
    x = data()[0]
    with torch.no_grad():
        torch.testing.assert_close(detector.network.run(x).logits.float(), model(x))
    moved = next(iter(detector.engine.perturbation(detector._settings()).noisy()))
    assert not torch.equal(detector.network.run(x, moved).logits, detector.network.run(x).logits)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_old_style_weight_norm() -> None:
    model = plain()
    torch.nn.utils.weight_norm(model[0])
    x = data()[0]
    model(x)  # leaves a weight behind that is no leaf
    detector = fit(model)
    with torch.no_grad():
        torch.testing.assert_close(detector.network.run(x).logits.float(), model(x))


# ------------------------------------------------------------ what batches do


def test_batchnorm_without_statistics_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ModelError, match="depend on the rest of the batch"):
        fit(model)


# -------------------------------------------------------------------- inputs


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = plain()

    def forward(self, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
        return self.net(torch.cat([a, b * scale], dim=1))


def test_tuples_and_mappings() -> None:
    x, y = data()
    a, b = x[:, :2], x[:, 2:]
    model = Two()
    as_tuple = tulip_ood.Tulip(model, n_samples=2).fit([((a, b), y)], recipe="balanced")
    as_mapping = tulip_ood.Tulip(model, n_samples=2).fit(
        [{"a": a, "b": b, "scale": 1.0, "labels": y}], recipe="balanced"
    )
    assert torch.equal(as_tuple.score((a, b)), as_tuple.score([a, b]))
    torch.testing.assert_close(
        as_mapping.score({"a": a, "b": b, "scale": 1.0}).mean(),
        as_tuple.score((a, b)).mean(),
        rtol=0.2,
        atol=0.0,
    )
    with pytest.raises(InputError, match="fitted on inputs that are a tuple, got a tensor"):
        as_tuple.score(x)
    with pytest.raises(InputError, match="same first dimension"):
        as_tuple.score((a, b[:5]))


class Tokens(nn.Module):
    """A Hugging Face-like classifier: keyword inputs, padding, an output object."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        mask = attention_mask.unsqueeze(-1).to(torch.float32)
        mean = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        return SimpleNamespace(logits=self.classifier(self.norm(mean)))


def token_batches() -> list[dict[str, Tensor]]:
    """Batches padded to different lengths, as a collator makes them."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for length in (5, 9, 7, 5):
        ids = torch.randint(1, 20, (40, length), generator=generator)
        mask = torch.arange(length) < torch.randint(2, length + 1, (40, 1), generator=generator)
        labels = torch.randint(3, (40,), generator=generator)
        batches.append({"input_ids": ids * mask, "attention_mask": mask.long(), "labels": labels})
    return batches


@pytest.mark.parametrize("recipe", ["balanced", "self"])
def test_token_batches_of_unequal_length(recipe: str) -> None:
    detector = tulip_ood.Tulip(Tokens(), n_samples=2).fit(token_batches(), recipe=recipe)
    inputs = {k: v for k, v in token_batches()[1].items() if k != "labels"}
    assert detector.score(inputs).isfinite().all()
    assert detector._facts["n_validation"] == 160


# --------------------------------------------------------------------- hooks


def test_hooks_that_only_watch_do_not_hear_of_our_passes() -> None:
    model, heard = plain(), []
    model[0].register_forward_hook(lambda module, args, out: heard.append(out.shape[0]))
    detector = fit(model)
    during_fit = len(heard)
    detector.score(data()[0])
    assert during_fit <= 1  # one look, to see whether they change anything
    assert len(heard) == during_fit
    model(data()[0])
    assert len(heard) == during_fit + 1


def test_hooks_that_change_the_output_are_part_of_the_network() -> None:
    model = plain()
    without = fit(model).score(data()[0])
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    detector = fit(model)
    with torch.no_grad():
        torch.testing.assert_close(detector.network.run(data()[0]).logits.float(), model(data()[0]))
    assert not torch.equal(detector.score(data()[0]), without)


# --------------------------------------------------------------- live models


def test_a_model_that_was_changed_after_fitting_is_refused() -> None:
    model = plain()
    detector = fit(model)
    before = detector.score(data()[0])
    with torch.no_grad():
        model[0].weight.add_(1.0)
    with pytest.raises(ModelError, match="weights have changed"):
        detector.score(data()[0])
    with torch.no_grad():
        model[0].weight.sub_(1.0)
    if torch.equal(model[0].weight, plain()[0].weight):  # back to the last bit
        assert torch.equal(detector.score(data()[0]), before)


def test_a_model_that_only_moved_is_taken_up_again() -> None:
    model = plain()
    detector = fit(model)
    before = detector.score(data()[0])
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # what model.to(device) does
    assert torch.equal(detector.score(data()[0]), before)


def test_refitting_takes_the_new_weights() -> None:
    model = plain()
    detector = fit(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    detector.fit([data()], recipe="balanced")
    assert torch.equal(detector.score(data()[0]), fit(model).score(data()[0]))


def test_half_precision_is_refused_on_a_cpu() -> None:
    with pytest.raises(InputError, match="for accelerators"):
        tulip_ood.Tulip(plain(), precision="half")
    with pytest.raises(InputError, match="precision must be one of"):
        tulip_ood.Tulip(plain(), precision="double")
