"""What a stranger may put into a file: damage, lies, and JSON of every kind."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

__all__ = ["HOSTILE", "damaged", "one_changed", "texts"]

texts = st.text(max_size=20) | st.sampled_from(["", "\0", "\ud800", "../" * 40, "x" * 5000])
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, -1, 2**31, 2**40, 2**63 - 1, 2**63, 10**15, 1e308]),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
HOSTILE = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def damaged(draw: Callable[..., Any], whole: bytes) -> bytes:
    """The bytes of a file after up to three accidents."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["cut", "flip", "write", "insert", "repeat", "number"]))
        if kind == "cut":
            del data[at:]
        elif kind == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "write":
            data[at : at + 8] = draw(st.binary(max_size=8))
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=40))
        elif kind == "repeat":
            data[at:at] = data[at : at + 64]
        else:  # a length or an offset that lies
            width = draw(st.sampled_from([2, 4, 8]))
            value = draw(st.sampled_from([0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1) - 1]))
            data[at : at + width] = value.to_bytes(width, "little")
    return bytes(data)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in nested JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in inside:
        found.append((*here, key))
        if isinstance(inner, dict | list):
            found += _paths(inner, (*here, key))
    return found


@st.composite
def one_changed(draw: Callable[..., Any], value: Any) -> Any:
    """Nested JSON in which one thing is gone, or is another one."""
    changed = json.loads(json.dumps(value))
    *way, last = draw(st.sampled_from(_paths(changed)))
    place = changed
    for key in way:
        place = place[key]
    if draw(st.booleans()) and isinstance(place, dict):
        del place[last]
    else:
        place[last] = draw(HOSTILE)
    return changed
