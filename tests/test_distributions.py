"""What is packaged: the server without its client, and the client without what the server needs."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from background import ended
from setuptools import find_packages

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "clients" / "python"
PYTHON = {".py", ".pyc"}


def declared(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_server_is_packaged_without_the_client() -> None:
    packages = find_packages(str(ROOT), **declared(ROOT)["tool"]["setuptools"]["packages"]["find"])
    assert {name.partition(".")[0] for name in packages} == {"app", "loadtest", "planner"}
    modules = declared(ROOT)["tool"]["setuptools"]["py-modules"]
    assert [(ROOT / f"{name}.py").exists() for name in modules] == [True]
    assert declared(ROOT)["project"]["scripts"] == {"starling": f"{modules[0]}:main"}


def test_all_files_that_are_no_code_are_packaged() -> None:
    for package, folder in (("app", "app"), ("loadtest", "loadtest/models")):
        files = {path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in PYTHON}
        assert files
        assert files - packaged_data(package) == set()


def packaged_data(package: str) -> set[Path]:
    globs = declared(ROOT)["tool"]["setuptools"]["package-data"][package]
    return {path for glob in globs for path in (ROOT / package).glob(glob)}


def test_the_client_is_packaged_alone_and_needs_little() -> None:
    told = declared(CLIENT)
    assert told["tool"]["setuptools"]["packages"]["find"]["where"] == ["src"]
    assert find_packages(str(CLIENT / "src")) == ["starling_client"]
    assert sorted(re.split(r"[^a-z]", need)[0] for need in told["project"]["dependencies"]) == ["httpx", "numpy"]
    assert (CLIENT / "src" / "starling_client" / "py.typed").exists()


def test_the_client_imports_nothing_of_the_server() -> None:
    code = "import sys, starling_client; print({'torch', 'app', 'fastapi'} & set(sys.modules))"
    done = ended(sys.executable, "-c", code, cwd="/", env={"PYTHONPATH": str(CLIENT / "src")})
    assert done.stdout == "set()\n"
