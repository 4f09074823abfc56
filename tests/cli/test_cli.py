"""The command line: flags and variables are the settings, and what is wrong is one line and exit status 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from models.folders import write_model

from app import __version__
from app.cli import commands as module
from app.cli.commands import main
from app.errors import ConfigError
from app.settings import Settings, settings_from

from .running import assert_refused
from .running import invoke as run

ROOT = Path(module.__file__).parents[2]
NO_SETTINGS = {("workers", "profile"), ("workers", "size"), ("model", "profile"), ("model", "size")}
ECHO = ROOT / "app" / "models" / "demo" / "echo"


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_every_setting_is_a_flag_and_a_variable() -> None:
    shown = plain(run("serve", "--help").output)
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in shown, name
        assert f"STARLING_{name.upper()}" in shown, name


def test_help_also_has_a_short_name() -> None:
    assert run("serve", "-h").output == run("serve", "--help").output


def test_commands() -> None:
    shown = plain(run("--help").output)
    for command in ("serve", "models", "check", "new", "profile", "simulate", "optimum", "size", "bench"):
        assert re.search(rf"\b{command}\b", shown)
    assert not re.search(r"\bslice\b", shown)
    assert run("--version").output.strip() == __version__


def test_an_option_that_is_a_setting_of_serve_obeys_its_variable() -> None:
    """In every command but those of made-up loads and devices. There `--workers` is a number, `--model` a name."""
    commands = typer.main.get_command(module.cli).commands  # type: ignore[attr-defined]
    for command in ("models", "check", "profile", "size"):
        for option in commands[command].params:
            name = {"place": "models", "extra": "model"}.get(option.name, option.name)
            if name in Settings.model_fields and (option.name, command) not in NO_SETTINGS:
                assert option.envvar == f"STARLING_{name.upper()}", (command, option.name)


def test_models_lists_what_the_variable_names() -> None:
    listed = run("models", env={"STARLING_MODELS": str(ECHO)})
    assert listed.exit_code == 0
    assert "digits" not in listed.output
    for word in ("echo version 1", "FP32"):
        assert word in plain(listed.output)
    assert "digits version 1" in run("models", "demo", env={"STARLING_MODELS": str(ECHO)}).output


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What would be served; nothing is."""
    found: list[Settings] = []

    def record(given: dict[str, Any]) -> Settings:
        found.append(settings_from(given))
        raise ConfigError("far enough")

    monkeypatch.setattr(module, "settings_from", record)
    return found


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        ([], {}, {"repository": "demo", "model": ()}),
        (["mine"], {}, {"repository": "mine", "model": ()}),
        (["mine"], {"MODELS": "/models"}, {"repository": "mine"}),
        (["--models", "bench", "-m", "a=b"], {}, {"repository": "bench", "model": ("a=b",)}),
        (["--model", "a=b"], {}, {"repository": None, "model": ("a=b",)}),
        (["--port", "1", "--no-pages"], {"PORT": "2", "MAX_BATCH": "7"}, {"port": 1, "max_batch": 7, "pages": False}),
        (["--model", "a=x", "--model", "b=y"], {}, {"model": ("a=x", "b=y")}),
        ([], {"MODEL": "a=x b=y", "WORKERS": "32"}, {"model": ("a=x", "b=y"), "workers": (32,)}),
        (["--workers", "1,2,4"], {}, {"workers": (1, 2, 4)}),
        (["--workers", "1x8"], {}, {"workers": (8,)}),
        (["--workers", "2x32, 4"], {}, {"workers": (32, 32, 4)}),
    ],
)
def test_flags_beat_variables(
    served: list[Settings], args: list[str], env: dict[str, str], expected: dict[str, Any]
) -> None:
    """The demo models are served where nothing is named; one model that is named is served alone."""
    run("serve", *args, env={f"STARLING_{name}": value for name, value in env.items()})
    (settings,) = served
    assert {name: getattr(settings, name) for name in expected} == expected


def test_a_folder_that_is_typed_meets_no_other() -> None:
    assert_refused("models: expected 'mine' or --models 'yours', got both", "serve", "mine", "--models", "yours")


def test_variables_that_are_no_settings_are_told_with_the_nearest(served: list[Settings]) -> None:
    said = run("serve", env={"STARLING_PRT": "1", "STARLING_ZZZZ": "1", "STARLING_PORT": "2"}).stderr
    first, second = said.splitlines()
    assert "STARLING_PRT is no setting" in first
    assert "STARLING_PORT?" in first
    assert "STARLING_ZZZZ is no setting" in second


@pytest.mark.parametrize("name", ["API_KEY", "API_KEY_FILE", "ADMIN_KEY", "ADMIN_KEY_FILE"])
def test_an_empty_key_is_not_no_key(served: list[Settings], name: str) -> None:
    """A secret that was never filled in must not open the server."""
    error = run("serve", env={f"STARLING_{name}": ""}).exception
    assert isinstance(error, ConfigError)
    assert f"STARLING_{name} is empty" in str(error)
    assert served == []
    run("serve", f"--{name.lower().replace('_', '-')}", "given", env={f"STARLING_{name}": ""})
    assert len(served) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"workers": "4"}, ["workers: alone it is one worker with batches of at most 4: expected 4x32 ", "or 1x4"]),
        ({"workers": "0x8"}, ["workers: expected capacities such as 32,32 or 2x32, got '0x8'"]),
        ({"workers": "auto"}, ["workers: expected capacities such as 32,32 or 2x32, got 'auto'"]),
        ({"threads": 9999}, ["threads", "cores"]),
    ],
)
def test_a_bad_setting_is_one_line(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from(given)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    """Run the command with these words; its exit status, and what it says on standard error."""

    def ending(*words: str) -> tuple[Any, str]:
        monkeypatch.setattr("sys.argv", ["starling", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code, capfd.readouterr().err

    return ending


@pytest.mark.parametrize(
    "words", [("serve", "--workers", "0"), ("models", "/no/such/folder"), ("serve", "--port", "many")]
)
def test_exit_status_2(words: tuple[str, ...], ends: Callable[..., tuple[Any, str]]) -> None:
    status, complaint = ends(*words)
    assert status == 2
    assert "Traceback" not in complaint
    assert complaint.count("starling: ") == 1


def test_what_the_system_refuses_is_one_line_and_status_1(tmp_path: Path, ends: Callable[..., tuple[Any, str]]) -> None:
    (tmp_path / "file").touch()
    assert ends("new", f"{tmp_path}/file/net") == (1, f"starling: {tmp_path}/file/net: Not a directory\n")


def test_ctrl_c_before_a_command_begins_is_status_130(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[..., tuple[Any, str]]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "cli", interrupted)
    assert ends()[0] == 130


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("words", [("serve", "--port", "0", "--models"), ("check",), ("models",)])
def test_a_folder_without_a_model(words: tuple[str, ...], tmp_path: Path, ends: Callable[..., tuple[Any, str]]) -> None:
    (tmp_path / "notes").mkdir()
    status, complaint = ends(*words, str(tmp_path))
    assert status == 2
    (line,) = [line for line in complaint.splitlines() if line.startswith("starling: ")]
    assert f"no model found in '{tmp_path}': expected NAME/model.toml" in line
    assert "with --model-control, an admin key or --watch the server starts without one" in line


@pytest.mark.parametrize(
    ("redirected", "status", "complaint"),
    [
        (">&-", 1, "starling: standard output: Bad file descriptor\n"),
        ("<&- >&-", 1, "starling: standard output: Bad file descriptor\n"),
        (">/dev/full", 1, "starling: No space left on device\n"),
        (">/dev/null 2>&-", 0, ""),
        ("", 1, ""),  # a pipe that nobody reads
    ],
)
def test_output_that_cannot_be_written(redirected: str, status: int, complaint: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = ("sh", "-c", f'"$0" -m app --version {redirected}', sys.executable)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (status, complaint)


@pytest.mark.parametrize("command", ["check", "models"])
def test_check_and_models_take_what_serve_takes(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a model.toml, too, and a name of a set even beside a folder of that name."""
    monkeypatch.chdir(tmp_path)
    for name in ("net", "demo"):
        Path(name).mkdir()
        Path(name, "model.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 2)\n")
    for place, name in (("net", "net"), ("./demo", "demo"), ("demo", "echo")):
        ended = run(command, place)
        assert ended.exit_code == 0
        assert f"{name} version 1: " in plain(ended.output)
        assert command == "models" or name == "echo" or "10 parameters" in plain(ended.output)
    Path("net.csv").write_text("x")
    assert "expected its folder, or a model's file" in str(run(command, "net.csv").exception)


@pytest.mark.parametrize("command", ["check", "models"])
def test_a_narrow_terminal_loses_nothing_of_a_path(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that rich would read: `:100:` is an emoji to it, and [red] a colour. It looks for no more: in a word
    of 100,000 letters, as an error may hold, for minutes.
    """
    monkeypatch.setattr("rich.highlighter.RegexHighlighter.highlight", None)
    folder = tmp_path / "x:100:y[red]" / "net"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text("source = 5\n")
    shown = plain(run(command, str(folder.parent), env={"COLUMNS": "30"}).output)
    assert f"{folder / 'model.toml'}: source: expected a string, got 5" in shown


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_exit_status_of_check(tmp_path: Path, strict: tuple[str, ...]) -> None:
    """A warning counts with --strict alone, a model that cannot be served always; `models` says so, too."""
    picky = write_model(tmp_path / "picky", code="def build():\n    return lambda x: x.missing if len(x) else x\n")
    assert run("check", str(ECHO), *strict).exit_code == 0
    assert run("check", str(picky), *strict).exit_code == len(strict)
    (picky / "model.toml").write_text("source = 5\n")
    for command in (("check", str(tmp_path), *strict), ("models", str(tmp_path))):
        ended = run(*command)
        assert ended.exit_code == 1
        assert "source" in plain(ended.output)
