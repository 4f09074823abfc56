"""No imports go in circles, and the product needs no experiment."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def modules(folder: str) -> dict[str, Path]:
    """By name, all modules below a folder of the checkout."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / folder).rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imports(path: Path) -> Iterator[str]:
    """What a module imports anywhere, TYPE_CHECKING and functions included; of `from`, what it names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_imports_go_in_circles() -> None:
    ours = {**modules("loadtest"), **modules("experiments")}
    TopologicalSorter({name: set(imports(path)) & set(ours) - {name} for name, path in ours.items()}).prepare()


def test_what_users_run_needs_no_experiment() -> None:
    needed = {
        name
        for folder in ("app", "loadtest")
        for name, path in modules(folder).items()
        if any(link.split(".")[0] == "experiments" for link in imports(path))
    }
    assert needed == set()
