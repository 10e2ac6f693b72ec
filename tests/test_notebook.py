"""The notebook in docs runs from top to bottom, shows what it says and draws a figure for every view."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
SECONDS = 240


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    """The notebook as a reader has it after running all cells, beside a copy of the sample."""
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "sample_traces/two-hosts", place / "sample_traces/two-hosts")
    (place / "docs").mkdir()
    notebook = nbformat.read(ROOT / "docs/notebook.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(place / "docs")}})
    return client.execute()


def output_of(executed: nbformat.NotebookNode, source: str) -> str:
    cell = next(cell for cell in executed.cells if source in cell.source)
    return "".join(out.get("text", "") + out.get("data", {}).get("text/plain", "") for out in cell.outputs)


def test_every_cell_runs_and_figures_are_plotly(executed: nbformat.NotebookNode) -> None:
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    drawn = [out for cell in code for out in cell.outputs if "application/vnd.plotly.v1+json" in out.get("data", {})]
    assert len(drawn) >= 12


def test_the_verdict_names_the_slow_rank(executed: nbformat.NotebookNode) -> None:
    assert "ank 5" in output_of(executed, "run.findings").splitlines()[0]


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(ROOT / "docs/notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
