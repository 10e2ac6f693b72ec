"""docs/reading.md names every problem that reading can report, and its table of patterns works."""

import re
from pathlib import Path

from trace_zoo import event, open_files, process, told, trace

from moescope.trace import fingerprint, open_directory, reading_defaults
from moescope.trace.faults import SORTS

ROOT = Path(__file__).parents[2]


def test_every_code_is_documented() -> None:
    documented = dict(
        re.findall(r"^\| `([a-z0-9-]+)` \| (yes|no) \|", (ROOT / "docs" / "reading.md").read_text(), re.MULTILINE)
    )
    sources = [path.read_text() for path in (ROOT / "moescope" / "trace").glob("*.py")]
    of_folders = {code for text in sources for code in re.findall(r'Problem\([^"]*(?:.|\n)*?code="([a-z-]+)"', text)}
    assert of_folders == set(documented) - set(SORTS)
    assert {code: "yes" if sort.loses_data else "no" for code, sort in SORTS.items()}.items() <= documented.items()


def test_the_example_of_a_pattern_table_does_what_it_says(tmp_path: Path) -> None:
    """As an argument, and as what holds for a whole command."""
    table = tmp_path / "mine.toml"
    table.write_text(re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "reading.md").read_text(), re.DOTALL)[0])
    events = (
        event(name="void my_exchange<8>(int*)"),
        event("cpu_op", "2", name="mybackend:broadcast"),
        event(None, "3", pid=9),
        event("my_kernel", "4"),
        process(9, "My Accelerator"),
    )
    plain = open_files(tmp_path / "traces", {"t.json": trace(*events)})
    assert told(plain) == "0.0 compute 1000+2000, cpu_op 2000+2000, other 3000+2000, other 4000+2000 ! unknown-category"
    expected = "0.0 communication 1000+2000, cpu_op/communication 2000+2000, compute 3000+2000, compute 4000+2000"
    assert told(open_directory(tmp_path / "traces", patterns=table)) == expected
    before = fingerprint(tmp_path / "traces")
    with reading_defaults(patterns=table):
        assert told(open_directory(tmp_path / "traces")) == expected
        assert fingerprint(tmp_path / "traces") == fingerprint(tmp_path / "traces", table) != before
