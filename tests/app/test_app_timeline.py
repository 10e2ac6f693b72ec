"""The timeline's routes on real traces, through Flask's test client."""

from __future__ import annotations

import json
import time

import pytest
from flask.testing import FlaskClient
from moescope_app.runs import Runs
from moescope_app.server import create_app
from trace_fixture import write_trace

from moescope.views.build import analyze, open_timeline

HOST = {"Host": "127.0.0.1:8050"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    folder = tmp_path_factory.mktemp("traces") / "two"
    folder.mkdir()
    for rank in range(2):
        write_trace(folder, rank)
    runs = Runs(
        [folder],
        lambda path, show: analyze(path, progress=show),
        open_timeline,
    )
    runs.ask(runs.first())
    deadline = time.monotonic() + 60
    while runs.first().status.pending:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return create_app(runs).server.test_client()


def get(client: FlaskClient, path: str, status: int = 200) -> dict:
    answer = client.get(f"/timeline/two/{path}", headers=HOST)
    assert answer.status_code == status, answer.text
    return answer.get_json()


def test_meta_and_lanes(client: FlaskClient) -> None:
    meta = get(client, "meta.json")
    assert meta["ok"]
    assert [rank["rank"] for rank in meta["ranks"]] == [0, 1]
    lanes = get(client, "lanes/0.json")["lanes"]
    assert [lane["title"] for lane in lanes] == ["stream 7", "stream 20", "thread 1"]


def test_tile_is_binary_and_small(client: FlaskClient) -> None:
    key = get(client, "lanes/0.json")["lanes"][0]["key"]
    answer = client.get(f"/timeline/two/tile.bin?first=0&count=100&shift=11&strips=0,1&rows=0:{key}:0", headers=HOST)
    assert answer.mimetype == "application/octet-stream"
    assert answer.data[:4] == b"MST1"
    head = json.loads(answer.data[8 : 8 + int.from_bytes(answer.data[4:8], "little")])
    assert head["rows"][0]["longs"] == 2
    assert len(answer.data) < 2000


def test_slice_at_range_and_search(client: FlaskClient) -> None:
    key = get(client, "lanes/0.json")["lanes"][1]["key"]
    assert get(client, f"slice.json?row=0:{key}:0&position=0&step=1")["start"] == 130_000
    assert len(get(client, "at.json?rank=0&at=31000")["collective"]["members"]) == 2
    assert get(client, "range.json?low=0&high=100000")["ranks"][0]["busy_ns"] == [20_000, 20_000, 51_000, 9_000]
    assert get(client, "search.json?q=gemm")["num_hits"] == 4
    assert get(client, "links.json?low=0&high=200000&least=0")["collectives"] == []  # nobody waits
    assert get(client, "microbatches.json")["microbatches"] == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("meta.json?x=1", "unknown-parameter"),
        ("tile.bin?first=0&count=0&shift=3", "bad-parameter"),
        ("tile.bin?first=0&count=99999999&shift=3", "bad-parameter"),
        ("tile.bin?first=a&count=1&shift=3", "bad-parameter"),
        ("tile.bin?first=0&count=1&shift=99", "bad-parameter"),
        ("tile.bin?first=0&count=1&shift=3&rows=../../etc/passwd", "bad-parameter"),
        ("tile.bin?first=0&count=1&shift=3&strips=" + ",".join(["0"] * 300), "bad-parameter"),
        ("range.json?low=1", "bad-parameter"),
        ("search.json?q=", "bad-parameter"),
        ("links.json?low=0&high=1&least=-1", "bad-parameter"),
        ("slice.json?row=0:x:0&position=0&step=0", "bad-parameter"),
    ],
)
def test_bad_parameters_are_named(client: FlaskClient, path: str, code: str) -> None:
    body = get(client, path, 400)
    assert body["ok"] is False
    assert body["error"]["code"] == code
    assert body["error"]["message"]


@pytest.mark.parametrize("path", ["lanes/7.json", "at.json?rank=7&at=0", "slice.json?row=0:1.0.9:0&position=0&step=0"])
def test_what_is_not_there_is_not_found(client: FlaskClient, path: str) -> None:
    assert get(client, path, 404)["error"]["code"] == "not-found"
