"""How `compare` reads OOD batches: as the model is fed, which ID batches show."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tulip_ood
from tulip_ood.errors import InputError


def inside(problem: Any) -> dict[str, Any]:
    return {"id_val": [problem.val], "id_test": [problem.test]}


class Two(nn.Module):
    """Takes each of the two coordinates as an input of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.inner(torch.cat([x1, x2], dim=1))


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :1], x[:, 1:]


@pytest.mark.parametrize("labelled", [False, True])
def test_two_inputs_are_not_an_input_with_its_label(vectors: Any, labelled: bool) -> None:
    """Pairs of tensors, with and without labels, give the scores of the model with one input."""

    def two(x: Tensor, y: Tensor | None = None) -> Any:
        return halves(x) if y is None else (halves(x), y)

    labels = torch.zeros(len(vectors.ood)) if labelled else None
    given = {"id_val": [two(*vectors.val)], "id_test": [two(*vectors.test)]}
    found = tulip_ood.compare(
        Two(vectors.model),
        **given,
        ood={"far": [two(vectors.ood, labels)], "as a list": [list(halves(vectors.ood))]},
        tune=[two(vectors.ood[:40], None if labels is None else labels[:40])],
        methods=["gen"],
    )
    alone = tulip_ood.detectors.Entropy(vectors.model).score(vectors.ood)
    for part in found.val.methods["ent"].sets.values():
        assert torch.allclose(part.scores, alone, atol=1e-6)
    assert found.tuned_on == {"far": 40, "as a list": 40}


def test_labels_of_ood_inputs_are_passed_over(vectors: Any) -> None:
    x = vectors.ood
    ood = {"plain": [x], "alone": [(x,)], "labelled": [(x, x)], "none": [(x, None)]}
    found = tulip_ood.compare(vectors.model, **inside(vectors), ood=ood, methods=["msp"])
    first, *others = (part.scores for part in found.val.methods["ent"].sets.values())
    assert all(torch.equal(first, other) for other in others)


def test_a_batch_that_fits_in_neither_reading_is_refused(vectors: Any) -> None:
    x = vectors.ood
    for batch, words in (
        (x.long(), "OOD set 'far'.*a 2-D float tensor; got a 2-D integer tensor"),
        (x[:, :, None], "got a 3-D float tensor"),
        ((torch.arange(len(x)), x), "got 0: 1-D integer, 1: 2-D float"),
        ((x, x, x), "got 0: 2-D float, 1: 2-D float, 2: 2-D float"),
        ({"x": x}, "got x: 2-D float"),
        ("far", "got str"),
    ):
        given = {**inside(vectors), "methods": ["msp"]}
        with pytest.raises(InputError, match=words):
            tulip_ood.compare(vectors.model, **given, ood={"far": [batch]})
        with pytest.raises(InputError, match="tune: .*ID inputs"):
            tulip_ood.compare(vectors.model, **given, ood={"far": [x]}, tune=[batch])


class Worded(nn.Module):
    """Takes a mapping, as networks for text do; one of its keys is called like a label."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        return self.inner(x + 0 * label)


def test_a_key_that_is_called_like_a_label_may_be_an_input(vectors: Any) -> None:
    def worded(x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "label": torch.zeros(len(x), 1)}

    found = tulip_ood.compare(
        Worded(vectors.model),
        id_val=[(worded(vectors.val[0]), vectors.val[1])],
        id_test=[(worded(vectors.test[0]), vectors.test[1])],
        ood={"alone": [worded(vectors.ood)], "labelled": [(worded(vectors.ood), vectors.ood)]},
        methods=["msp"],
    )
    alone = tulip_ood.detectors.Entropy(vectors.model).score(vectors.ood)
    for part in found.val.methods["ent"].sets.values():
        assert torch.allclose(part.scores, alone, atol=1e-6)


@pytest.mark.filterwarnings("ignore::tulip_ood.TulipWarning")
def test_inputs_that_are_not_finite_make_no_sample(vectors: Any) -> None:
    """The table says "a sample of …" where memory was short, and not where inputs were NaN."""
    x, y = vectors.val[0].clone(), vectors.val[1]
    x[:5] = torch.nan
    given = {"id_val": [(x, y)], "id_test": [vectors.test], "ood": {"far": [vectors.ood]}}
    found = tulip_ood.compare(vectors.model, **given, methods=["msp"])
    assert (found.n_val, found.seen) == (595, 595)
    assert "a sample of" not in str(found)
    short = tulip_ood.compare(vectors.model, **given, methods=["msp"], fit_memory=300 * (8 + 12))
    assert (short.n_val, short.seen) == (300, 595)
    assert "300 validation inputs (a sample of 595: fit_memory)" in str(short)
