"""What makes a page runs nothing, no imports go in circles, and the product needs no experiment."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from test_pages import MODULES

ROOT = Path(__file__).resolve().parents[2]
#: What starts processes, servers or simulations, or loads a model.
RUNNERS = ("asyncio", "subprocess", "torch", "uvicorn", "locust", "app.engine", "app.main", "app.models", "app.sim")


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


def test_what_makes_a_page_runs_nothing() -> None:
    """All page modules are imported by a fresh interpreter; the plots are not, which each page imports to draw them."""
    code = f"import sys, {', '.join(MODULES)}; print([name for name in {RUNNERS} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
