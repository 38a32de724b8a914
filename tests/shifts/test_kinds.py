"""Kinds by name: which fit which inputs, clamping, dtypes, seeds, and whole input structures."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tulip_ood.errors import InputError
from tulip_ood.shifts.kinds import (
    IMAGES,
    TOKENS,
    VECTORS,
    Range,
    domain_of,
    kinds_for,
    main_tensor,
    shift,
)
from tulip_ood.shifts.mild import MILD

RANDOM = set(IMAGES) - {"negative", "upside_down", "blur", "corner"} | set(VECTORS)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.uint8:
        return torch.randint(256, shape, generator=generator, dtype=dtype)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def numbers_for(kind: str) -> Tensor:
    return draw(5, 3, 8, 8) if kind in IMAGES else draw(5, 7)


# ------------------------------------------------------------------------------ which kinds


def test_self_1_uses_the_contracts_first_seven_kinds() -> None:
    assert kinds_for("images") == (
        "average",
        "patches",
        "negative",
        "noise",
        "upside_down",
        "blur",
        "corner",
    )
    assert kinds_for("vectors") == ("mixed_rows", "permuted_columns", "noisy_rows")
    assert kinds_for("tokens") == ("shuffled_tokens", "spliced_tokens", "drawn_tokens")
    assert len(IMAGES) == 16


@pytest.mark.parametrize(
    ("shape", "dtype", "domain"),
    [
        ((2, 3, 32, 32), torch.float32, "images"),
        ((2, 1, 4, 9), torch.float64, "images"),
        ((2, 3, 8, 8), torch.uint8, "images"),
        ((2, 3, 8, 8), torch.float16, "images"),
        ((2, 3, 8, 3), torch.float32, "vectors"),  # too narrow for a grid of patches
        ((2, 7), torch.float32, "vectors"),
        ((2, 7, 5), torch.float32, "vectors"),
        ((2, 7), torch.int64, "tokens"),
        ((2, 7), torch.int32, "tokens"),
    ],
)
def test_domain_of_inputs(shape: tuple[int, ...], dtype: torch.dtype, domain: str) -> None:
    assert domain_of(torch.zeros(shape, dtype=dtype)) == domain


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2,), torch.float32), ((2, 7), torch.bool), ((2, 3, 4), torch.int64), ((2,), torch.int64)],
)
def test_inputs_without_a_domain_are_refused_with_the_ways_out(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    with pytest.raises(InputError, match=r"no pseudo-OOD is known .* recipe='balanced'"):
        domain_of(torch.zeros(shape, dtype=dtype))


# ------------------------------------------------------------------------------- all numbers


def test_range_is_per_channel_for_images_and_per_column_for_vectors() -> None:
    x = draw(4, 3, 5, 6)
    found = Range.of(x)
    assert found.low.flatten().tolist() == [float(x[:, c].min()) for c in range(3)]
    assert found.high.flatten().tolist() == [float(x[:, c].max()) for c in range(3)]
    table = draw(4, 3)
    assert Range.of(table).low.flatten().tolist() == table.amin(dim=0).tolist()


@pytest.mark.parametrize("kind", [*IMAGES, *VECTORS])
def test_results_stay_within_the_validation_range(kind: str) -> None:
    """The range is the validation data's, not that of the inputs at hand."""
    x = numbers_for(kind)
    narrow = Range(0.5 * Range.of(x).low, 0.5 * Range.of(x).high)
    out = shift(x, kind, seed=0, within=narrow)
    assert isinstance(out, Tensor)
    assert bool((out >= narrow.low).all())
    assert bool((out <= narrow.high).all())


@pytest.mark.parametrize("kind", [*IMAGES, *VECTORS])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_and_shape_stay_and_the_input_is_not_changed(kind: str, dtype: torch.dtype) -> None:
    x = numbers_for(kind).to(dtype)
    before = x.clone()
    out = shift(x, kind, seed=0)
    assert isinstance(out, Tensor)
    assert (out.dtype, out.shape) == (dtype, x.shape)
    assert torch.equal(x, before)
    assert bool(out.isfinite().all())
    assert not torch.equal(out, x)


@pytest.mark.parametrize("kind", [*IMAGES, *VECTORS, *MILD])
def test_the_default_dtype_changes_nothing(kind: str) -> None:
    x = numbers_for("noise" if kind in MILD else kind)
    expected = shift(x, kind, seed=0)
    for dtype in (torch.float64, torch.float16):
        torch.set_default_dtype(dtype)
        try:
            assert torch.equal(shift(x, kind, seed=0), expected)
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("shape", [(3, 3, 4, 4), (3, 1, 4, 9), (3, 3, 17, 5), (1, 3, 8, 8)])
def test_tiny_narrow_and_single_images(kind: str, shape: tuple[int, ...]) -> None:
    x = draw(*shape)
    out = shift(x, kind, seed=0)
    assert isinstance(out, Tensor)
    assert out.shape == x.shape
    assert bool(out.isfinite().all())
    assert bool((out >= Range.of(x).low).all() & (out <= Range.of(x).high).all())
    if len(x) > 1:
        assert not torch.equal(out, x)


@pytest.mark.parametrize("kind", IMAGES)
def test_uint8_images_are_changed_as_numbers_and_rounded(kind: str) -> None:
    x = draw(4, 3, 8, 8, dtype=torch.uint8)
    out, wide = shift(x, kind, seed=0), shift(x.float(), kind, seed=0)
    assert isinstance(out, Tensor)
    assert isinstance(wide, Tensor)
    assert out.dtype == torch.uint8
    assert torch.equal(out, wide.round().to(torch.uint8))


@pytest.mark.parametrize("kind", ["upside_down", "patches", "tile", "mixed_rows"])
def test_numbers_that_only_move_keep_every_digit(kind: str) -> None:
    """float64 inputs are not rounded to float32 on the way, nor their range."""
    x = numbers_for(kind).double() / 3
    out = shift(x, kind, seed=0)
    assert isinstance(out, Tensor)
    assert set(out.flatten().tolist()) <= set(x.flatten().tolist())


@pytest.mark.parametrize("kind", [*IMAGES, *VECTORS, *TOKENS])
def test_a_seed_decides_everything(kind: str) -> None:
    x = torch.arange(60).reshape(5, 12) if kind in TOKENS else numbers_for(kind)
    state = torch.random.get_rng_state()
    first, again, other = (shift(x, kind, seed=s) for s in (0, 0, 1))
    assert isinstance(first, Tensor)
    assert isinstance(again, Tensor)
    assert isinstance(other, Tensor)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (kind not in RANDOM and kind not in TOKENS)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_constant_channel_stays_constant() -> None:
    """Nothing is divided by a deviation of zero."""
    x = draw(4, 2, 8, 8)
    x[:, 1] = 0.75
    for kind in IMAGES:
        out = shift(x, kind, seed=0)
        assert isinstance(out, Tensor)
        assert bool((out[:, 1] == 0.75).all()), kind


# -------------------------------------------------------------------------------- structures


@pytest.mark.parametrize(
    ("inputs", "place"),
    [
        (torch.zeros(1, 2), None),
        ({"labels_mask": torch.ones(1), "pixel_values": torch.zeros(1)}, "pixel_values"),
        ({"attention_mask": torch.ones(1, 2), "input_ids": torch.zeros(1, 2)}, "input_ids"),
        ({"flag": True, "features": torch.zeros(1, 2)}, "features"),
        ((None, torch.zeros(1, 2), torch.zeros(1)), 1),
    ],
)
def test_the_main_tensor_of_a_structure(inputs: Any, place: object) -> None:
    assert main_tensor(inputs) == place


@pytest.mark.parametrize("inputs", [{"flag": True}, (), (None, 3), "text"])
def test_inputs_without_a_tensor_are_refused(inputs: Any) -> None:
    with pytest.raises(InputError, match="no tensor was found in the inputs"):
        shift(inputs, "negative", seed=0)


def test_the_rest_of_a_structure_goes_along_untouched() -> None:
    x, extra = draw(3, 3, 8, 8), draw(3, 2)
    expected = shift(x, "negative", seed=0)
    changed = shift({"x": x, "extra": extra, "flag": True}, "negative", seed=0)
    assert isinstance(changed, dict)
    assert torch.equal(changed["x"], expected)  # type: ignore[arg-type]
    assert changed["extra"] is extra
    assert changed["flag"] is True
    pair = shift((x, extra, None), "negative", seed=0)
    assert isinstance(pair, tuple)
    assert torch.equal(pair[0], expected)  # type: ignore[arg-type]
    assert pair[1] is extra
    assert pair[2] is None


@pytest.mark.parametrize("kind", TOKENS)
def test_tokens_are_changed_under_the_attention_mask(kind: str) -> None:
    ids = torch.tensor([[7, 8, 9, 10, 0, 0], [11, 12, 13, 14, 15, 16]])
    mask = (ids > 0).long()
    out = shift({"input_ids": ids, "attention_mask": mask}, kind, seed=3)
    assert isinstance(out, dict)
    assert out["input_ids"].dtype == ids.dtype
    assert out["input_ids"][0, 4:].tolist() == [0, 0]
    assert bool((out["input_ids"][mask.bool()] > 0).all())
    assert not torch.equal(out["input_ids"], ids)
    assert out["attention_mask"] is mask


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown kind of pseudo-OOD 'fog'; there are average"):
        shift(torch.zeros(1, 3, 8, 8), "fog", seed=0)
