"""What inner stages see: which they are, and their statistics."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tulip_ood import Tulip
from tulip_ood.models.resnet import ResNet18Small
from tulip_ood.network.fast import FastOptions, FastPasses
from tulip_ood.network.inner import InnerStatistics, Stage, find_inner
from tulip_ood.network.mirrored import Mirrored
from tulip_ood.network.network import Network
from tulip_ood.network.running import Needs, run_passes
from tulip_ood.numerics.tasks import make_task


def as_network(model: nn.Module) -> Network:
    return Network(model.eval(), make_task("classification"))


def test_statistics_are_those_of_the_stages() -> None:
    torch.manual_seed(0)
    model, x = ResNet18Small(10).eval(), torch.randn(5, 3, 32, 32)
    network = as_network(model)
    stages = find_inner(network, x)
    assert [stage.name for stage in stages] == ["layer1", "layer2", "layer3"]
    made = InnerStatistics(stages)(network, x)
    assert made.shape == (5, 2 * (64 + 128 + 256))
    with torch.no_grad():
        maps = model.layer1(torch.relu(model.bn1(model.conv1(x))))
    torch.testing.assert_close(made[:, :64], maps.mean(dim=(2, 3)))
    torch.testing.assert_close(made[:, 64:128], maps.std(dim=(2, 3), correction=0))


class Blocks(nn.Module):
    """Tokens through blocks, as in a ViT."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(depth)]
        self.blocks, self.head = nn.ModuleList(layers), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(dim=1))


def test_a_transformer_is_looked_at_at_its_quarters() -> None:
    found = find_inner(as_network(Blocks(8)), torch.randn(2, 3, 16, 16))
    assert found == tuple(Stage(f"blocks.{i}", -1, 16) for i in (1, 3, 5))


class Talkative(nn.TransformerEncoderLayer):
    """Gives something along with its tokens, as many of Hugging Face's blocks do."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x), None


class OfTuples(Blocks):
    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        layers = [Talkative(16, 2, 32, batch_first=True) for _ in range(depth)]
        self.blocks = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)[0]
        return self.head(tokens.mean(dim=1))


def test_blocks_may_return_tuples() -> None:
    torch.manual_seed(0)
    one, other = Blocks(4), OfTuples(4)
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, 3, 16, 16)
    networks = [as_network(model) for model in (one, other)]
    stages = [find_inner(network, x) for network in networks]
    assert stages[0] == stages[1] != ()
    made = [InnerStatistics(stages[0])(network, x) for network in networks]
    assert torch.equal(*made)


def test_tokens_hold_their_channels_last() -> None:
    x = torch.randn(3, 5, 4)
    made = Stage("blocks.0", -1, 4).statistics(x)
    torch.testing.assert_close(made, torch.cat([x.mean(1), x.std(1, correction=0)], dim=1))


class Row(nn.Module):
    """Layers beside each other, and a classifier of several, as in VGG."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1) for i in range(8)]
        self.features = nn.Sequential(*(part for conv in layers for part in (conv, nn.ReLU())))
        self.classifier = nn.Sequential(nn.Linear(512, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def test_convolutions_in_one_row() -> None:
    found = find_inner(as_network(Row()), torch.randn(2, 3, 8, 8))
    assert len(found) == 3
    assert all((stage.channels, stage.width) == (1, 8) for stage in found)


class Named(nn.Module):
    """Parts by name, no containers of repeated blocks: as most people write a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.pad, self.second = nn.ZeroPad2d(1), nn.Conv2d(4, 6, 3)
        self.norm, self.third = nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(self.pad(self.first(x)))).relu()
        return self.head(self.third(x).relu().mean(dim=(2, 3)))


def test_parts_by_name_are_told_by_the_size_of_their_maps() -> None:
    found = find_inner(as_network(Named()), torch.randn(2, 3, 16, 16))
    assert found == (Stage("first.0", 1, 4), Stage("norm", 1, 6))


def test_nothing_to_look_at() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 9), nn.ReLU(), nn.Linear(9, 3))
    assert find_inner(as_network(model), torch.randn(2, 3, 4, 4)) == ()


def test_an_input_alone_and_among_others() -> None:
    torch.manual_seed(0)
    network, x = as_network(ResNet18Small(10)), torch.randn(6, 3, 16, 16)
    measure = InnerStatistics(find_inner(network, x))
    alone = torch.cat([measure(network, one) for one in x.split(1)])
    torch.testing.assert_close(alone, measure(network, x))


def test_a_record_holds_them_by_stage() -> None:
    torch.manual_seed(0)
    detector, x = Tulip(ResNet18Small(10)), torch.randn(4, 3, 16, 16)
    measure = InnerStatistics(find_inner(detector.network, x))
    settings = detector._settings().with_(n_samples=0)
    needs = Needs(settings, measures=(measure,))
    made = run_passes(detector._make_perturbation(settings), x, batch_size=3, needs=needs)
    first, second, third = measure.of(made)
    assert (first.shape[1], second.shape[1], third.shape[1]) == (128, 256, 512)
    torch.testing.assert_close(
        torch.cat([first, second, third], dim=1), measure(detector.network, x)
    )


def test_half_precision_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    x = (30 + torch.rand(3, 4, 16, 16)).to(torch.float16)  # far from 0, where squares would cancel
    made, exact = Stage("conv", 1, 4).statistics(x), Stage("conv", 1, 4).statistics(x.double())
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, exact.float(), rtol=1e-3, atol=1e-3)


class Narrow(ResNet18Small):
    """The same layers with an eighth of the channels."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layer1, self.layer2 = self._stage(8, 8, 1), self._stage(8, 16, 2)
        self.layer3, self.layer4 = self._stage(16, 32, 2), self._stage(32, 64, 2)
        self.dropout, self.fc = nn.Identity(), nn.Linear(64, 10)


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize(
    ("model", "scope"),
    [
        (Narrow(), "all"),
        (Narrow(), "last-stage"),
        (Named(), "all"),
        (Named(), ("third.*", "head.*")),
        (Blocks(4), "all"),
        (Blocks(4), "last-block"),
    ],
)
def test_fast_passes_see_the_same(model: nn.Module, scope: Any, hold: bool) -> None:
    """In the trunk or in the tail, with folded and fused layers, and whatever else is measured."""
    torch.manual_seed(0)
    x = torch.randn(7, 3, 32, 32)
    detector = Tulip(model.eval(), n_samples=2, scope=scope, hold=hold)
    network = detector.network
    network.probe(x)
    stages = find_inner(network, x)
    measures = (InnerStatistics(stages), InnerStatistics(stages[:1]), Mirrored())
    needs = Needs(detector._settings(), measures=measures, noisy_features=True)
    perturbation = detector._make_perturbation(needs.settings)
    fast = FastPasses(network, FastOptions(earned=0))
    fast._small = False
    with torch.no_grad():
        plain = run_passes(perturbation, x, batch_size=4, needs=needs)
        made = fast.run(perturbation, x, batch_size=4, needs=needs)
    assert (fast.made, fast.refused) == (1, None)
    assert set(made.extras) == set(plain.extras) == {measure.key for measure in measures}
    torch.testing.assert_close(made.extras, plain.extras, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made.noisy_features, plain.noisy_features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made.base, plain.base, rtol=1e-4, atol=1e-5)
    for key, rows in plain.extras.items():
        measure = next(one for one in measures if one.key == key)
        torch.testing.assert_close(measure(network, x), rows, rtol=1e-4, atol=1e-5)
