"""From a folder to an analysis: what bad input leads to, what hosts mean, and that stored results are the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from tiny_moe import balanced, play
from tiny_trace import BASE_NS, TinyRank, write

from moescope.errors import DataMissingError, ExitCode, InputUnreadableError
from moescope.views import build, cache
from moescope.views.build import analyze
from moescope.views.json import to_json


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two steps of the tiny MoE job."""
    return write(play([balanced(0), balanced(1)], pace={2: 1.5}), tmp_path / "job")


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadableError) as caught:
        analyze(tmp_path)
    assert caught.value.exit_code == ExitCode.UNREADABLE
    assert caught.value.hint


def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadableError, match="does not exist"):
        analyze(tmp_path / "nowhere")


def test_a_folder_without_traces_says_what_it_holds_instead(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"learning_rate": 1}')
    with pytest.raises(InputUnreadableError):
        analyze(tmp_path)


def test_a_file_cut_short_is_used_as_far_as_it_goes_and_the_loss_is_said(job: Path) -> None:
    file = job / "rank1.json"
    text = file.read_text()
    file.write_text(text[: len(text) // 2])
    analysis = analyze(job, cache=False)
    assert {row.rank for row in analysis.ranks} == {0, 1, 2, 3}
    incomplete = next(finding for finding in analysis.findings if finding.code == "incomplete-input")
    assert "rank1.json" in incomplete.claim
    assert any("rank1.json" in entry.what for entry in analysis.missing)


def test_two_files_of_one_rank_and_time_are_said_and_not_added_up(job: Path) -> None:
    clean = analyze(job, cache=False)
    document = json.loads((job / "rank1.json").read_text())
    (job / "copy_of_rank1.json").write_text(json.dumps(document, indent=1))
    analysis = analyze(job, cache=False)
    assert any(finding.code == "incomplete-input" for finding in analysis.findings)
    assert [row.parts_ns for row in analysis.ranks] == [row.parts_ns for row in clean.ranks]
    assert len(analysis.collectives) == len(clean.collectives)


def test_a_missing_rank_is_named(job: Path) -> None:
    (job / "rank3.json").unlink()
    analysis = analyze(job, cache=False)
    assert analysis.world_size == 4
    assert {row.rank for row in analysis.ranks} == {0, 1, 2}
    finding = next(finding for finding in analysis.findings if finding.code == "incomplete-input")
    assert finding.evidence["missing_ranks"] == [3]
    assert any("1 of 4 ranks (ranks 3)" in entry.what for entry in analysis.missing)


def test_a_single_rank_has_parts_but_no_waits(job: Path) -> None:
    analysis = analyze(job / "rank2.json", cache=False)
    assert {row.rank for row in analysis.ranks} == {2}
    assert all(sum(row.parts_ns.values()) == row.window_ns for row in analysis.ranks)
    assert sum(wait.arrival_wait_ns for wait in analysis.waits) == 0
    assert analysis.causes == ()


def test_ranks_that_share_no_step_are_analysed_side_by_side(tmp_path: Path) -> None:
    first, second = TinyRank(0, 2), TinyRank(1, 2)
    for step, rank in enumerate((first, second)):
        rank.step(step, 0, 1000)
        rank.kernel("sgemm", 0, 500, launched=0)
    analysis = analyze(write([first, second], tmp_path), cache=False)
    assert [(row.rank, row.step) for row in analysis.ranks] == [(0, 0), (1, 1)]
    assert [step.num_ranks for step in analysis.steps] == [1, 1]


def test_a_trace_without_steps_is_one_step_and_that_is_said(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.kernel("sgemm", 0, 500, launched=0)
    analysis = analyze(write([rank], tmp_path), cache=False)
    assert [(step.step, step.window_ns, step.start_ns) for step in analysis.steps] == [(0, 500, BASE_NS)]
    assert any(entry.what == "step markers" for entry in analysis.missing)


def test_two_windows_of_one_rank_are_one_rank(tmp_path: Path) -> None:
    """The profiler ran twice: steps 3 and 8, a file each."""
    for number, start in ((3, 0), (8, 5_000_000)):
        rank = TinyRank(0, 1)
        rank.step(number, start, 1000)
        rank.kernel("sgemm", start, 400, launched=start)
        write([rank], tmp_path, name=f"step{number}_rank{{rank}}.json")
    analysis = analyze(tmp_path, cache=False)
    assert [(row.rank, row.step, row.window_ns) for row in analysis.ranks] == [(0, 3, 1000), (0, 8, 1000)]
    assert analysis.ranks[0].unions_ns.compute == 800
    assert [source.window for source in analysis.sources] == [0, 1]


def test_hosts_told_by_the_user_come_before_those_in_the_files(job: Path) -> None:
    analysis = analyze(job, hosts=((0, 1), (2, 3)), cache=False)
    assert [(clock.host, clock.ranks) for clock in analysis.clock] == [("host0", (0, 1)), ("host1", (2, 3))]
    assert {row.rank: row.host for row in analysis.ranks} == {0: "host0", 1: "host0", 2: "host1", 3: "host1"}


def test_ranks_left_out_of_the_hosts_share_one(job: Path) -> None:
    analysis = analyze(job, hosts=((0,),), cache=False)
    assert {clock.host: clock.ranks for clock in analysis.clock} == {"host0": (0,), "other": (1, 2, 3)}


def test_hosts_of_ranks_that_are_not_there_are_an_error(job: Path) -> None:
    with pytest.raises(DataMissingError, match=r"ranks \[7, 8\], but the traces are of ranks \[0, 1, 2, 3\]") as caught:
        analyze(job, hosts=((7,), (8,)), cache=False)
    assert (caught.value.exit_code, caught.value.code) == (ExitCode.DATA_MISSING, "hosts-unknown")


def test_progress_counts_every_rank(job: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    analyze(job, cache=False, progress=lambda *step: seen.append(step))
    assert [step for step in seen if step[2].startswith("rank ")][-1] == (4, 4, "rank 3")


def test_a_second_look_gives_the_same_without_reading_the_traces(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = analyze(job)
    monkeypatch.setattr(build, "open_directory", lambda *_args, **_options: pytest.fail("the traces were read again"))
    second = analyze(job)
    assert second == first
    assert to_json(second, ("collectives", "load", "memory")) == to_json(first, ("collectives", "load", "memory"))


def stored(job: Path) -> list[Path]:
    return sorted((job / ".moescope").rglob("analysis-*.json"))


@pytest.mark.parametrize("content", [b"", b'{"name": 3}', b"\xff\x00"])
def test_a_damaged_result_is_made_again(job: Path, content: bytes) -> None:
    first = analyze(job)
    (file,) = stored(job)
    whole = file.read_bytes()
    file.write_bytes(content)
    assert analyze(job) == first
    assert file.read_bytes() == whole


def test_other_options_and_changed_traces_are_other_results(job: Path) -> None:
    plain = analyze(job)
    assert analyze(job, hosts=((0, 1), (2, 3))) != plain
    assert len(stored(job)) == 2
    (job / "rank3.json").unlink()
    assert {row.rank for row in analyze(job).ranks} == {0, 1, 2}
    write(play([balanced(0), balanced(1)])[3:], job)
    assert [cause for cause in analyze(job).causes if cause.cost_ns_per_step] != []


def test_a_folder_that_moved_knows_its_new_place(job: Path, tmp_path: Path) -> None:
    before = analyze(job)
    moved = tmp_path / "elsewhere"
    shutil.copytree(job, moved)
    after = analyze(moved)
    assert (after.name, after.path) == ("elsewhere", str(moved))
    assert dataclasses.replace(after, name=before.name, path=before.path) == before


def test_one_folder_by_two_paths_is_one_result(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = analyze(job)
    monkeypatch.chdir(job.parent)
    assert analyze(Path("job")) == dataclasses.replace(whole, path="job")
    assert len(stored(job)) == 1


def test_nothing_is_kept_when_asked_not_to(job: Path) -> None:
    analyze(job, cache=False)
    assert stored(job) == []


def test_a_result_that_cannot_be_written_is_given_all_the_same(
    job: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(cache, "store_folder", lambda _base: (blocked / "below", True))
    assert analyze(job).world_size == 4
