"""Packed tables of integers come back as they were, whatever they hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moescope_hooks.packing import pack

from moescope.telemetry.packed import unpack

INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)


@given(st.data(), st.integers(0, 6), st.integers(1, 5))
def test_what_was_packed_comes_back(data: st.DataObject, rows: int, width: int) -> None:
    values = data.draw(st.lists(st.lists(INT64, min_size=width, max_size=width), min_size=rows, max_size=rows))
    chains = data.draw(st.none() | st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows))
    packed = pack(torch.tensor(values, dtype=torch.int64).reshape(rows, width), chains)
    assert unpack(packed, rows, width, chains).tolist() == values


def test_small_differences_take_one_byte_each() -> None:
    values = torch.tensor([[1000, 2000], [1001, 1990], [5, 5]])
    assert len(pack(values, ["a", "a", "b"])) == 2 * 6  # the first of each chain is written whole: two bytes
    assert pack(torch.tensor([[3], [3], [2]]), ["a", "a", "a"]) == bytes([6, 0, 1])


@pytest.mark.parametrize("content", [b"", b"12345", bytes(9 * 4)])
def test_bytes_of_another_size_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="bytes for"):
        unpack(content, 2, 2)
