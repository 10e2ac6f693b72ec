"""The same traces give the same answer, byte for byte, in every process: ties are not broken by chance."""

import shutil
import subprocess
import sys
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PARTS = "collectives,load,gemms,memory,host,library,telemetry"


def outcomes(command: list[str], written: Path | None = None) -> set[bytes]:
    """What three fresh processes print, or write."""
    found = set()
    for _ in range(3):
        run = subprocess.run([sys.executable, "-m", "moescope", *command], capture_output=True, check=True)
        found.add(run.stdout if written is None else written.read_bytes())
    return found


def test_analyze_and_report_repeat_themselves(tmp_path: Path) -> None:
    folder, page = tmp_path / "run", tmp_path / "report.html"
    shutil.copytree(SAMPLES / "two-hosts", folder, ignore=shutil.ignore_patterns(".moescope"))
    assert len(outcomes(["analyze", str(folder), "--json", "--no-cache", "--with", PARTS])) == 1
    assert len(outcomes(["report", str(folder), "-o", str(page), "--no-cache", "--force"], page)) == 1
