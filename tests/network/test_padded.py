"""PyTorch's own encoder, which leaves padding out of its arithmetic (nested tensors)."""

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import ModelError

pytestmark = [
    pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]


class Padded(nn.Module):
    """Token 0 is padding; the first token answers, or the mean of all positions."""

    def __init__(self, pooled: bool = False) -> None:
        super().__init__()
        self.pooled = pooled
        self.words = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = self.encoder(self.words(tokens), src_key_padding_mask=tokens == 0)
        return self.head(seen.mean(1) if self.pooled else seen[:, 0])


def data(n: int = 120) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, 20, (n, 7), generator=torch.Generator().manual_seed(0))
    tokens[2::3, 5:] = 0
    return tokens, tokens[:, 0] % 3


@pytest.mark.parametrize("method", ["tulip", "knn", "auto"])
def test_an_encoder_that_skips_padding(method: str) -> None:
    torch.manual_seed(0)
    model = Padded().eval()
    tokens, labels = data()
    with torch.no_grad():
        expected = model(tokens).softmax(1)
    detector = tulip_ood.detectors.make(method, model).fit([(tokens, labels)])
    torch.testing.assert_close(detector.predict(tokens).base_probs.float(), expected)
    together = detector.score(tokens[:6])
    alone = torch.cat([detector.score(tokens[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(alone, together)


def test_mc_dropout_says_why_not() -> None:
    with pytest.raises(ModelError, match="enable_nested_tensor=False"):
        tulip_ood.detectors.make("mcd", Padded().eval()).fit([data()])


def test_a_gap_in_one_row_does_not_change_the_others() -> None:
    """One row with padding in its middle, and PyTorch skips padding in no row of the batch."""
    torch.manual_seed(0)
    tokens, labels = data()
    tokens[1, 3] = 0
    with pytest.raises(ModelError, match="changes with the rest of its batch"):
        tulip_ood.detectors.make("ent", Padded(pooled=True).eval()).fit([(tokens, labels)])
