"""The documentation says what the program does: pages for all commands and findings, live links, examples that hold.

``MOESCOPE_UPDATE_DOCS=1 pytest tests/test_docs.py`` writes the current ``--help`` into the command pages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import click
import pytest

from moescope.cli import COMMANDS, cli
from moescope.errors import ExitCode
from moescope.findings import rules, rules_host, scale
from moescope.findings.codes import FINDING_CODES
from moescope.findings.rules import RULES
from moescope.views import compare, inventory, model, questions

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
HELP = re.compile(r"(<!-- help -->\n```\n)(.*?)(```)", re.DOTALL)
FENCE = re.compile(r"^(<!-- run -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
UNDOCUMENTED_KEYS = {"provenance"}
"""Fields of the model that the JSON does not print."""
RESERVED = "No rule reports this code yet"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def load_command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def help_of(name: str) -> str:
    """Return the help page of a command at a fixed width."""
    settings = {"help_option_names": ["-h", "--help"], "terminal_width": 90, "max_content_width": 90}
    parent = click.Context(cli, info_name="moescope", **settings)
    return load_command(name).get_help(click.Context(load_command(name), parent=parent, info_name=name, **settings))


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(text: str) -> Iterator[str]:
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"\]\(([^)\s]+)\)", prose)


def examples() -> Iterator[tuple[Path, str, str]]:
    """Yield page, language and text of every example that is marked to be run."""
    for page in PAGES:
        for marked, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if marked:
                yield page, language, text


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield page and line of every ``moescope ...`` in a fenced example."""
    for page in PAGES:
        for _, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("sh", ""):
                yield from ((name_of(page), line) for line in text.splitlines() if line.startswith("moescope "))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_that_holds_its_help(name: str) -> None:
    page = DOCS / "commands" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    expected = help_of(name) + "\n"
    if os.environ.get("MOESCOPE_UPDATE_DOCS"):
        text = HELP.sub(lambda match: match[1] + expected + match[3], text)
        page.write_text(text, encoding="utf-8")
    shown = HELP.search(text)
    assert shown is not None
    assert shown[2] == expected


def test_every_command_page_has_a_command() -> None:
    assert {page.stem for page in (DOCS / "commands").glob("*.md")} == set(COMMANDS)


def test_every_finding_has_a_page_and_every_page_a_finding() -> None:
    assert {page.stem for page in (DOCS / "findings").glob("*.md")} == set(FINDING_CODES)


@pytest.mark.parametrize("code", FINDING_CODES)
def test_finding_page_says_what_it_must(code: str) -> None:
    text = (DOCS / "findings" / f"{code}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {code}\n")
    for heading in ("What it means", "How the cost is computed", "What to try", "What would make it wrong"):
        assert f"## {heading}\n" in text
    assert f"](findings/{code}.md) | {FINDING_CODES[code]} |" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_finding_pages_state_the_thresholds_of_the_rules() -> None:
    percent = "{:.0%}".format
    stated = {
        "load-imbalance": (percent(scale.NOTICEABLE), percent(scale.GRAVE), f"{rules.FLOOR_FACTOR:.1f}"),
        "slow-rank": (percent(scale.NOTICEABLE),),
        "slow-network": (percent(scale.NOTICEABLE), percent(scale.GRAVE)),
        "volume-imbalance": (percent(scale.NOTICEABLE), percent(scale.GRAVE)),
        "pipeline-bubbles": (percent(scale.NOTICEABLE),),
        "exposed-communication": (percent(rules.EXPOSED_SHARE),),
        "host-bound": (percent(scale.NOTICEABLE), percent(rules_host.HOST_SHARE)),
        "device-idle": (percent(rules_host.HOST_SHARE),),
        "memory-peak": (percent(rules.MEMORY_NEAR_FULL), f"{rules.MEMORY_SPREAD:.1f}"),
        "balanced": (percent(scale.NOTICEABLE),),
    }
    for code, values in stated.items():
        text = (DOCS / "findings" / f"{code}.md").read_text(encoding="utf-8").replace(" %", "%")
        assert [value for value in values if value not in text] == [], code


def test_pages_admit_which_findings_no_rule_reports() -> None:
    modules = {Path(sys.modules[rule.__module__].__file__ or "").parent for rule in RULES}
    source = "".join(
        path.read_text(encoding="utf-8") for room in modules for path in room.glob("*.py") if path.stem != "codes"
    )
    reported = {code for code in FINDING_CODES if f'"{code}"' in source}
    reserved = {
        code for code in FINDING_CODES if RESERVED in (DOCS / "findings" / f"{code}.md").read_text(encoding="utf-8")
    }
    assert reserved == set(FINDING_CODES) - reported


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in links(text):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{name_of(page)}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{name_of(page)}: {link}"


def test_every_page_is_reached_from_the_readme() -> None:
    seen, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        paths = (link.partition("#")[0] for link in links(page.read_text(encoding="utf-8")) if "://" not in link)
        queue += [(page.parent / path).resolve() for path in paths if path]
    unreached = [name_of(page) for page in PAGES if page not in seen and "decisions" not in page.parts]
    assert unreached == []


@pytest.mark.parametrize(("page", "line"), list(command_lines()))
def test_example_command_lines_are_valid(page: str, line: str) -> None:
    words = shlex.split(line.partition("    ")[0], comments=True)[1:]
    words = words[: next((i for i, word in enumerate(words) if word in ("|", ">")), len(words))]
    assert words[0] in COMMANDS, f"{page}: {line}"
    try:
        # Within the group, whose names of the help option a command keeps from its first context on.
        parent = click.Context(cli, info_name="moescope", **cli.context_settings)
        load_command(words[0]).make_context(words[0], words[1:], parent=parent)
    except click.ClickException as error:
        pytest.fail(f"{page}: {line}: {error.format_message()}")


@pytest.mark.parametrize(
    ("page", "language", "text"), list(examples()), ids=lambda value: name_of(value) if isinstance(value, Path) else ""
)
def test_examples_run(page: Path, language: str, text: str) -> None:
    command = {"python": [sys.executable, "-c", text], "sh": ["bash", "-euc", text]}[language]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name_of(page)}: {done.stderr}"
    assert done.stdout.strip()


def test_exit_codes_page_lists_every_code() -> None:
    text = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    listed = {int(code): name for code, name in re.findall(r"^\| (\d+) \| ([\w-]+) \|", text, re.MULTILINE)}
    assert listed == {code.value: code.name.lower().replace("_", "-") for code in ExitCode}


def test_json_page_names_every_key() -> None:
    documented = set(re.findall(r'"(\w+)"', (DOCS / "json.md").read_text(encoding="utf-8")))
    kinds = [
        kind
        for module in (model, inventory, questions, compare)
        for kind in vars(module).values()
        if is_dataclass(kind)
    ]
    ours = [kind for kind in kinds if re.match(r"moescope\.(views|findings)\.", kind.__module__)]
    names = {field.name for kind in ours for field in fields(kind)} - UNDOCUMENTED_KEYS
    assert {"claim", "because", "arrival_wait_ns"} <= names
    assert names - documented == set()


def test_json_of_an_error_in_the_exit_codes_page_is_json() -> None:
    text = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    answer = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    assert set(answer["error"]) == {"code", "message", "hint"}
