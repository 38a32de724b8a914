"""Decoders classify every token and return one token's logits: its features are the features."""

import pytest
import torch
from torch import Tensor, nn

import tulip_ood

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")


class Decoder(nn.Module):
    """Sums over the tokens so far; the last one that is not padding (0) answers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.score = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        states = torch.tanh(self.mix(self.embed(ids).cumsum(dim=1)))
        last = (ids != 0).int().cumsum(dim=1).argmax(dim=1)
        out: Tensor = self.score(states)[torch.arange(len(ids)), last]
        return out


@pytest.mark.parametrize("method", ["react", "knn"])
def test_features_of_the_token_that_answers(method: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, ids = Decoder(), torch.randint(1, 9, (90, 6))
    detector = tulip_ood.detectors.make(method, model).fit([(ids, torch.arange(90) % 3)])
    probe = detector.network.known_probe
    assert (probe.head, probe.head_is_logits) == ("score", True)
    padded = torch.cat([ids[:5, :4], torch.zeros(5, 2, dtype=torch.int64)], dim=1)
    out = detector.network.run(padded)
    assert out.features is not None
    assert out.features.shape == (5, 8)
    torch.testing.assert_close(out.head.logits(out.features), model(padded).double())
    torch.testing.assert_close(detector.score(padded), detector.score(ids[:5, :4]))
