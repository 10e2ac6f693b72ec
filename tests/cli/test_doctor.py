"""``moescope doctor``: what a folder holds and lacks, from real small files."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tiny_trace import TinyRank, write
from trace_fixture import write_trace

from moescope.cli import main
from moescope.cli.inventory import print_inventory
from moescope.trace import compiled
from moescope.views.inventory import HostFacts, Inventory, TelemetryFacts, TraceFacts, take_inventory
from moescope.views.questions import RULES, questions

TRACES = Path(__file__).parents[3] / "shared/traces"
recorded = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the recorded traces are not at {TRACES}")


def facts(**changes: object) -> TraceFacts:
    base = TraceFacts(
        rank=0, window=0, file="rank0.json", host="a", device="GPU", start_ns=0, end_ns=9_000_000, num_events=9,
        num_device_events=4, steps=(1, 2), num_collectives=3, sizes="recorded", has_splits=True, lists_cut=False,
        has_shapes=True, has_memory=True, has_launches=True, has_ranges=True, is_incomplete=False,
        problems=(),
    )  # fmt: skip
    return replace(base, **changes)


def inventory(*traces: TraceFacts, **changes: object) -> Inventory:
    telemetry = TelemetryFacts({"expert_load": 8, "collective": 8, "step": 2, "clock": 2}, (0, 9), (0, 1), ())
    base = Inventory(
        path="runs/x", basis="measured", controls=(), world_size=2, missing_ranks=(),
        traces=traces or (facts(), facts(rank=1)), hosts=(HostFacts("a", (0, 1)),), groups=(), telemetry=telemetry,
        problems=(), notes=(),
    )  # fmt: skip
    return replace(base, **changes)


def answers(held: Inventory) -> dict[str, str]:
    words = ("go?", "waits", "clocks", "hot", "layer", "transfers", "products", "memory", "host hold", "run?")
    asked = questions(held)
    return {word: next(q.answer for q in asked if word in q.question) for word in words}


def test_inventory_of_written_traces(tmp_path):
    write_trace(tmp_path, 0)
    write_trace(tmp_path, 1, host=None)
    held = take_inventory(tmp_path)
    first, second = held.traces
    assert (held.world_size, held.missing_ranks, held.ranks, held.basis) == (2, (), (0, 1), "unknown")
    assert (first.steps, first.num_events, first.num_device_events, first.num_collectives) == ((0, 1), 10, 4, 2)
    assert (first.sizes, first.has_splits, first.has_shapes, first.has_memory) == ("recorded", True, True, False)
    assert (first.has_launches, first.has_ranges, first.lists_cut) == (True, False, False)
    assert (first.start_ns, first.end_ns) == (1_000_000, 1_190_000)
    assert held.hosts == (HostFacts("node0", (0,)), HostFacts(None, (1,)))
    assert (first.host, second.host) == ("node0", None)
    assert held.telemetry is None


def test_missing_ranks_are_named_and_limit_the_waits(tmp_path):
    write_trace(tmp_path, 0, world_size=4)
    write_trace(tmp_path, 2, world_size=4)
    held = take_inventory(tmp_path)
    assert held.missing_ranks == (1, 3)
    waits = next(q for q in questions(held) if "waits" in q.question)
    assert waits.answer == "partly"
    assert "1, 3" in waits.because


def test_a_complete_run_answers_everything():
    asked = questions(inventory())
    assert {question.answer for question in asked} == {"yes"}
    assert {question.how_to_record for question in asked} == {""}
    assert len(asked) == len(RULES)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": ()}, {"go?": "partly"}),
        ({"num_collectives": 0}, {"waits": "partly"}),
        ({"sizes": "none"}, {"transfers": "partly"}),
        ({"lists_cut": True}, {}),
        ({"sizes": "from shapes"}, {}),
        ({"has_shapes": False}, {"products": "partly"}),
        ({"has_memory": False}, {"memory": "partly"}),
        ({"has_launches": False}, {"host hold": "partly"}),
        ({"has_ranges": False}, {"layer": "partly"}),
    ],
)
def test_what_one_rank_lacks_limits_one_answer(changes, expected):
    got = answers(inventory(facts(), facts(rank=1, **changes)))
    assert got == {word: expected.get(word, "yes") for word in got}


def test_cut_lists_limit_the_transfers_unless_the_hooks_recorded_sizes():
    cut = inventory(facts(), facts(rank=1, lists_cut=True), telemetry=None)
    assert answers(cut)["transfers"] == "partly"


def test_what_no_rank_has_cannot_be_answered():
    bare = facts(num_collectives=0, has_shapes=False, has_memory=False, has_launches=False, has_splits=False)
    got = answers(inventory(bare, replace(bare, rank=1), telemetry=None))
    assert [word for word, answer in got.items() if answer == "no"] == [
        "waits", "hot", "transfers", "products", "memory", "host hold", "run?",
    ]  # fmt: skip


def test_what_could_not_be_read_limits_what_rests_on_it():
    damaged = inventory(facts(), facts(rank=1, is_incomplete=True))
    got = answers(damaged)
    assert [word for word, answer in got.items() if answer == "yes"] == ["clocks", "hot", "run?"]
    assert {answer for answer in got.values() if answer != "yes"} == {"partly"}
    assert all("rank 1" in q.because for q in questions(damaged) if q.answer == "partly")


def test_a_trace_without_events_answers_nothing(tmp_path, capsys):
    (tmp_path / "rank0.json").write_text('{"traceEvents": [')
    assert main(["doctor", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert output.count("no events could be read") == 7
    assert "moescope analyze" not in output


def test_hosts_decide_how_well_clocks_are_known():
    two = (HostFacts("a", (0,)), HostFacts("b", (1,)))
    assert answers(inventory(hosts=two))["clocks"] == "yes"
    assert answers(inventory(hosts=two, telemetry=None))["clocks"] == "partly"
    assert answers(inventory(hosts=(HostFacts(None, (0, 1)),)))["clocks"] == "partly"
    assert answers(inventory(facts()))["clocks"] == "yes"


def late_reduction(rank: int, ahead_us: int) -> TinyRank:
    """One all-reduce of two ranks without a host name, on a clock that runs ahead."""
    made = TinyRank(rank, world_size=2, host=None)
    made.reduce(1_000_000 + 1000 * ahead_us, 20_000, group=[0, 1], seq=0)
    return made


def test_ranks_that_cannot_share_a_clock_are_named_with_what_to_say(tmp_path, capsys):
    folder = write([late_reduction(0, 0), late_reduction(1, 700)], tmp_path / "run")
    assert main(["doctor", str(folder)]) == 0
    assert "name the ranks that share a host: --hosts 0,1\n" in capsys.readouterr().out
    held = take_inventory(folder)
    (clocks,) = (asked for asked in questions(held) if "clocks" in asked.question)
    assert clocks.answer == "no"
    assert clocks.because.startswith("1 of 1 collectives of host unnamed end on one rank up to 680 µs before another")
    assert answers(take_inventory(folder, hosts=((0,), (1,))))["clocks"] == "partly"
    assert main(["doctor", str(folder), "--hosts", "0,1"]) == 0
    out = capsys.readouterr().out
    assert "do not share a clock" not in out
    assert "host1: rank 1" in out


def test_ranks_that_can_share_a_clock_are_left_alone(tmp_path):
    folder = write([late_reduction(0, 0), late_reduction(1, 15)], tmp_path / "run")
    assert take_inventory(folder).contradictions == ()


def test_every_unanswered_question_says_how_to_record_it():
    bare = facts(steps=(), num_device_events=0, num_collectives=0, sizes="none", has_splits=False, has_shapes=False,
                 has_memory=False, has_launches=False, has_ranges=False)  # fmt: skip
    for question in questions(inventory(bare, telemetry=None, missing_ranks=(1,))):
        assert question.because
        assert question.answer == "yes" or question.how_to_record


def test_text_of_a_large_folder_stays_on_two_screens():
    damaged = facts(rank=40, problems=("cut off",), file="\x1b[2J" + "x" * 80)
    traces = (*(facts(rank=rank) for rank in range(64) if rank != 40), damaged)
    held = inventory(*traces, problems=tuple(f"problem {i}" for i in range(30)), missing_ranks=(64,), world_size=65)
    stream = io.StringIO()
    print_inventory(held, questions(held), Console(file=stream, width=100, highlight=False, markup=False))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 75
    assert "\x1b" not in stream.getvalue()
    assert any(line.split()[:1] == ["40"] for line in lines)
    assert "and 20 further problems: see --json" in lines


def test_json(tmp_path, capsys):
    write_trace(tmp_path, 0)
    write_trace(tmp_path, 1)
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["ok"], answer["world_size"]) == ("moescope.inventory/1", True, 2)
    assert [trace["rank"] for trace in answer["traces"]] == [0, 1]
    assert len(answer["questions"]) == len(RULES)


@pytest.mark.parametrize("built", [True, False])
def test_a_reader_without_its_compiled_part_is_told(built, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compiled, "is_available", lambda: built)
    write_trace(tmp_path, 0)
    assert main(["doctor", str(tmp_path)]) == 0
    assert ("compiled part of the reader" in capsys.readouterr().out) != built


@pytest.mark.parametrize("as_json", [True, False])
def test_nothing_readable_ends_with_3(tmp_path, capsys, as_json):
    (tmp_path / "notes.json").write_text('{"hello": "world"}')
    for path in (tmp_path, tmp_path / "absent"):
        assert main(["doctor", str(path), *(["--json"] if as_json else [])]) == 3
        out, err = capsys.readouterr()
        message = json.loads(out)["error"]["message"] if as_json else err
        assert str(path) in message


@recorded
@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("dlrm8_clock", {"waits": "yes", "clocks": "no"}),
        ("dlrm8", {"waits": "yes", "hot": "no", "clocks": "partly"}),
        ("gloo_moe_ep4", {"waits": "yes", "hot": "partly", "memory": "yes", "clocks": "yes", "host hold": "no"}),
        ("sampled_2_of_128", {"waits": "partly"}),
        ("cpu_only", {"waits": "no", "host hold": "no"}),
        ("b200_eager", {"go?": "partly", "waits": "no", "transfers": "yes"}),
    ],
)
def test_recorded_folders(folder, expected, tmp_path, capsys):
    for file in (TRACES / folder).iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert main(["doctor", str(tmp_path)]) == 0
    assert "What this answers" in capsys.readouterr().out
    got = answers(take_inventory(tmp_path))
    assert {word: got[word] for word in expected} == expected
