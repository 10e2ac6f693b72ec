"""docs/reading.md names every problem that reading can report."""

import re
from pathlib import Path

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
