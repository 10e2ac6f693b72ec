"""Names of ranges: written and read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moescope_hooks.names import PHASES, RangeName, parse_range_name, range_name

NAMES = st.builds(
    lambda phase, layer, microbatch, suffix: RangeName(phase, layer, microbatch, suffix == 1, suffix == 2),
    st.sampled_from(PHASES),
    st.none() | st.integers(0, 200),
    st.none() | st.integers(0, 64),
    st.integers(0, 2),
)


@given(NAMES)
def test_a_name_reads_back_as_it_was_written(name: RangeName) -> None:
    assert parse_range_name(range_name(name)) == name


def test_names_are_those_of_the_contract() -> None:
    assert range_name(RangeName("dispatch", 3, 0)) == "moescope::L3.mb0.dispatch"
    assert range_name(RangeName("experts", 3, 0, backward=True)) == "moescope::L3.mb0.experts.bwd"
    assert range_name(RangeName("optimizer")) == "moescope::optimizer"


@pytest.mark.parametrize("text", ["ProfilerStep#3", "moescope::L1.mb0.lunch", "moescope::L1", "L1.mb0.experts"])
def test_other_names_are_not_ours(text: str) -> None:
    assert parse_range_name(text) is None
