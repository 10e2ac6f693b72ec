"""Damage that goes on costs time in proportion to what is damaged, whatever it is made of."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_zoo import event

from moescope.trace import mend as mending
from moescope.trace import scan as scanning
from moescope.trace.faults import Faults
from moescope.trace.mend import mend

NUM = 2000
ONE = event("kernel", "1", "1", args={"dims": [1, 2], "stream": 7})
DAMAGE = {
    "no colon": ONE.replace('"name":', '"name"', 1),
    "list without end": ONE.replace("2]", "2", 1),
    "list and objects without end": ONE.replace("2]", "2", 1).rstrip("}"),
    "string without end": ONE.replace('"name": "', '"name": ', 1),
    "ends of lists": '{"ph" "X"}], ' + '"a" {}],' * 3,
    "ends and commas": '{"a": [{}], "b" }],',
    "no start of an event": '"args" "a" {"b" 1},',
    "backslashes": '{"ph": "X\\\\\\, "name": "\\"},',
    "not a number": '{"ph": NaN "X" nan, -inf}',
    "other keys": '{"pp": "X", "nm": "n", "l": [{"a": 1}]}',
    "other keys and commas": '{"pp": "X", "nm": "n", "l": [{"a": 1}]},',
    "values": '1, "a", null, [2], {},',
    "keys of the list's neighbours": '}],"x":{"ph":x',
    "opening brackets": "[[[[" * 30,
}


class Work:
    """Characters that the expensive steps were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.characters = 0
        for name in ("repair_object", "are_events"):
            monkeypatch.setattr(mending, name, self.counted(getattr(mending, name)))
        strict, work = mending._STRICT, self

        class Counted:
            """Strict decoding."""

            def raw_decode(self, text: str) -> tuple[object, int]:
                """Decode, and count the part that was looked at."""
                try:
                    value, end = strict.raw_decode(text)
                except json.JSONDecodeError as error:
                    work.characters += error.pos
                    raise
                work.characters += end
                return value, end

        monkeypatch.setattr(mending, "_STRICT", Counted())

    def counted(self, action: Callable[..., object]) -> Callable[..., object]:
        """``action``, with the length of its first argument counted."""

        def call(text: bytes | str) -> object:
            self.characters += len(text)
            return action(text)

        return call


@pytest.mark.parametrize("follows", ["part", "nothing"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_each_part_is_looked_at_a_bounded_number_of_times(
    damage: str, follows: mending.Follows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for separator in (",", ""):
        data = separator.join([DAMAGE[damage]] * NUM).encode() + b'{"pp" 1'
        monkeypatch.setattr(mending, "_TRIED", 0)
        monkeypatch.setattr(mending, "_LEAST_LOOK_AHEAD", 0)
        with monkeypatch.context() as patch:
            work = Work(patch)
            mend(data, 0, Faults(), follows)
        assert work.characters < 80 * len(data)


def test_what_does_not_end_is_looked_through_again_when_it_has_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 4096
    data = f'{{"traceEvents": [{ONE}, {ONE}, {{"ph": "X", '.encode() + b'"args" 1 {"b" 1},' * (100 * block // 17)
    (tmp_path / "t.json").write_bytes(data)
    sizes = []
    monkeypatch.setattr(scanning, "mend", lambda data, *rest: (sizes.append(len(data)), mend(data, *rest))[1])
    found = scanning.scan(tmp_path / "t.json", block_bytes=block)
    assert found is not None
    assert found.events.height == 2
    assert found.faults.counts["truncated"] == 1 or found.faults.counts["dropped-events"] > 0
    assert sum(sizes) < 6 * len(data)


def test_a_value_longer_than_eight_parts_is_taken_whole() -> None:
    """What looks like events inside an event's arguments is no reason to cut it."""
    inner = [{"ph": "X", "ts": n} for n in range(300)]
    long = event("kernel", "1", "1", args={"first": 1, "l": [0, *inner]})
    broken = ONE.replace('"name":', '"name"', 1)
    faults = Faults()
    mended = mend(f"{broken}, {long}, {broken}, {ONE}".encode(), 0, faults, "nothing")
    assert [e["ph"] for e in json.loads(mended.json())] == ["D", "X", "D", "X"]
    assert len(json.loads(mended.json())[1]["args"]["l"]) == 301
    assert faults.counts == {"dropped-events": 2, "truncated": 1}


NUMBERS = event("kernel", "1", "1", name="a", args={"l": [{"name": 1}, {"name": 2}], "n": 7}).replace(
    "7}", "9" * 5000 + "}"
)
UNCLOSED = ",".join([ONE.replace("2]", "2", 1).rstrip("}")] * 40)
MANY = event("kernel", "1", "1", args={"l": [{"name": n} for n in range(20)]})


@pytest.mark.parametrize(
    ("events", "height", "counts"),
    [
        ([event("kernel", "1", "1", args={"x": 5}).replace("5", "[NaN]")], 1, {"not-a-number": 1}),
        ([NUMBERS, '{"ph":x}', ONE], 2, {"dropped-events": 1}),
        ([UNCLOSED, MANY, ONE], 2, {"dropped-events": 40}),
        ([UNCLOSED, MANY, '{"ph":x}', ONE], 2, {"dropped-events": 41}),
    ],
)
def test_what_can_be_read_beside_damage_is_read(
    events: list[str], height: int, counts: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": [' + ", ".join(events) + "]}")
    found = scanning.scan(tmp_path / "t.json")
    assert found is not None
    assert (found.events.height, found.faults.counts) == (height, counts)


@pytest.mark.parametrize("block_bytes", [230, 256, 300, 4096])
def test_a_bracket_in_what_was_held_back_ends_no_list(block_bytes: int, tmp_path: Path) -> None:
    deep = "[" * 9 + '{"name": 1}, {"name": 2}' + "]" * 4 + "\x05" + "]" * 4
    first = f'{{"ph": "X", "name": "a", "ts": 0, "dur": 1, "args": {{"p": "{"x" * 140}", "deep": {deep}}}}}'
    (tmp_path / "t.json").write_text(
        f'{{"traceEvents": [{first},{ONE},{ONE}],"otherData":[{{"id":1}},{{"id":2}}],"displayTimeUnit":"ms"}}'
    )
    found = scanning.scan(tmp_path / "t.json", block_bytes=block_bytes)
    assert found is not None
    assert found.events.height >= 2
    assert found.faults.counts
