"""The pure parts of the dashboard's scripts, by ``node --test``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "js"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_pure_scripts() -> None:
    tests = [str(path) for path in sorted(SCRIPTS.glob("*.test.js"))]
    done = subprocess.run(["node", "--test", *tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "# fail 0" in done.stdout
