"""How each kind of command in the documentation is run. A new kind needs a new line in RULES, or in NOT_RUN."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import typer
from sim.runs import recorded

from app.bench import run as bench
from app.cli.commands import cli
from app.scheduler.optimal.tables import solve
from app.sim import sizing
from loadtest import run_locust
from loadtest.disb import __main__ as disb
from loadtest.disb import clients
from loadtest.loadgen.__main__ import EXPERIMENT as LOADGEN

from .documented import Command, alike, curl, labels, same_lines
from .documented_world import World, given_file
from .server import ROOT

Rule = Callable[[Command, World], None]
#: Options that make a measurement short. Those of the page stand before them, and the last one given counts.
SHORT = {
    "bench": ("--duration", "0.3", "--warmup", "0.1", "--repeats", "2", "--max-lag-ms", "100000"),
    "peak": ("--duration", "0.1", "--warmup", "0.05", "--repeats", "2", "--max-lag-ms", "100000"),
    "disb": ("--duration", "0.5", "--warmup", "0.1", "--max-lag-ms", "100000"),
    "size": ("--requests", "100"),
    "profile": ("--repeats", "2", "--budget-s", "0.1", "--max-batch", "4", "--threads", "1"),
    "stages": ("--repeats", "2", "--max-batch", "4", "--threads", "1"),
}

#: Commands that cannot be run here, by how they begin, with the reason.
NOT_RUN = {
    ". .venv/": "changes the shell it is typed into",
    "starling serve --record": "tests/e2e/test_record.py records a session and replays it",
    "starling serve mine": "the shared server has these models",
    "docker ": "needs a container engine; tests/test_dockerfile.py and tests/deploy read the files",
    "STARLING_API_KEY=": "the same",
    "kubectl ": "needs a cluster; tests/deploy holds the manifests against Kubernetes' schemas",
    "torch-model-archiver ": "TorchServe is not here",
    "torchserve ": "the same",
    "bentoml ": "BentoML is not here",
    "python -m loadtest.loadgen": "LoadGen is not here; its options are looked at",
    "aiperf ": "AIPerf is not here; tests/e2e/test_openai.py sends its body",
    "python -m tf2onnx": "TensorFlow is not here",
    "pip install ": "needs a package index; tests/test_distributions.py looks into the package",
    "serve run ": "needs Ray on several ports; tests/integrations has a cluster of its own",
    "make ": "installs, or takes minutes; what it would run is looked at",
    "starling serve --host 0.0.0.0": "listens to other machines; tests/e2e/test_tls.py has a server with HTTPS",
}


def rule_of(command: Command) -> Rule | None:
    """How this command is run: the first rule whose pattern its beginning fits."""
    return next((rule for pattern, rule in RULES if re.match(pattern, command.text)), None)


def answers(command: Command, world: World) -> None:
    """A request to the shared server: status 200, and the answer that the page shows."""
    printed = curl(command.text, world.server.host, world.folder)
    json.loads(printed)
    if command.answer is not None:
        assert alike(command.answer, printed), f"{command}: the answer was\n{printed}"
    if command.text.endswith("/unload"):  # others ask for the model, too
        curl(command.text.removesuffix("unload") + "load", world.server.host, world.folder)


def writes_a_text(command: Command, world: World) -> None:
    """A text of a model that knows none, or what comes as events: the page's has the same fields."""
    printed = curl(command.text, world.server.host, world.folder)
    assert command.answer is not None, f"{command}: no output stands below it"
    told, got = ([list(json.loads(one)) for one in text.split("data: ") if one] for text in (command.answer, printed))
    assert (told[0], told[-1]) == (got[0], got[-1]), f"{command}: the answer was\n{printed}"


def prints(command: Command, world: World) -> None:
    """A command whose output is the same each time, line by line."""
    done = world.starling(*command.words[1:])
    assert done.exit_code == 0, f"{command}: {done.output}{done.exception}"
    assert command.answer is not None, f"{command}: no output stands below it"
    assert same_lines(command.answer, done.stdout), f"{command}: it prints\n{done.stdout}"


def sizes(command: Command, world: World) -> None:
    """`starling size`, in short runs and with tables for a few loads: the figures of the page take 20 s of CPU."""
    assert solve.__kwdefaults__ is not None
    few = {**solve.__kwdefaults__, "loads": (0.1, 0.5, 0.9)}
    with mock.patch.object(sizing, "_EACH", 100), mock.patch.object(solve, "__kwdefaults__", few):
        done = world.starling(*command.words[1:], *SHORT["size"])
    assert done.exit_code == 0, f"{command}: {done.output}{done.exception}"
    _labelled(command, done.stdout)


def measures_a_server(command: Command, world: World) -> None:
    """`starling bench`, for a moment: what it prints begins as on the page, the figures are its own."""
    words = [word.replace("localhost:8000", world.server.host) for word in command.words[1:]]
    with mock.patch.object(bench, "_SETTLE_S", 0.05):
        done = world.starling(*words, *SHORT["peak" if "--find-peak" in words else "bench"])
    assert done.exit_code == 0, f"{command}: {done.output}{done.exception}"
    _labelled(command, done.stdout.replace(world.server.host, "localhost:8000"))
    _written(command, world.folder)


def plays_a_workload(command: Command, world: World) -> None:
    """`python -m loadtest.disb`, for a moment."""
    words = [word.replace("localhost:8000", world.server.host) for word in command.words[3:]]
    alone = mock.patch.object(clients, "ALONE_S", 0.05)
    with alone, contextlib.redirect_stdout(io.StringIO()) as printed:
        assert disb.main([*words, *SHORT["disb"]]) == 0, command
    _labelled(command, printed.getvalue().replace(world.server.host, "localhost:8000"))


def measures_a_model(command: Command, world: World) -> None:
    """`starling profile`, for a moment, with small models by the names of those that ship."""
    words = [str(world.bench) if word == "bench" else word for word in command.words[1:]]
    kind = "stages" if {"--stages", "--cuts"} & set(words) else "profile"
    done = world.starling(*words, *SHORT[kind])
    assert done.exit_code == 0, f"{command}: {done.output}{done.exception}"
    _labelled(command, done.stdout)
    _written(command, world.folder)


def replays(command: Command, world: World) -> None:
    """A program in Python on a record; how many steps were equal is the session's own."""
    (world.folder / "record.jsonl").write_text("\n".join(map(json.dumps, recorded())))
    done = subprocess.run(
        ["bash", "-c", command.text.replace("python", sys.executable, 1)],
        cwd=world.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stderr}"
    told = re.sub(r"equal=\d+", "equal=...", command.answer or "")
    assert alike(told, done.stdout), f"{command}: it prints\n{done.stdout}"


def makes_a_folder(command: Command, world: World) -> None:
    """`starling new`, beside the folder of that name which the server has; its curl is what it ends with."""
    done = world.starling(*[word.replace("mine/", "made/", 1) for word in command.words[1:]])
    assert done.exit_code == 0, f"{command}: {done.output}"
    assert "curl localhost:8000/v2/models/" in done.output


def writes(command: Command, world: World) -> None:
    """A file of a model, which the world has made of this very command."""
    if given := given_file(command):
        assert (world.folder / given[0]).read_text(encoding="utf-8") == given[1]
    else:
        assert (world.folder / command.words[-1]).is_dir(), command


def is_looked_at(command: Command, world: World) -> None:
    """A command that is not run: its files, its target, its flags are there."""
    words = command.words
    known = "|".join(path.name for path in ROOT.iterdir() if not path.name.startswith("."))
    for word in words:
        if re.fullmatch(rf"(\./)?({known})/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{command}: {word}"
    if words[0] == "make":
        _looks_at_make(command)
    elif words[0] == "starling":
        check_flags(words)
    elif words[:2] == ["serve", "run"]:
        module, _, name = words[2].partition(":")
        assert callable(getattr(importlib.import_module(module), name)), command
    elif words[:3] == ["python", "-m", "loadtest.loadgen"]:
        LOADGEN.parse(words[3:])
    elif words[:2] == ["docker", "build"]:
        assert (ROOT / "Dockerfile").exists()


def _looks_at_make(command: Command) -> None:
    """What make would run, as it says itself: a program of ours with options that it has."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # `make test` runs this
    done = subprocess.run(
        ["make", "-n", *command.words[1:]], cwd=ROOT, env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    last = done.stdout.splitlines()[-1].removeprefix("exec ").split()
    if last[0].endswith("/starling"):
        check_flags(["starling", *last[1:]])
    elif last[1:3] == ["-m", "loadtest.run_locust"]:
        assert run_locust.parse(last[3:]).more == (), f"{command}: Locust would get options that are not its own"
    else:
        assert (ROOT / f"{last[2].replace('.', '/')}.py").exists() or (ROOT / last[2].replace(".", "/")).is_dir()
    for name in re.findall(r"\b([A-Z_]+)=", " ".join(command.words[1:])):
        assert f"$({name})" in (ROOT / "Makefile").read_text(encoding="utf-8"), f"{command}: {name} has no meaning"


def check_flags(words: list[str]) -> None:
    """The flags of a `starling` command are flags that it has. Raises AssertionError."""
    group = typer.main.get_command(cli)
    assert isinstance(group, typer.core.TyperGroup)
    command = group.commands.get(words[1])
    assert command is not None, f"no command {words[1]}"
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    for word in words[2:]:
        if word.startswith("-"):
            assert word.partition("=")[0] in {*known, "--help"}, f"starling {words[1]} has no {word}"


def _labelled(command: Command, printed: str) -> None:
    """Each line of the page begins as one that was printed; those that a figure begins are of that run alone."""
    missing = [label for label in labels(command.answer or "") if label not in labels(printed)]
    assert not missing, f"{command}: no line {missing} in\n{printed}"


def _written(command: Command, folder: Path) -> None:
    """Files that a command was told to write are there."""
    for flag, name in zip(command.words, command.words[1:], strict=False):
        if flag == "--out":
            assert json.loads((folder / name).read_bytes()), f"{command}: {name}"


RULES: tuple[tuple[str, Rule], ...] = (
    *((re.escape(begins), is_looked_at) for begins in NOT_RUN),
    ("curl localhost:(?!8000)", is_looked_at),  # asks another server, to compare
    (r"curl (-N )?localhost:8000/\S*(writer|infer_stream)\S*", writes_a_text),
    ("curl ", answers),
    ("mkdir -p mine/|cat > mine/", writes),
    ("starling (simulate|optimum) ", prints),
    ("starling size ", sizes),
    ("starling bench ", measures_a_server),
    ("python -m loadtest.disb ", plays_a_workload),
    ("starling profile ", measures_a_model),
    ("starling new ", makes_a_folder),
    ("python -c ", replays),
)
