"""Token mappings, tables and dense labels that are not quite right: what is said about them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import InputError, RefusedError

pytestmark = pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
N = 60


class Reader(nn.Module):
    """A classifier of token ids that returns an object with `.logits`, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        mask = attention_mask.unsqueeze(-1)
        mean = (self.embedding(input_ids) * mask).sum(dim=1) / mask.sum(dim=1)
        return SimpleNamespace(logits=self.head(mean))


def tokens(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (N, 8), generator=generator)
    mask = torch.ones_like(ids)
    mask[:30, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


LABELS = torch.arange(N) % 3


@pytest.fixture(scope="module")
def reader() -> tulip_ood.Tulip:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Reader()
    detector = tulip_ood.Tulip(model, n_samples=2, j=1.0)
    return detector.fit([{**tokens(), "labels": LABELS}], recipe="balanced")


def test_a_labelled_batch_is_scored_as_the_loader_gives_it(reader: Any) -> None:
    batch = {**tokens(1), "labels": LABELS}
    assert torch.equal(reader.score(batch), reader.score(tokens(1)))
    assert len(batch) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"input_ids": t["input_ids"]}, "keys attention_mask, input_ids; got input_ids"),
        (lambda t: {**t, "text": ["a"] * N}, "got attention_mask, input_ids, text"),
        (
            lambda t: {**t, "input_ids": t["input_ids"] + 100},
            r"whole numbers from 101 to 149 \(input_ids\); the first that it was fitted on are",
        ),
        (
            lambda t: {**t, "input_ids": t["input_ids"].float()},
            r"cannot run on float32 inputs \(input_ids\); it was fitted on int64",
        ),
    ],
    ids=["a key less", "a key more", "beyond the vocabulary", "not whole"],
)
def test_other_tokens_than_were_fitted_on(reader: Any, change: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        reader.score(change(tokens()))


def test_whole_numbers_for_a_table(vectors: Any) -> None:
    detector = tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader())
    with pytest.raises(InputError, match="cannot run on int64 inputs; it was fitted on float32"):
        detector.score(torch.ones(4, 2, dtype=torch.int64))


def test_labels_that_are_words(vectors: Any) -> None:
    x, _ = vectors.val
    with pytest.raises(InputError, match="labels must be numbers, got"):
        tulip_ood.detectors.MSP(vectors.model).fit([(x, ["cat"] * len(x))])


@pytest.mark.parametrize("size", [(), (3, 3), (12, 12)])
@pytest.mark.parametrize("method", ["msp", "tulip"])
def test_dense_labels_of_another_size_are_refused(method: str, size: tuple[int, ...]) -> None:
    """They would be read at other places than the network's answers."""
    detector = tulip_ood.detectors.make(method, nn.Conv2d(1, 3, 3, padding=1), task="dense")
    images, labels = torch.randn(30, 1, 6, 6), torch.randint(3, (30, *size))
    with pytest.raises(InputError, match=r"the network answers at \[6, 6\]"):
        detector.fit([(images, labels)])


def test_a_mapping_is_one_batch_of_ood_inputs(reader: Any) -> None:
    model, data = Reader(), [{**tokens(), "labels": LABELS}]
    found = tulip_ood.compare(
        model, id_val=data, id_test=data, ood={"other": tokens(1)}, methods=["ent"], resamples=20
    )
    assert found.val.n_ood == {"other": N}


@pytest.mark.parametrize("method", ["msp", "knn", "tulip", "auto"])
def test_fitting_on_inputs_of_another_width(vectors: Any, method: str) -> None:
    """Before the first fit and after it; what was fitted before stays."""
    x, y = vectors.val
    wide = [(torch.cat([x, x], dim=1), y)]
    detector = tulip_ood.detectors.make(method, vectors.model)
    with pytest.raises(RefusedError, match=r"cannot run on inputs of shape \[N, 4\]: mat1"):
        detector.fit(wide)
    fitted = tulip_ood.detectors.make(method, vectors.model).fit(vectors.loader())
    before = fitted.score(x[:4])
    with pytest.raises(RefusedError, match=r"cannot run on inputs of shape \[N, 4\]: mat1"):
        fitted.fit(wide)
    assert torch.equal(fitted.score(x[:4]), before)


def test_errors_of_the_callers_own_pass_through(vectors: Any) -> None:
    class StoppedError(RuntimeError):
        pass

    def stop(done: int, total: int) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        tulip_ood.detectors.MSP(vectors.model).fit(vectors.loader(), progress=stop)
