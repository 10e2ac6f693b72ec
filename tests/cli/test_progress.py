"""Progress shows after a second, transient on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import io

import pytest

from moescope.cli import progress as module
from moescope.cli.progress import progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO) -> str:
    with progress("Reading", stream) as show:
        for done in range(3):
            show(done + 1, 3, f"rank{done}\x1b[2J")
        module.threading.Event().wait(0.1)
        show(3, 3, "rank2")
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_quick_work_shows_nothing(stream):
    assert run(stream()) == ""


def test_long_work_writes_plain_lines(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.0)
    assert run(io.StringIO()) == "Reading: 3 of 3, rank2\\x1b[2J\nReading: 3 of 3, rank2\n"


def test_long_work_draws_a_bar_on_a_terminal_and_takes_it_away(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    text = run(Terminal())
    assert "3/3" in text
    assert "\x1b[2J" not in text
    assert text.endswith("\x1b[2K")
