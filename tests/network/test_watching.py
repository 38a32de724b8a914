"""What the user does to the model is noticed; what the network is, is known."""

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import ModelError
from tulip_ood.network.network import Network
from tulip_ood.numerics.tasks import make_task

pytestmark = [
    pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # torch's own
]


def data(n: int = 120) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


def fit(model: nn.Module) -> tulip_ood.Tulip:
    return tulip_ood.Tulip(model, n_samples=2, j=1.0).fit([data()], recipe="balanced")


def plain() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize("place", ["weight", "buffer"])
def test_changes_through_data_are_noticed(place: str) -> None:
    """PyTorch does not count writes through `.data`: base and held noisy passes would disagree."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    detector = fit(model)
    before = detector.score(data()[0])
    tensor = model[2].weight if place == "weight" else model[1].running_var
    tensor.data.mul_(2.0)
    assert detector.network.stale
    with pytest.raises(ModelError, match="weights have changed"):
        detector.score(data()[0])
    tensor.data.div_(2.0)
    assert torch.equal(detector.score(data()[0]), before)
    tensor.data.mul_(2.0)
    detector.fit([data()], recipe="balanced")
    assert torch.equal(detector.score(data()[0]), fit(model).score(data()[0]))


def test_a_small_change_through_data_reaches_no_pass() -> None:
    """One value in thousands may go unnoticed; then every pass has the old one."""
    model = nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 3))
    detector = fit(model)
    x = data()[0]
    base, scores = detector.network.run(x).logits, detector.score(x)
    model[2].weight.data[1, 1] += 5.0
    assert torch.equal(detector.network.run(x).logits, base)
    if not detector.network.stale:
        assert torch.equal(detector.score(x), scores)
    detector.network.refresh()
    assert not torch.equal(detector.network.run(x).logits, base)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_every_layout_is_watched(layout: torch.memory_format) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(72, 3)).to(
        memory_format=layout
    )
    network = Network(model, make_task("classification"))
    assert not network.stale
    taken = network.parameters
    network.refresh()
    assert network.parameters is taken  # nothing has changed
    model[0].weight.data.add_(1.0)
    assert network.stale
    network.refresh()
    assert not network.stale
    assert network.parameters is not taken


def test_the_share_of_weights_that_can_be_perturbed() -> None:
    whole = Network(plain(), make_task("classification"))
    assert whole.perturbable_share == 1.0
    part = plain()
    part.register_buffer("packed", torch.zeros(7, 5, dtype=torch.int8))
    part.register_buffer("positions", torch.arange(9))  # no weights
    floating = sum(p.numel() for p in part.parameters())
    share = Network(part, make_task("classification")).perturbable_share
    assert share == floating / (floating + 35)


def test_torchscript_is_refused() -> None:
    """Whole or in part, and inside wrappers."""
    traced, scripted = torch.jit.trace(plain(), data()[0]), torch.jit.script(plain())
    for model in (traced, scripted, nn.DataParallel(scripted)):
        with pytest.raises(ModelError, match="TorchScript.* pass the eager torch.nn.Module"):
            fit(model)
    for part in (traced, scripted):
        with pytest.raises(ModelError, match="the network's part 0 is a TorchScript module"):
            fit(nn.Sequential(part, nn.Linear(3, 3)))
