"""The walls between the folders of app/ and the packages beside it, and that nothing in app/ waits by sleeping."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IMPURE = {"torch", "asyncio", "threading", "time", "random", "multiprocessing", "concurrent"}
SLEEPS = {"time", "asyncio", "anyio"}

#: Folder or module of app/ -> what of app/ it may import besides itself. None: everything.
OURS: dict[str, set[str] | None] = {
    "__init__": set(),
    "contract": {"scheduler"},  # of it the service classes, and which policies there are
    "errors": set(),
    "settings": {"errors", "machine"},
    "machine": set(),
    "process": set(),
    "collector": {"machine", "process"},
    "user_code": set(),
    "child": set(),
    "values": {"contract", "errors"},
    "scheduler": set(),
    "models": {"child", "contract", "errors", "user_code", "values"},
    "observe": {"collector", "contract", "errors", "scheduler", "lifecycle", "user_code"},
    "engine": {"child", "scheduler", "models", "contract", "errors", "observe", "values"},
    "http": {"contract", "errors", "observe", "lifecycle", "values", "__init__"},
    "ui": {"contract", "errors", "scheduler", "observe", "http", "lifecycle"},  # of http what DOORS says
    "lifecycle": {"contract"},
    "server": {"contract", "errors", "settings", "machine", "lifecycle", "process", "observe", "http", "__init__"},
    "engine_setup": {
        "contract", "errors", "settings", "machine", "scheduler", "models", "engine", "observe", "lifecycle",
        "process",
    },
    "main": {
        "collector", "contract", "errors", "settings", "machine", "scheduler", "models", "engine", "engine_setup",
        "http", "observe", "ui", "server", "lifecycle", "__init__",
    },
    "cli": None,
    "__main__": {"cli"},
}  # fmt: skip
#: Package or folder beside app/ -> which of these it may import, and what of app/. The longest that fits a path counts.
BESIDE: dict[str, tuple[set[str], set[str] | None]] = {
    "planner": ({"planner"}, {"scheduler"}),
    "planner/commands": ({"planner", "loadtest"}, None),
    "loadtest/generator": ({"planner", "loadtest"}, {"errors", "scheduler"}),
}
#: Of a folder -> what of another it may import, where that is not all. The live page is HTTP, too: it serves files and
#: shows examples as /docs does, and knows nothing of calls.
DOORS: dict[tuple[str, str], tuple[str, ...]] = {
    ("contract", "scheduler"): ("app.scheduler.types", "app.scheduler.policies"),
    ("ui", "http"): ("app.http.static_files", "app.http.codecs.files", "app.http.examples"),
    ("http", "observe"): ("app.observe.metrics", "app.observe.logs", "app.observe.tracing"),
}
#: What every kind of device is made of.
DEVICE = ("app.engine.device", "app.engine.executor", "app.engine.pool", "app.engine.step_slabs")
BELOW_ROWS = ("app.scheduler.types", "app.scheduler.estimates", "app.scheduler.optimal")
#: Room inside a folder -> what else of that folder it may import, as prefixes of modules.
ROOMS: dict[str, tuple[str, ...]] = {
    "app.engine.cpu": DEVICE,
    "app.engine.streams": DEVICE,
    **dict.fromkeys(DEVICE, DEVICE),
    "app.engine.profiling": ("app.engine.device", "app.engine.executor", "app.engine.pool"),
    "app.http.codecs": ("app.http.body",),
    "app.http.connection": (),
    "app.observe.metrics": (),
    "app.observe.logs": (),
    "app.observe.tracing": (),
    "app.scheduler.estimates": ("app.scheduler.types",),
    "app.scheduler.optimal": ("app.scheduler.types", "app.scheduler.estimates"),
    "app.scheduler.rows": BELOW_ROWS,
    "app.scheduler.workers": ("app.scheduler.types",),
    "app.scheduler.policies": ("app.scheduler.rows", "app.scheduler.workers", *BELOW_ROWS),
    "app.scheduler.forming": ("app.scheduler.policies", "app.scheduler.rows", "app.scheduler.workers", *BELOW_ROWS),
}
#: What is not ours and may not be imported there.
THEIRS: dict[str, set[str]] = {
    "scheduler": IMPURE,
    "planner": {"torch", "asyncio"},
    "loadtest/generator": {"torch"},
    "contract": {"torch"},
    "values": {"torch"},
    "http": {"torch"},
    "observe": {"torch"},
    "ui": {"torch"},
}


@cache  # several tests look at each module
def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


@cache
def imported(source: str, path: str) -> list[tuple[int, str]]:
    """Line and absolute name of each import anywhere in the module at `path`, TYPE_CHECKING blocks included."""
    package = Path(path).parent.parts
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from app import x` and `from . import x` name modules
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


@cache
def part_of(name: str) -> str:
    """The folder or module of app/ that an import of ours reaches; `app.__version__` is app itself."""
    parts = name.split(".")
    known = len(parts) > 1 and ((ROOT / "app" / parts[1]).is_dir() or parts[1] in OURS)
    return parts[1] if known or (len(parts) > 1 and (ROOT / "app" / f"{parts[1]}.py").exists()) else "__init__"


def import_faults(source: str, path: str) -> list[str]:
    """What the module at `path`, relative to the root, must not import."""
    package = Path(path).parent.parts
    if package[0] == "app":
        own = package[1] if len(package) > 1 else Path(path).stem
        beside, allowed = set[str](), OURS.get(own, set())
    else:
        own = max((place for place in BESIDE if Path(path).is_relative_to(place)), key=len)
        beside, allowed = BESIDE[own]
    faults = []
    for line, name in imported(source, path):
        top = name.split(".")[0]
        if top in beside:
            continue
        if top == "app":
            target = part_of(name)
            doors = DOORS.get((own, target))
            if (allowed is None or target in {own, *allowed}) and (doors is None or name.startswith(doors)):
                continue
        elif top not in THEIRS.get(own, set()) and top not in {"planner", "loadtest", "experiments", "tests"}:
            continue
        faults.append(f"{path}:{line} imports {name}")
    return faults


def sleep_faults(source: str, path: str) -> list[str]:
    """Where the module names a sleep, called or not, under whatever name it was imported."""
    faults = [(line, name) for line, name in imported(source, path) if name in {f"{top}.sleep" for top in SLEEPS}]
    modules = [alias for node in nodes_of(source) if isinstance(node, ast.Import) for alias in node.names]
    aliases = {alias.asname or alias.name for alias in modules if alias.name in SLEEPS}
    for node in nodes_of(source):
        match node:
            case ast.Attribute(ast.Name(name), "sleep" | "sleep_until" | "sleep_forever" as attribute):
                if name in aliases:
                    faults.append((node.lineno, f"{name}.{attribute}"))
    return [f"{path}:{line} names {name}" for line, name in faults]


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def sources(*folders: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py"))


APP, ALL = sources("app"), sources("app", "planner", "loadtest/generator")


def test_every_module_keeps_the_walls() -> None:
    assert [fault for path in ALL for fault in import_faults(text_of(path), path)] == []
    for faults in (sleep_faults, room_faults):
        assert [fault for path in APP for fault in faults(text_of(path), path)] == []


def module_of(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def room_faults(source: str, path: str) -> list[str]:
    """What the module at `path` imports of its folder beyond the walls of its room."""
    module = module_of(path)
    room = next((room for room in ROOMS if within(module, room)), None)
    if room is None:
        return []
    folder = ".".join(room.split(".")[:2])
    faults = []
    for line, name in imported(source, path):
        if within(name, folder) and not any(within(name, place) for place in (room, *ROOMS[room])):
            faults.append(f"{path}:{line} imports {name}")
    return faults


def import_graph(paths: list[str]) -> dict[str, set[str]]:
    """Module -> modules that it imports, imports for type checking and inside functions included."""
    modules = {module_of(path) for path in paths}
    graph: dict[str, set[str]] = {}
    for path in paths:
        found = {name if name in modules else name.rpartition(".")[0] for _, name in imported(text_of(path), path)}
        graph[module_of(path)] = (found & modules) - {module_of(path)}
    return graph


def test_no_module_imports_itself_in_a_circle() -> None:
    TopologicalSorter(import_graph(ALL)).prepare()


def test_every_folder_has_a_rule() -> None:
    parts = {Path(path).parts[1].removesuffix(".py") for path in APP}
    assert parts <= set(OURS), "say in OURS what the new folder may import"


@pytest.mark.parametrize(
    ("faults", "path", "source"),
    [
        (import_faults, "app/contract/specs.py", "from app.errors import StarlingError"),
        (import_faults, "app/errors.py", "from . import settings"),
        (import_faults, "app/scheduler/forming/loop.py", "def f():\n    from random import random"),
        (import_faults, "app/scheduler/policies/window.py", "from ...engine import worker"),
        (import_faults, "app/engine/engine.py", "from ..http import codecs"),
        (import_faults, "app/http/asgi.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        (import_faults, "app/ui/page.py", "from app.http.request import Request"),
        (import_faults, "app/unheard_of.py", "import app.scheduler"),
        (import_faults, "app/cli/commands.py", "def f():\n    from planner import option_values"),
        (import_faults, "planner/simulator.py", "from app.http.request import Request"),
        (import_faults, "planner/simulator.py", "import loadtest.generator.run"),
        (import_faults, "planner/sizing.py", "import asyncio"),
        (room_faults, "app/engine/cpu/device.py", "from app.engine.streams.threads import Health"),
        (room_faults, "app/engine/pool.py", "import typing\nif typing.TYPE_CHECKING:\n    import app.engine.lease"),
        (room_faults, "app/http/codecs/v2.py", "from app.http.asgi import HttpApp"),
        (sleep_faults, "app/x.py", "import asyncio as a\nasync def f():\n    await a.sleep(0)"),
    ],
)
def test_what_is_forbidden_is_found(faults: Callable[[str, str], list[str]], path: str, source: str) -> None:
    assert len(faults(source, path)) == 1


#: Imported when tracing is on.
OPENTELEMETRY = {"app.observe.tracing.spans"}
#: Imported when `starling check`, `new` or `profile --beside` runs.
BY_COMMANDS = {
    f"planner.commands.{name}"
    for name in (
        "checked_models", "measured_pairs", "new_folder", "scaffold.bare", "scaffold.draft", "scaffold.guess",
        "scaffold.new_task",
    )
}  # fmt: skip


def loaded_after(imports: list[str], watched: set[str]) -> set[str]:
    """Which of `watched` a fresh interpreter has loaded after these imports."""
    code = f"import sys, {', '.join(imports)}\nprint(*sorted({watched!r} & set(sys.modules)))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("folders", "unwanted"),
    [
        (["app/scheduler", "planner"], {"torch", "asyncio"}),
        # FastAPI itself imports the API of OpenTelemetry
        (["app/contract", "app/errors.py", "app/http", "app/observe/tracing"], {"torch", "opentelemetry.sdk"}),
    ],
    ids=["planner", "api"],
)
def test_import_loads_nothing_unwanted(folders: list[str], unwanted: set[str]) -> None:
    names = {module_of(path) for path in ALL if any(Path(path).is_relative_to(folder) for folder in folders)}
    assert names
    assert loaded_after(sorted(names - OPENTELEMETRY - BY_COMMANDS), unwanted) == set()


def test_opentelemetry_is_imported_by_one_module() -> None:
    uses = {path for path in APP if any(within(name, "opentelemetry") for _, name in imported(text_of(path), path))}
    assert set(map(module_of, uses)) == OPENTELEMETRY
