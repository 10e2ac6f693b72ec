"""What others can put into a folder: pipes, links, names that are no text, numbers that nothing can have."""

# ruff: noqa: E501 - one line for each case

import json
import os
import socket
from pathlib import Path

import pytest
from trace_zoo import event, open_files, told, trace

from moescope.intake import MAX_DEPTH, MOST_RANKS, lines, list_files, read_json, valid_text
from moescope.trace import fingerprint, open_directory

K = event()
ONE = "0.0 compute 1000+2000"


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


NO_FILES = {
    "a pipe": os.mkfifo,
    "a socket": listen,
    "a link to nowhere": lambda path: path.symlink_to(path.with_name("absent")),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.symlink_to(path.parent, target_is_directory=True),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_opened_and_said(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    NO_FILES[kind](Path("rank1.json"))
    directory = open_files(tmp_path, {"rank0.json": trace(K)})
    expected = ONE if kind == "a folder" else f"{ONE} ! unreadable"
    assert told(directory) == expected
    assert fingerprint(tmp_path)
    assert [path.name for path in list_files(tmp_path, (".json",)).files] == ["rank0.json"]


def test_a_name_that_is_no_text_is_shown_with_its_bytes_escaped(tmp_path: Path) -> None:
    name = os.fsdecode(b"rank0_\xff\xe9.json")
    (tmp_path / name).write_text(trace(K))
    (one,) = open_directory(tmp_path).ranks
    assert one.file == r"rank0_\xff\xe9.json"
    assert valid_text("\ud800x\udcff") == r"\ud800x\xff"


INFO = {
    "rank beyond 64 bits": (f'{{"distributedInfo": {{"rank": {10**30}}}, "traceEvents": [{K}]}}', "odd-metadata"),
    "rank beyond any job": (trace(K, rank=MOST_RANKS + 1), "odd-metadata"),
    "world beyond any job": (trace(K, distributedInfo={"rank": 0, "world_size": 10**9}), "odd-metadata"),
    "base time beyond 64 bits": (trace(K, baseTimeNanoseconds=2**63), "bad-base"),
    "multiprocessors of 400 digits": (trace(K, deviceProperties=[{"numSms": 10**400}]), "odd-metadata"),
    "memory beyond 64 bits": (trace(K, deviceProperties=[{"totalGlobalMem": 2**63}]), "odd-metadata"),
    "infinite": (trace(K, x=1).replace('"x": 1', '"x": 1e999'), "odd-metadata"),
    "host name of half a character": (trace(K, host_name="\ud800"), "odd-metadata"),
    "device of half a character": (trace(K, deviceProperties=[{"name": "\udc80"}]), "odd-metadata"),
    "nested too deep": (trace(K, x=1).replace('"x": 1', f'"x": {"[" * 10**5}{"]" * 10**5}'), "metadata-damaged"),
    "group of ranks that cannot be": (trace(K, distributedInfo={"rank": 0, "pg_config": [{"pg_name": "1", "ranks": [10**12]}]}), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", INFO)
def test_metadata_that_cannot_be(case: str, tmp_path: Path) -> None:
    content, code = INFO[case]
    directory = open_files(tmp_path, {"t.json": content})
    assert told(directory) == (f"{ONE} ! {code}" if code else ONE)
    (one,) = directory.ranks
    json.dumps([one.host, one.device, one.info], ensure_ascii=False, allow_nan=False).encode()
    assert one.rank <= MOST_RANKS
    assert (one.world_size or 0) <= MOST_RANKS
    assert abs(one.info.get("baseTimeNanoseconds", 0)) < 2**63
    assert all(group.ranks == () for group in one.groups.values())


def test_a_rank_in_a_name_that_no_job_has_is_none(tmp_path: Path) -> None:
    files = {"rank0.json": trace(K, rank=None), "rank99999999999999999999.json": trace(K, rank=None)}
    assert told(open_files(tmp_path, files)) == f"{ONE} ! rank-unknown"


def test_documents_become_plain_data() -> None:
    found, odd = read_json(
        b'\xef\xbb\xbf{"a": [NaN, 1e999, %d, 18446744073709551615, "\\ud800", "\\ud83d\\ude00"]}' % 10**50
    )
    assert found == {"a": [None, None, None, 2**64 - 1, "\ufffd", "\U0001f600"]}
    assert (odd.numbers, odd.texts) == (3, 1)
    for depth, holds in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False), (10**5, False)):
        text = "[" * depth + "]" * depth
        if holds:
            read_json(text)
        else:
            with pytest.raises(ValueError, match="nested"):
                read_json(text)


def test_lines_longer_than_the_bound_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"ab\n\n" + b"x" * 25 + b"\ncd\n" + b"y" * 30)
    assert list(lines(file, 8)) == [b"ab\n", b"x" * 8, b"cd\n", b"y" * 8]
