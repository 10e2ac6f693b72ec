"""Links in a served folder: those that stay inside are followed, those that lead out are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from analysis_fixture import bare
from moescope_app.links import inside_only, leading_outside

from moescope.errors import MoescopeError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    (made / "traces").mkdir(parents=True)
    (made / "traces/rank0.json").write_text("{}")
    (made / "rank0.json").symlink_to(made / "traces/rank0.json")
    (tmp_path / "secret.json").write_text("{}")
    return made


def test_links_that_stay_inside_are_fine(folder: Path, tmp_path: Path) -> None:
    assert leading_outside(folder) is None
    (tmp_path / "alias").symlink_to(folder)
    assert leading_outside(tmp_path / "alias") is None
    assert inside_only(lambda *_: bare())(folder, print) == bare()


@pytest.mark.parametrize("target", ["../secret.json", "..", "../nowhere"])
def test_links_that_lead_out_are_refused(folder: Path, target: str) -> None:
    (folder / "traces/rank1.json").symlink_to(folder / target)
    with pytest.raises(MoescopeError, match=r"traces/rank1\.json is a link that leads out") as caught:
        inside_only(lambda *_: bare())(folder, print)
    assert "--follow-links" in caught.value.hint
