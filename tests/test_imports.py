"""The import rule of docs/architecture.md, and the sizes past which a file or function wants dividing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "moescope": ROOT / "moescope",
    "moescope_hooks": ROOT / "hooks/moescope_hooks",
    "moescope_app": ROOT / "app/moescope_app",
}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 100

CONTRACT = {"errors", "intake", "outputs"}
"""What every room may import."""
LEFT_OF = {
    "errors": set(),
    "intake": set(),
    "outputs": set(),
    "trace": set(),
    "telemetry": {"hooks"},
    "align": {"trace", "telemetry"},
    "attribution": {"trace", "telemetry", "align"},
    "findings": {"trace", "telemetry", "align", "attribution"},
    "views": {"trace", "telemetry", "align", "attribution", "findings"},
    "report": {"trace", "telemetry", "align", "attribution", "findings", "views"},
    "run": {"trace", "telemetry", "align", "attribution", "findings", "views"},
    "app": {"trace", "telemetry", "align", "attribution", "findings", "views"},
    "whatif": {"trace", "telemetry", "align", "attribution", "findings", "views"},
    "crosscheck": {"trace", "attribution"},
    "launch": {"signals"},
    "trainer": {"hooks", "telemetry", "launch"},
    "simulate": {"hooks", "trace"},
    "baseline": {"hooks", "launch"},
    "hooks": set(),
}
"""Room -> the rooms it may import beside itself and the contract. ``cli`` may import all; see below for ``app``."""
ONLY_IN = {"torch": {"hooks", "trainer", "baseline", "launch"}, "dash": {"app"}, "plotly": {"views", "app"}}


def sources() -> list[Path]:
    """Every module of the three packages."""
    return sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the dotted name of a module."""
    package, folder = next((name, folder) for name, folder in PACKAGES.items() if path.is_relative_to(folder))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join([package, *(part for part in parts if part != "__init__")])


def room_of(module: str) -> str:
    """Return the room a module of ours belongs to; the root package and ``__main__`` are the room ``root``."""
    package, *rest = module.split(".")
    if package != "moescope":
        return package.removeprefix("moescope_")
    return rest[0] if rest and not rest[0].startswith("__") else "root"


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Yield every imported module, relative ones resolved, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def violations(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return what breaks the rule in one module, as ``line: what``."""
    room = room_of(module)
    found = {}
    for name, line in imports(ast.parse(source), module, is_package):
        if (reason := _breaks(module, room, name)) is not None:
            found.setdefault(line, f"{line}: {reason}")
    return list(found.values())


def _breaks(module: str, room: str, name: str) -> str | None:
    top = name.split(".", maxsplit=1)[0]
    if top in PACKAGES:
        return _breaks_flow(module, room, name)
    if room not in ONLY_IN.get(top, {room}):
        return f"{top} belongs to {', '.join(sorted(ONLY_IN[top]))} alone"
    if room == "hooks" and top not in {"torch", "polars", *sys.stdlib_module_names}:
        return f"hooks need torch, polars and the standard library alone, not {top}"
    return None


def _breaks_flow(module: str, room: str, name: str) -> str | None:
    target = room_of(name)
    inner = name.removeprefix("moescope.")
    if target == room or any(f"{inner}.".startswith(f"{contract}.") for contract in CONTRACT):
        return None if room != "hooks" or target == "hooks" else "hooks import nothing of moescope"
    if target == "app":
        return None if module == "moescope.cli.serve" else "the app is imported by the serve command alone"
    if room in ("cli", "root"):
        return None
    if target == "root":
        return None if name in ("moescope", "moescope.__version__") and room != "hooks" else f"{name} is no room's"
    if inner == "views" and room != "views":  # ``from moescope.views import model``: judged by its second name
        return None
    return None if target in LEFT_OF[room] else f"{room} stands left of {target}"


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_module_imports_only_what_stands_left_of_it(path: Path) -> None:
    broken = violations(module_name(path), path.read_text(encoding="utf-8"), path.name == "__init__.py")
    assert not broken, f"{path.relative_to(ROOT)}:" + "; ".join(broken)


@pytest.mark.parametrize(
    ("module", "source", "broken"),
    [
        ("moescope.align.match", "from moescope.trace import open_directory", 0),
        ("moescope.align.match", "from moescope.views.build import analyze", 1),
        ("moescope.findings.rules", "from moescope.views.model import Analysis", 1),
        ("moescope.findings.rules", "from moescope.views import build", 1),
        ("moescope.trace.store", "def f():\n    import moescope.align", 1),
        ("moescope.trace.store", "from ..align import clocks", 1),
        ("moescope.views.figures", "import plotly.graph_objects", 0),
        ("moescope.report.page", "import plotly", 1),
        ("moescope.attribution.sweep", "import torch", 1),
        ("moescope_hooks.observe", "import numpy", 1),
        ("moescope_hooks.observe", "import torch.profiler, json", 0),
        ("moescope_hooks.observe", "from moescope.errors import MoescopeError", 1),
        ("moescope.cli.serve", "from moescope_app import serve", 0),
        ("moescope.cli.report", "import moescope_app", 1),
        ("moescope.views.build", "from moescope.cli.text import printable", 1),
        ("moescope.telemetry.read", "from moescope_hooks.schema import STEP", 0),
        ("moescope.trainer.runfile", "from moescope import __version__", 0),
        ("moescope.trainer.runfile", "from moescope import open", 1),
        ("moescope_hooks.observe", "from moescope import __version__", 1),
    ],
)
def test_rule_tells_right_from_wrong(module: str, source: str, broken: int) -> None:
    assert len(violations(module, source)) == broken


def test_contract_imports_the_standard_library_alone() -> None:
    tree = ast.parse((ROOT / "moescope/errors.py").read_text(encoding="utf-8"))
    assert {name.split(".")[0] for name, _ in imports(tree, "moescope.errors", False)} <= sys.stdlib_module_names


def test_third_party_imports_are_declared_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    declared = {re.split(r"[<>=\[]", need)[0].lower() for need in needed}
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()}
    used = {
        name.split(".")[0].lower()
        for path in sources()
        for name, _ in imports(
            ast.parse(path.read_text(encoding="utf-8")), module_name(path), path.name == "__init__.py"
        )
    }
    third_party = used - {*PACKAGES, *sys.stdlib_module_names, "_typeshed"}
    assert {"polars", "click"} <= third_party
    assert third_party - declared == set()
    assert third_party - pinned == set()


def python_files() -> list[Path]:
    """Every Python file of the project."""
    return sorted(
        path for room in ("moescope", "hooks", "app", "tests", "benchmarks") for path in (ROOT / room).rglob("*.py")
    )


def test_no_file_or_function_is_past_its_hard_stop() -> None:
    too_long = []
    for path in python_files():
        source = path.read_text(encoding="utf-8")
        lines = source.count("\n")
        if lines > MAX_FILE_LINES:
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    too_long.append(f"{path.relative_to(ROOT)}: {node.name} has {length} lines")
    assert not too_long, "; ".join(too_long)
