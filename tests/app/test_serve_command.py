"""``moescope serve`` from the command line, up to the point where it would serve."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from moescope_app.serving import listen
from trace_fixture import write_trace

from moescope.cli import main
from moescope.errors import MoescopeError


def test_another_address_needs_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path), "--host", "0.0.0.0"]) == 2
    assert "--token" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_unreadable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "nowhere")]) == 3
    assert "does not exist" in capsys.readouterr().err


def test_a_taken_port_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tmp_path), "--port", port]) == 2
        assert "--port" in capsys.readouterr().err


def test_foreign_address_is_a_clear_error() -> None:
    with pytest.raises(MoescopeError, match="Can't listen"):
        listen("203.0.113.7", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_a_signal_whoever_holds_connections_open(number: int, tmp_path: Path) -> None:
    write_trace(tmp_path, 0)
    command = [sys.executable, "-m", "moescope", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            address = next(word for word in line.split() if word.startswith("http://"))
            place = urllib.parse.urlsplit(address)
            idle = [socket.create_connection((place.hostname, place.port)) for _ in range(300)]  # that never ask
            for one in idle[::2]:
                one.sendall(b"GET / HTTP/1.1\r\nHost:")
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert answer.status == 200
                assert "moescope" in answer.read().decode()
            for one in idle:
                one.close()
        finally:
            process.send_signal(number)
            try:
                process.wait(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 0  # a signal is how serving ends
        assert "Traceback" not in process.stderr.read()
