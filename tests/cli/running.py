"""Runs commands of `starling` in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from typer import testing
from typer.testing import CliRunner, Result

from app.cli.commands import cli
from app.errors import ConfigError

# Reading the options of all commands takes longer than most commands; the runner would do it each time.
testing._get_command = cache(testing._get_command)


def invoke(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "200", "TERM": "dumb", **(env or {})})


def succeeds(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What the command prints."""
    result = invoke(*arguments, env=env)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def printed(*arguments: str) -> Any:
    """The JSON that the command prints."""
    return json.loads(succeeds(*arguments, "--json"))


def assert_refused(message: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """The command ends with one line that says so."""
    error = invoke(*arguments, env=env).exception
    assert isinstance(error, ConfigError), repr(error)
    assert message in str(error)
    assert "\n" not in str(error)
