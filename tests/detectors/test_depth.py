"""`Depth`: how unusual an input looks to the inner stages."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from tulip_ood.detectors.depth import Depth
from tulip_ood.errors import ModelError
from tulip_ood.network.inner import InnerStatistics


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first = (nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2), nn.ReLU())
    return nn.Sequential(*first, nn.Conv2d(6, 8, 3), nn.Flatten(), nn.Linear(8, 3)).eval()


def images(n: int = 300) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.rand(n, 1, 15, 15)
    return x, network()(8 * x).argmax(1)


@pytest.fixture(scope="module")
def fitted() -> Depth:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Depth(network()).fit([images()])


def test_the_score_is_the_formula(fitted: Depth) -> None:
    x, _ = images()
    stages = [stage.width for stage in fitted.stages]
    rows = (
        InnerStatistics(fitted.stages)(fitted.network, x).double().split([2 * w for w in stages], 1)
    )
    expected = torch.zeros(len(x), dtype=torch.float64)
    sizes = [2 * width for width in stages]
    state = fitted.fitted
    for i, own in enumerate(rows):
        z = (own - state.means.split(sizes)[i]) / state.spreads.split(sizes)[i]
        distance = z.abs().mean(1)
        expected += (distance - state.centres[i]) / state.widths[i]
    torch.testing.assert_close(fitted.score(x), expected / len(stages))


def test_other_images_look_unusual(fitted: Depth) -> None:
    x, _ = images()
    usual = fitted.score(x)
    for other in (x[:50] * 3, torch.zeros_like(x[:50]), x[:50, :, :, :1].expand(-1, -1, -1, 15)):
        assert fitted.score(other).median() > usual.quantile(0.95)


def test_what_was_learned_can_be_stored(fitted: Depth) -> None:
    again = Depth(network())
    again.restore_state(*fitted.fitted_state())
    assert again.stages == fitted.stages
    passes = fitted.engine.passes_of(
        fitted.engine.collect([images()], fitted._needs(), seed=0, memory=1 << 30),
        fitted._needs(),
        seed=0,
    )
    assert torch.equal(again._score(again._state, passes), fitted._score(fitted._state, passes))


def test_channels_that_never_vary_do_not_decide() -> None:
    model = network()
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 0, -1  # type: ignore[index, operator]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = Depth(model).fit([images()])
    assert bool(detector.score(images()[0]).isfinite().all())
    assert bool((detector.fitted.spreads > 0).all())


def test_needs_stages() -> None:
    x, y = torch.rand(40, 6), torch.randint(3, (40,))
    with pytest.raises(ModelError, match="inner stages"):
        Depth(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))).fit([(x, y)])
