"""Networks and scopes that partitions are tried on, and what makes two sets of passes the same."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tulip_ood.network.initial_mean import InitialMean
from tulip_ood.network.inputs import Inputs
from tulip_ood.network.network import Network
from tulip_ood.network.passes import Passes
from tulip_ood.network.perturbation import PassSettings, Perturbation
from tulip_ood.network.scope import Scope, parameters_in_scope

SETTINGS = PassSettings(0.02, n_samples=2)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )


class Block(nn.Module):
    """A residual block that writes to what it was handed, as some do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x))
        x += out
        return self.act(x)


class Stages(nn.Module):
    """Two stages of blocks; BatchNorm has statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.layer1 = nn.Sequential(Block(8), Block(8))
        self.down = nn.Conv2d(8, 12, 1, stride=2)
        self.layer2 = nn.Sequential(Block(12), Block(12))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.down(self.layer1(self.stem(x))))
        return self.fc(x.mean(dim=(2, 3)))


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(inplace=True),
        nn.Dropout(inplace=True),
        nn.Linear(16, 4),
    )


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(3)])
        self.classifier = nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.classifier(x[:, 0])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(6, 8)
        self.text = nn.Embedding(10, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.image(x)) + self.text(tokens).mean(1))


class HuggingFaceLike(nn.Module):
    """A mapping in, `.logits` out, tied weights inside, a constant tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.middle = nn.Linear(8, 8)
        self.classifier = nn.Linear(8, 12)
        self.classifier.weight = self.embed.weight
        self.shift = torch.linspace(0, 1, 8)

    def forward(self, *, ids: Tensor, mask: Tensor, scale: float = 1.0) -> SimpleNamespace:
        with torch.no_grad():
            weights = mask / mask.sum(dim=1, keepdim=True)
        x = (self.embed(ids) * weights.unsqueeze(-1)).sum(1) * scale + self.shift
        return SimpleNamespace(logits=self.classifier(torch.relu(self.middle(x))))


class Decoder(nn.Module):
    """Classifies every token, and returns the last one's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.middle = nn.Linear(8, 8)
        self.score = nn.Linear(8, 3, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        scores = self.score(torch.relu(self.middle(self.embed(ids)).cumsum(1)))
        return scores[torch.arange(ids.shape[0]), (ids > 3).sum(1) % 4]


class Views(nn.Module):
    """A write that is seen through another name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        left = x[:, :4]
        left.relu_()
        return self.last(x)


class Rounded(nn.Module):
    """A write to a tensor of another dtype, which stays what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        rounded = torch.zeros(8, dtype=torch.bfloat16, device=x.device) * 2
        rounded = rounded.expand_as(x).clone()
        rounded += x
        return self.last(rounded.to(x.dtype))


class Normed(nn.Module):
    """The last layer's weight is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def tokens(rows: int, length: int, most: int) -> Tensor:
    return (random(rows, length).abs() * 10).long() % most


def dictionary(rows: int) -> dict[str, Any]:
    mask = torch.ones(rows, 5, dtype=torch.long)
    mask[::2, 3:] = 0
    return {"mask": mask, "ids": tokens(rows, 5, 12), "scale": 2.0}


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    scopes: tuple[Scope, ...]
    task: str = "classification"


CASES = {
    "mlp": Case(mlp, lambda n: random(n, 6), ("all", "head", "2.*", ["*.bias"])),
    "stages": Case(
        Stages,
        lambda n: random(n, 3, 8, 8),
        ("all", "head", "last-block", "last-stage", "layer1.1.norm.*"),
    ),
    "vgg": Case(vgg, lambda n: random(n, 3, 9, 9), ("all", "head", "3.weight")),
    "encoder": Case(
        Encoder, lambda n: tokens(n, 7, 20), ("all", "head", "last-block", "layers.1.*")
    ),
    "two inputs": Case(
        TwoInputs, lambda n: (random(n, 6), tokens(n, 4, 10)), ("all", "head", "text.*")
    ),
    "mapping": Case(HuggingFaceLike, dictionary, ("all", "head", "middle.*", "classifier.bias")),
    "decoder": Case(Decoder, lambda n: tokens(n, 6, 12), ("all", "head", "middle.weight")),
    "views": Case(Views, lambda n: random(n, 6), ("all", "last.*", "first.bias")),
    "rounded": Case(Rounded, lambda n: random(n, 6), ("all", "last.*")),
    "normed": Case(Normed, lambda n: random(n, 6), ("all", "last.*", "first.*")),
    "dense": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 1)),
        lambda n: random(n, 3, 6, 6),
        ("all", "2.*"),
        "dense",
    ),
    "one number": Case(
        lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)),
        lambda n: random(n, 3),
        ("2.*",),
        "regression",
    ),
}


def trained(make: Callable[[], nn.Module]) -> nn.Module:
    """With BatchNorm statistics that are not those of a new network."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.normal_(part.running_mean)
                nn.init.uniform_(part.running_var, 0.5, 2.0)
    return model


def narrow(network: Network, inputs: Inputs) -> Network:
    """The same in float32, as large networks are run."""
    network.stay_narrow()
    network.probe(inputs)
    return network


def perturbed(network: Network, scope: Scope = "all", **options: Any) -> Perturbation:
    probe = network.known_probe
    names = parameters_in_scope(network.module, network.parameters, scope, probe.calls, probe.head)
    settings = options.pop("settings", SETTINGS)
    scales = dict.fromkeys(names, 1.0)
    return Perturbation(network, scales, InitialMean({}, ()), settings, **options)


def assert_same(fast: Passes, plain: Passes, part: float) -> None:
    """Field by field; `part` is of the range of each."""
    for name in ("base", "noisy", "drift", "features", "noisy_features", "drift_features"):
        one, two = getattr(fast, name), getattr(plain, name)
        assert (one is None) == (two is None), name
        if one is not None:
            assert one.shape == two.shape, name
            assert one.dtype == two.dtype, name
            if not one.numel():
                continue
            apart, size = float((one - two).abs().max()), float(two.max() - two.min())
            assert apart <= part * size, (name, apart, size)
    assert len(fast.heads) == len(plain.heads)
    for mine, theirs in zip(fast.heads, plain.heads, strict=True):
        assert torch.allclose(mine.weight, theirs.weight, rtol=1e-5, atol=1e-7)
        assert torch.allclose(mine.bias, theirs.bias, rtol=1e-5, atol=1e-7)
    assert set(fast.extras) == set(plain.extras)
    assert (fast.settings, fast.key, fast.ids) == (plain.settings, plain.key, plain.ids)
