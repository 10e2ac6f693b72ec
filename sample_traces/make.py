"""Make the sample runs again, in place: python sample_traces/make.py"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TINY = ("train", "--ranks", "4", "--preset", "tiny", "--profile")
RUNS = {
    "balanced": TINY,
    "skewed": (*TINY, "--router-bias-rank", "2", "--router-bias", "2"),
    "two-hosts": (
        "simulate", "--ranks", "8", "--ranks-per-host", "4", "--layers", "4", "--steps", "2",
        "--fault", "slow_rank:rank=5", "--fault", "clock",
    ),
}  # fmt: skip


def main() -> None:
    """Run every command from the repository's root, so that run.json holds no path of this machine."""
    for name, arguments in RUNS.items():
        command = [sys.executable, "-m", "moescope", *arguments, "--force", "--out", f"{HERE.name}/{name}"]
        subprocess.run(command, check=True, cwd=HERE.parent)


if __name__ == "__main__":
    main()
