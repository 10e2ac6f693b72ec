"""What the hooks pack into one row per step reads back as the rows it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moescope_hooks.blocks import Collective, CollectiveRow, LoadRow, collective_block, load_blocks
from moescope_hooks.names import RangeName
from moescope_hooks.schema import PARTS, part_path

from moescope.telemetry import open_telemetry
from moescope.telemetry.blocks import is_packed, unpack_part


def unpacked(table: str, blocks: Any) -> list[dict[str, Any]]:
    """The rows of a part that holds ``blocks``, as it comes back from a file."""
    frame = pl.DataFrame(blocks, schema=dict(PARTS[table]), orient="row")
    assert is_packed(frame, table)
    return unpack_part(frame, table).to_dicts()


def load_row(microbatch: int, layer: int, counts: list[int], dropped: list[int] | None = None) -> LoadRow:
    return LoadRow(
        microbatch, layer, torch.tensor(counts), None if dropped is None else torch.tensor(dropped), (0.5, None, 3)
    )


def test_layers_of_other_widths_and_with_drops_come_back() -> None:
    rows = [
        load_row(0, 1, [4, 0, 2]),
        load_row(0, 2, [1, 1, 1, 3], [0, 0, 0, 2]),
        load_row(0, 3, [9, 1, 1, 1]),
        load_row(1, 1, [3, 1, 2]),
        load_row(1, 2, [3, 1, 1, 1], [1, 0, 0, 0]),
        load_row(1, 3, [0, 1, 1, 10]),
    ]
    back = {(r["microbatch"], r["layer"]): r for r in unpacked("expert_load", load_blocks(7, 5, rows))}
    assert len(back) == len(rows)
    for row in rows:
        found = back[row.microbatch, row.layer]
        assert (found["rank"], found["step"]) == (7, 5)
        assert found["counts"] == row.counts_E.tolist()
        assert found["dropped"] == (None if row.dropped_E is None else row.dropped_E.tolist())
        assert (found["entropy"], found["margin"], found["bf16_flips"]) == (0.5, None, 3)


NAMES = st.builds(
    lambda phase, layer, microbatch, backward: RangeName(phase, layer, microbatch, backward=backward),
    st.sampled_from(["dispatch", "combine", "grad_reduce"]),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.booleans(),
)
SIZES = st.lists(st.integers(0, 9).map(lambda n: n * 512), max_size=4)
COLLECTIVES = st.builds(Collective, NAMES, st.sampled_from(["ep", "dp"]), SIZES, SIZES)
ROWS = st.builds(CollectiveRow, COLLECTIVES, st.integers(0, 2**40), st.integers(0, 2**62), st.integers(0, 2**62))


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_collectives_come_back(rows: list[CollectiveRow]) -> None:
    back = unpacked("collective", collective_block(2, 9, rows))
    assert [(r["send_bytes"], r["recv_bytes"]) for r in back] == [
        (row.collective.send_bytes, row.collective.recv_bytes) for row in rows
    ]
    for found, row in zip(back, rows, strict=True):
        name = row.collective.name
        assert (found["layer"], found["microbatch"], found["phase"], found["backward"]) == (
            name.layer,
            name.microbatch,
            name.phase,
            name.backward,
        )
        assert (found["group"], found["seq"]) == (row.collective.group, row.seq)
        assert (found["arrival_ns"], found["end_ns"]) == (row.arrival_ns, row.end_ns)


def test_a_step_without_collectives_has_no_row() -> None:
    assert collective_block(0, 0, []) == []


@pytest.mark.parametrize("content", [b"", b"123"])
def test_a_packed_part_that_contradicts_itself_is_said(tmp_path: Path, content: bytes) -> None:
    block = dict(load_blocks(0, 0, [load_row(0, 0, [1, 2])])[0]) | {"counts": content}
    path = part_path(tmp_path / "telemetry", "expert_load", 0, 0)
    path.parent.mkdir(parents=True)
    pl.DataFrame([block], schema=dict(PARTS["expert_load"]), orient="row").write_parquet(path)
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.expert_load.is_empty()
    assert any("rank0-00000.parquet cannot be read" in problem for problem in telemetry.problems)
