"""What outputs mean: shapes and labels that are refused, likelihoods against plain formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tulip_ood.errors import InputError, ModelError
from tulip_ood.numerics.tasks import (
    TASKS,
    Binary,
    Classification,
    Dense,
    Multilabel,
    Regression,
    Task,
    make_task,
)

PROPERTY = settings(deadline=None, max_examples=50)


def draw(*shape: int, size: float = 3.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(*shape, generator=generator, dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# ------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("task", "shape", "laid_out"),
    [
        ("classification", (4, 3), (4, 3)),
        ("dense", (4, 3, 8), (4, 8, 3)),
        ("dense", (4, 3, 8, 6), (4, 8, 6, 3)),
        ("binary", (4,), (4, 1)),
        ("binary", (4, 1), (4, 1)),
        ("multilabel", (4, 3), (4, 3)),
        ("multilabel", (4,), (4, 1)),
        ("regression", (4,), (4, 1)),
        ("regression", (4, 2), (4, 2)),
    ],
)
def test_outputs_are_laid_out_last(task: str, shape: tuple[int, ...], laid_out: object) -> None:
    assert make_task(task).outputs(torch.zeros(shape)).shape == laid_out


def test_dense_outputs_keep_their_numbers() -> None:
    raw = draw(2, 3, 4, 5)
    laid_out = Dense().outputs(raw)
    assert laid_out[1, 2, 3].tolist() == raw[1, :, 2, 3].tolist()


@pytest.mark.parametrize(
    ("task", "shape", "message"),
    [
        ("classification", (4,), r"returns \[4\]: one logit for an input. Use task='binary'"),
        ("classification", (4, 1), r"returns \[4, 1\]: one logit .* or task='regression'"),
        ("classification", (4, 3, 8, 8), r"returns \[4, 3, 8, 8\]. Use task='dense'"),
        ("dense", (4, 3), r"needs logits \[N, o, positions…\] .* returns \[4, 3\]"),
        ("dense", (4, 1, 8, 8), r"returns \[4, 1, 8, 8\]. If the classes are last"),
        ("binary", (4, 2), r"one logit an input, .* \[4, 2\]. Use task='classification'"),
        ("binary", (4, 1, 3), r"task 'binary' needs logits"),
        ("multilabel", (4, 3, 8), r"task 'multilabel' needs logits \[N, o\], .* \[4, 3, 8\]"),
        ("regression", (4, 3, 8), r"returns \[4, 3, 8\]: pass output=lambda out: out.flatten\(1\)"),
    ],
)
def test_outputs_that_do_not_fit_are_refused_with_the_way_out(
    task: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        make_task(task).outputs(torch.zeros(shape))


# ------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("task", "base", "labels", "checked"),
    [
        ("classification", (3, 4), torch.tensor([0.0, 3.0, 1.0]), [0, 3, 1]),
        ("classification", (2, 2), torch.tensor([True, False]), [1, 0]),
        ("classification", (2, 2), torch.tensor([1, 0], dtype=torch.uint8), [1, 0]),
        ("dense", (1, 3, 2), torch.tensor([[1, -100, 0]]), [[1, -100, 0]]),
        ("binary", (3, 1), torch.tensor([0, 1, 1]), [[0], [1], [1]]),
        ("multilabel", (1, 3), torch.tensor([[1.0, 0.0, 1.0]]), [[1, 0, 1]]),
        ("regression", (3, 1), torch.tensor([1, 2, 3]), [[1.0], [2.0], [3.0]]),
    ],
)
def test_labels_are_brought_into_one_form(
    task: str, base: tuple[int, ...], labels: Tensor, checked: list[object]
) -> None:
    found = make_task(task).check_labels(labels, torch.zeros(base))
    assert found.tolist() == checked
    assert found.dtype == (torch.float64 if task == "regression" else torch.int64)


@pytest.mark.parametrize(
    ("task", "base", "labels", "message"),
    [
        ("classification", (2, 3), [0, 3], r"in 0…2 because the network has 3 outputs, but 1 of 2"),
        ("classification", (2, 3), [0, -1], r"\(from -1 to 0\)"),
        ("classification", (2, 3), [0, -100], r"1 of 2 do not"),
        ("classification", (2, 3), [0.5, 1.0], "whole class numbers, got fractions"),
        ("classification", (2, 3), [math.nan, 1.0], "whole class numbers"),
        ("classification", (2, 3), [[0, 0, 1], [1, 0, 0]], r"labels.argmax\(1\)\), or task='multi"),
        ("classification", (2, 3), [[0], [1]], r"must have the shape \[2\], got \[2, 1\]"),
        (
            "dense",
            (1, 2, 3),
            [[0, 3]],
            r"1 of 2 do not .* \(mark positions without a label by -100",
        ),
        ("dense", (1, 2, 3), [[-100, -100]], "no position has a label: all 2 are -100"),
        ("dense", (1, 2, 3), [0], r"must have the shape \[1, 2\], got \[1\]"),
        ("binary", (2, 1), [0, 2], r"labels of 0 and 1, got from 0 to 2"),
        ("binary", (2, 1), [[0, 1], [1, 0]], r"needs labels \[2, 1\], got \[2, 2\]"),
        ("multilabel", (2, 3), [0, 1], r"'multilabel' needs labels \[2, 3\], got \[2\]"),
        ("multilabel", (1, 2), [[0.5, 1.0]], r"labels of 0 and 1"),
        ("regression", (2, 1), [1.0, math.nan], "NaN or Inf"),
        ("regression", (2, 1), [1.0, math.inf], "NaN or Inf"),
        ("regression", (2, 3), [1.0, 2.0], r"'regression' needs labels \[2, 3\], got \[2\]"),
    ],
)
def test_labels_that_do_not_fit_are_refused_with_the_reason(
    task: str, base: tuple[int, ...], labels: list[object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_task(task).check_labels(torch.tensor(labels), torch.zeros(base))


def test_an_unknown_task_or_score_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=f"choose from {', '.join(TASKS)}"):
        make_task("ranking")
    with pytest.raises(InputError, match="'ebo' is not defined for task 'binary'; .* ent, msp, bo"):
        Binary().check_score("ebo")
    with pytest.raises(InputError, match="choose from ent, bound"):
        Regression().check_score("msp")
    for name, task in TASKS.items():
        assert task().check_score("ent") == "ent", name
        assert task().check_score("bound") == "bound", name


# --------------------------------------------------------------- predictions and likelihoods


@PROPERTY
@given(st.integers(1, 5), st.integers(2, 5), st.integers(0, 2**31))
def test_classification_is_the_mean_softmax(m: int, o: int, seed: int) -> None:
    samples = draw(m, 3, o, seed=seed)
    labels = torch.arange(3) % o
    found = Classification().log_likelihood(samples, labels)
    probs = Classification().predict(samples)
    for n in range(3):
        p = [0.0] * o
        for i in range(m):
            weights = [math.exp(v) for v in samples[i, n].tolist()]
            p = [a + w / sum(weights) / m for a, w in zip(p, weights, strict=True)]
        assert probs[n].tolist() == pytest.approx(p, abs=1e-12)
        assert float(found[n]) == pytest.approx(math.log(p[labels[n]]), rel=1e-9)


@PROPERTY
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**31))
def test_multilabel_is_a_product_of_mean_sigmoids(m: int, o: int, seed: int) -> None:
    samples = draw(m, 2, o, seed=seed)
    labels = torch.arange(2 * o).reshape(2, o) % 2
    found = Multilabel().log_likelihood(samples, labels)
    probs = Multilabel().predict(samples)
    for n in range(2):
        total = 0.0
        for c in range(o):
            yes = sum(sigmoid(v) for v in samples[:, n, c].tolist()) / m
            assert float(probs[n, c]) == pytest.approx(yes, abs=1e-12)
            total += math.log(yes if labels[n, c] else 1 - yes)
        assert float(found[n]) == pytest.approx(total, rel=1e-6)


@PROPERTY
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**31))
def test_regression_is_a_gaussian_with_the_total_variance(m: int, o: int, seed: int) -> None:
    samples, labels = draw(m, 2, o, seed=seed), draw(2, o, seed=seed + 1)
    noise_var = torch.arange(1.0, o + 1, dtype=torch.float64)
    found = Regression().log_likelihood(samples, labels, noise_var)
    score = Regression().score("ent", samples, noise_var)
    for n in range(2):
        density, variance = 0.0, 0.0
        for c in range(o):
            values = samples[:, n, c].tolist()
            mean = sum(values) / m
            total = sum((v - mean) ** 2 for v in values) / m + float(noise_var[c])
            gap = float(labels[n, c]) - mean
            density -= 0.5 * (math.log(2 * math.pi * total) + gap**2 / total)
            variance += total
        assert float(found[n]) == pytest.approx(density, rel=1e-9)
        assert float(score[n]) == pytest.approx(variance, rel=1e-9)
        assert Regression().predict(samples)[n].tolist() == samples[:, n].mean(0).tolist()


def test_dense_positions_have_likelihoods_of_their_own() -> None:
    samples, labels = draw(4, 2, 3, 5), torch.tensor([[0, -100, 4], [1, 2, -100]])
    found = Dense().log_likelihood(samples, labels)
    flat = Classification().log_likelihood(samples.reshape(4, 6, 5), labels.flatten().clamp_min(0))
    known = labels != -100
    torch.testing.assert_close(found[known], flat.reshape(2, 3)[known])
    assert bool(found[~known].isnan().all())
    assert Dense().correct(samples[0], labels).isnan().tolist() == (~known).tolist()


@pytest.mark.parametrize("task", [Classification(), Binary()])
def test_likelihoods_of_hopeless_answers_stay_finite(task: Task) -> None:
    """A wrong answer given with logits of ±2000: log p is −2000 or so, not −inf."""
    if isinstance(task, Binary):
        samples, labels = torch.full((2, 1, 1), -2000.0), torch.tensor([[1]])
    else:
        samples, labels = torch.tensor([[[2000.0, 0.0]], [[2010.0, 0.0]]]), torch.tensor([1])
    found = float(task.log_likelihood(samples.double(), labels))
    assert found == pytest.approx(-2000 - (0 if isinstance(task, Binary) else math.log(2)), abs=0.1)


# ------------------------------------------------------------------------- answers and scores


def test_answers_and_accuracy() -> None:
    base = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 5.0], [0.0, 3.0, 1.0]])
    task = Classification()
    assert task.label(base).tolist() == [0, 2, 1]
    assert task.correct(base, torch.tensor([0, 1, 1])).tolist() == [1.0, 0.0, 1.0]
    assert task.performance(base, torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    assert task.chance(base, torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    labels = torch.tensor([[[0, -100]], [[1, 1]]]).squeeze(1)
    dense = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[0.0, 9.0], [9.0, 0.0]]])
    assert Dense().performance(dense, labels) == pytest.approx(2 / 3)
    assert Dense().chance(dense, labels) == pytest.approx(2 / 3)


def test_yes_no_answers_and_accuracy() -> None:
    base = torch.tensor([[2.0, -1.0], [-2.0, -1.0]])
    labels = torch.tensor([[1, 1], [0, 0]])
    task = Multilabel()
    assert task.label(base).tolist() == [[1, 0], [0, 0]]
    assert task.correct(base, labels).tolist() == [0.0, 1.0]  # every answer of an input
    assert task.performance(base, labels) == 0.75  # every single answer
    assert task.chance(base, labels) == 0.5


def test_regression_performance_is_r_squared() -> None:
    labels = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    assert Regression().performance(labels, labels) == 1.0
    assert Regression().performance(torch.full((3, 1), 2.0), labels) == 0.0
    assert Regression().performance(labels.flip(0), labels) == pytest.approx(-3.0)
    assert Regression().chance(labels, labels) == 0.0
    assert bool(Regression().correct(labels, labels).isnan().all())


@PROPERTY
@given(st.sampled_from(["ent", "msp"]), st.floats(0, 300), st.integers(0, 2**31))
def test_a_yes_scores_as_the_same_no(name: str, size: float, seed: int) -> None:
    """Swapping yes and no changes no score, however sure the network is."""
    samples = draw(3, 4, 2, size=size, seed=seed)
    torch.testing.assert_close(
        Multilabel().score(name, samples), Multilabel().score(name, -samples), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("name", ["ent", "msp"])
def test_very_sure_yes_no_answers_keep_their_order(name: str) -> None:
    logit = torch.arange(10.0, 300.0, 10.0, dtype=torch.float64).reshape(1, -1, 1)
    for sign in (1, -1):
        assert bool((Binary().score(name, sign * logit).diff() < 0).all())


@PROPERTY
@given(st.integers(1, 4), st.integers(0, 2**31))
def test_binary_is_two_class_classification(m: int, seed: int) -> None:
    """A logit f and the two logits (0, f) are the same network: likelihood, entropy, answer."""
    logit = draw(m, 5, 1, seed=seed)
    pair = torch.cat([torch.zeros_like(logit), logit], dim=-1)
    labels = torch.tensor([0, 1, 1, 0, 1])
    binary, two = Binary(), Classification()
    torch.testing.assert_close(
        binary.log_likelihood(logit, labels[:, None]), two.log_likelihood(pair, labels)
    )
    torch.testing.assert_close(binary.score("ent", logit), two.score("ent", pair))
    torch.testing.assert_close(binary.score("msp", logit), two.score("msp", pair))
    assert binary.label(logit[0]).tolist() == two.label(pair[0]).tolist()


@pytest.mark.parametrize("task", [Classification(), Dense(), Multilabel()])
def test_base_uncertainty_is_the_entropy_of_the_network_alone(task: Task) -> None:
    base = draw(2, 3, 4) if task.name == "dense" else draw(2, 4)
    torch.testing.assert_close(task.base_uncertainty(base), task.score("ent", base.unsqueeze(0)))
    assert torch.equal(Regression().base_uncertainty(draw(2, 4)), torch.zeros(2).double())
