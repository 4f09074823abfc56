"""Experiments are run, JSON, page: what makes a page runs nothing, and no imports go in circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Beginnings of names, of ours and others: what starts processes, servers or simulations, or loads a model.
RUNNERS = (
    "subprocess", "multiprocessing", "concurrent", "asyncio", "socket", "torch", "uvicorn", "locust",
    "app.bench.", "app.engine", "app.main", "app.models", "app.scheduler.optimal", "app.scheduler.scheduler",
    "app.server", "app.sim", "loadtest.common.command", "loadtest.common.experiment", "experiments.common.live",
    "experiments.common.processes", "loadtest.common.servers", "experiments.common.simulated",
)  # fmt: skip


def modules(folder: str) -> dict[str, Path]:
    """By name, all modules below a folder of the checkout."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


OURS = {**modules("loadtest"), **modules("experiments")}
KNOWN = {**modules("app"), **OURS}


def imports(source: str, name: str, package: bool, known: dict[str, Path]) -> Iterator[str]:
    """The modules that a module imports anywhere, TYPE_CHECKING and functions included; of `from`, what it names."""
    parts = name.split(".") if package else name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}" if f"{module}.{alias.name}" in known else module


def graph(known: dict[str, Path]) -> dict[str, set[str]]:
    return {
        name: set(imports(path.read_text(encoding="utf-8"), name, path.stem == "__init__", known))
        for name, path in known.items()
    }


GRAPH = graph(KNOWN)


def runners(start: str, links: dict[str, set[str]]) -> list[str]:
    """Ways from a module to something that runs, as `a > b > subprocess`."""
    found, ways = [], [[start]]
    seen = {start}
    while ways:
        way = ways.pop()
        for name in sorted(links.get(way[-1], ())):
            if name in seen:
                continue
            seen.add(name)
            if f"{name}.".startswith(tuple(f"{runner.removesuffix('.')}." for runner in RUNNERS)):
                found.append(" > ".join([*way, name]))
            elif name in links:
                ways.append([*way, name])
    return found


def circles(links: dict[str, set[str]]) -> list[str]:
    """Each module that reaches itself, with one way back."""
    found = []
    for start in links:
        ways, seen = [[start]], set()
        while ways:
            way = ways.pop()
            for name in sorted(links.get(way[-1], ())):
                if name == start:
                    found.append(" > ".join([*way, name]))
                    ways.clear()
                    break
                if name in links and name not in seen:
                    seen.add(name)
                    ways.append([*way, name])
    return found


def pages() -> list[str]:
    """What turns figures into text and plots, and the data types between."""
    last = ("page", "data", "tables", "plots", "markdown", "samples")
    return [name for name in OURS if name.rpartition(".")[2].rpartition("_")[2] in last]


def test_what_makes_a_page_runs_nothing() -> None:
    assert len(pages()) > 20
    assert [way for name in pages() for way in runners(name, GRAPH)] == []


def test_no_imports_go_in_circles() -> None:
    assert circles({name: GRAPH[name] for name in OURS}) == []


def test_what_users_run_needs_no_experiment() -> None:
    """And no experiment is imported by the product: `loadtest/` and `app/` stand without `experiments/`."""
    assert [
        name
        for name in GRAPH
        if not name.startswith("experiments.") and any(link.startswith("experiments") for link in GRAPH[name])
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "from concurrent.futures import ThreadPoolExecutor",
        "def f():\n    from app.sim.fleet import run",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .runner import Scale",
        "from . import runner",
        "from loadtest.common import servers",
    ],
)
def test_a_page_that_runs_something_is_found(source: str) -> None:
    known = {**KNOWN, "loadtest.bench.runner": Path("runner.py")}
    links = {**GRAPH, "loadtest.bench.runner": {"asyncio"}}
    links["loadtest.bench.x_page"] = set(imports(source, "loadtest.bench.x_page", False, known))
    assert len(runners("loadtest.bench.x_page", links)) == 1


def test_a_circle_is_found() -> None:
    links = {"a": {"b"}, "b": {"c", "os"}, "c": {"a"}, "d": {"a"}}
    assert circles(links) == ["a > b > c > a", "b > c > a > b", "c > a > b > c"]
