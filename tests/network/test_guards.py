"""Networks that would give an input no score of its own are noticed, however they hide."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import ModelError
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


def data(n: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


def fit(model: nn.Module) -> tulip_ood.Tulip:
    return tulip_ood.Tulip(model, n_samples=2, j=1.0).fit([data()], recipe="balanced")


def plain() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


class AlwaysDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = plain()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(F.dropout(x))


class BatchStatistics(AlwaysDropout):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - x.mean(0))


def test_randomness_and_batch_statistics_are_noticed() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with pytest.raises(ModelError, match="different outputs for the same inputs"):
            fit(AlwaysDropout())
    with pytest.raises(ModelError, match="changes with the rest of its batch"):
        fit(BatchStatistics())


def test_bad_first_rows_do_not_hide_a_bad_network() -> None:
    x, y = data()
    x[:4] = float("nan")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for model, words in (
            (AlwaysDropout(), "different outputs for the same inputs"),
            (BatchStatistics(), "changes with the rest of its batch"),
        ):
            with pytest.raises(ModelError, match=words):
                tulip_ood.detectors.MSP(model).fit([(x, y)])
            with pytest.raises(ModelError, match=words):  # nothing finite in the first batch
                tulip_ood.detectors.MSP(model).fit([(x[:4], y[:4]), (x[4:], y[4:])])


@pytest.mark.parametrize("kind", ["mean", "batchnorm"])
def test_batches_of_one_do_not_hide_batch_statistics(kind: str) -> None:
    x, y = data()
    x = x + torch.arange(4)
    if kind == "batchnorm":  # over positions too, so that an input alone has statistics
        model: nn.Module = nn.Sequential(Positions(), nn.Flatten(), nn.Linear(8, 3))
        x = torch.cat([x, x**2], dim=1).reshape(-1, 2, 4)
    else:
        model = BatchStatistics()
    with pytest.raises(ModelError, match="changes with the rest of its batch"):
        tulip_ood.detectors.MSP(model).fit([(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])


class Positions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)


def test_equal_rows_do_not_hide_batch_statistics() -> None:
    x, y = data()
    x[:4] = x[0]
    with pytest.raises(ModelError, match="changes with the rest of its batch"):
        tulip_ood.detectors.MSP(BatchStatistics()).fit([(x, y)])


class Counting(nn.Module):
    """Changes a buffer in every pass, in evaluation mode too."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = plain(), how
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "in place":
            self.seen += 1
        elif self.how == "running":
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
        elif self.how == "cache" and not self.seen.any():
            self.seen = torch.ones(4)
        return self.net(x)


@pytest.mark.parametrize("how", ["in place", "running"])
def test_buffers_that_change_in_evaluation_are_noticed(how: str) -> None:
    model = Counting(how).eval()
    detector = tulip_ood.detectors.MSP(model)
    with pytest.raises(ModelError, match="changes its buffer seen in every pass"):
        detector.fit([data()])
    assert torch.equal(model.seen, torch.zeros(4))
    assert torch.equal(detector.network.module.seen, torch.zeros(4))


def test_a_buffer_that_is_filled_once_is_a_cache() -> None:
    assert fit(Counting("cache")).score(data()[0]).isfinite().all()


def test_a_forward_patched_on_the_instance_is_noticed() -> None:
    """It is bound to the user's own object: perturbed parameters would do nothing at all."""
    model = plain()
    original = model.forward
    model.forward = lambda x: original(x) * 2  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="perturbed parameters do not reach the output.*patched"):
        fit(model)

    class Hiding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused, inner = nn.Linear(1, 1), plain()
            self.run = lambda x: inner(x)

        def forward(self, x: Tensor) -> Tensor:
            return self.run(x)

    with pytest.raises(ModelError, match="do not reach the output"):
        fit(Hiding())


def test_a_constant_network_is_no_patched_one() -> None:
    model = plain()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert tulip_ood.detectors.MSP(model).fit([data()]).score(data()[0]).isfinite().all()


def test_a_look_that_failed_does_not_lose_hooks() -> None:
    """Small networks are first tried in float64, which this hook does not take."""
    model, x = plain(), data()[0]
    model.register_forward_hook(lambda module, args, out: out @ (2.0 * torch.eye(3)))
    network = Network(model, make_task("classification"))
    network.probe(x)
    with torch.no_grad():
        torch.testing.assert_close(network.run(x).logits, model(x))


def test_dynamic_quantisation_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch will not have it for long
        quantised = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(8, 3)), {nn.Linear}
        )
    with pytest.raises(ModelError, match=r"2 is a dynamically quantised Linear.*largest value"):
        tulip_ood.Tulip(quantised)
