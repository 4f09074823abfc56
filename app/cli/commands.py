"""The `starling` command. Flags and STARLING_* variables of `serve` come from Settings, field by field."""

from __future__ import annotations

import gc
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from app import __version__, process
from app.errors import ConfigError, refused
from app.observe import logs, standard_streams
from app.settings import Settings, repeated_models, settings_from, unknown_variables

_PANELS = {
    "models": "What is served",
    "host": "Where",
    "api_key": "Who may do what",
    "policy": "Batching (beats every model.toml)",
    "preempt_budget_ms": "Real time and best effort",
    "device": "Device",
    "max_body_mib": "Bounds on clients",
    "keep_alive_s": "Lifecycle",
    "log_level": "Output",
}

_END_S = 5  # for what models have started, after the last answer

_TERMINATED = 128 + 15  # the exit status of a command that SIGTERM has ended, as shells have it

#: Commands of the packages beside this one. They know the server, and nothing in the server knows them.
_BESIDE = (
    "planner.commands.check:models",
    "planner.commands.check:check",
    "planner.commands.new:new",
    "planner.commands.profile:profile",
    "planner.commands.simulate:simulate",
    "planner.commands.optimum:optimum",
    "planner.commands.size:size",
    "loadtest.generator.command:bench",
)

#: Of the same packages: writes the model.toml of models without one. A context of the settings that it changes.
_COMPLETES = "planner.commands.scaffold.bare:with_model_toml"

cli = typer.Typer(
    help="Starling serves PyTorch models over HTTP. Start with: starling serve",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the `starling` command. A bad setting is one line and exit status 2; what the system refuses, such
    as a file of another user or a full disk, one line and exit status 1, without a line if nobody reads the output.
    """
    standard_streams.open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in a C locale it takes ASCII only, and paths may be no Unicode
            stream.reconfigure(errors="replace")
    try:
        with process.ended_by_signals(_TERMINATED), standard_streams.written_out():
            cli()
    except KeyboardInterrupt:
        sys.exit(130)
    except ConfigError as exc:
        fail(str(exc), 2)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as exc:
        fail(refused(exc), 1)


def fail(message: str, status: int) -> None:
    print(f"starling: {message}", file=sys.stderr)
    sys.exit(status)


def _refuse_empty_keys(given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Raise ConfigError for an empty variable of a key. For other settings an empty variable counts as not given.

    A secret that was never filled in would open the server to everybody.
    """
    for name in ("api_key", "api_key_file", "admin_key", "admin_key_file"):
        if given[name] is None and (variable := f"STARLING_{name.upper()}") in environment:
            raise ConfigError(f"{name}: the variable {variable} is empty: set a key, or unset the variable")


def _serve(**given: Any) -> None:
    folder = given.pop("folder")
    if folder is not None:
        if given["models"] not in (None, os.environ.get("STARLING_MODELS")):  # the argument beats the variable
            raise ConfigError(f"models: expected {folder!r} or --models {given['models']!r}, got both")
        given["models"] = folder
    for line in [*unknown_variables(os.environ), *repeated_models(sys.argv)]:
        print(f"starling: {line}", file=sys.stderr)
    _refuse_empty_keys(given, os.environ)
    settings = settings_from(given)
    process.prepare()
    with process.ended_by_signals(0), standard_streams.never_waiting() as lost_lines:
        status = _run(settings, lost_lines)
    process.end_within(_END_S, status)
    sys.exit(status)


def _run(settings: Settings, lost_lines: Callable[[], int]) -> int:
    """Serve until told to stop; the exit status."""
    from app.cli.banner import announce, starting
    from app.collector import Collector
    from app.http.tls import Certificate
    from app.lifecycle import Lifecycle
    from app.machine import memory_limit
    from app.server import bind, serve

    logs.configure(settings.log_level, settings.log_format, settings.access_log)
    tls = None if settings.tls_cert is None else Certificate(settings.tls_cert, settings.tls_key)
    with bind(settings.host, settings.port) as sock:
        port = sock.getsockname()[1]
        starting(settings, port)
        gc.disable()  # what is imported stays: no collection need walk it, now or while models load
        from app.main import create_app
        from app.models.registry import Registry

        gc.freeze()
        gc.enable()
        lifecycle, collector = Lifecycle(), Collector(memory_limit())
        lifecycle.lost_lines = lost_lines

        def ready(registry: Registry) -> None:
            collector.begin()
            announce(settings, port, registry, lifecycle.device, lifecycle.ready())

        with _beside(_COMPLETES)(settings.models, settings.model) as changed:
            app = create_app(settings.model_copy(update=changed), lifecycle, collector=collector, on_ready=ready)
            return serve(app, settings, lifecycle, sock, tls)


def _beside(place: str) -> Callable[..., Any]:
    """A function of a package beside this one, `module:name`."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _flagged(function: Callable[..., None]) -> Callable[..., None]:
    """Give `function` one typer option per field of Settings."""
    panel = None
    place = typer.Argument(help="As --models.", metavar="DIR", show_default=False)
    option = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters = [option("folder", annotation=Annotated[str | None, place])]
    for name, field in Settings.model_fields.items():
        panel = _PANELS.get(name, panel)
        flag = typer.Option(
            *(["-m"] if name == "model" else []),
            f"--{name.replace('_', '-')}" + (f"/--no-{name.replace('_', '-')}" if field.annotation is bool else ""),
            envvar=f"STARLING_{name.upper()}",
            help=_help(field),
            rich_help_panel=panel,
            show_default=False,
            metavar=_metavar(name, field),
        )
        kind: Any = _kind(field)
        parameters.append(option(name, annotation=Annotated[kind, flag]))
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("[", "\\[")
    if field.default in (None, (), False) or text.endswith("]"):
        return text
    default = "yes" if field.default is True else field.default
    return f"{text} \\[{default}]"


def _kind(field: FieldInfo) -> Any:
    """The type that typer parses: text, which Settings validates, so that all errors have the same form.

    A bool stays a flag, and an option of several names can be repeated.
    """
    if field.annotation is bool:
        return bool | None
    if field.annotation == tuple[str, ...]:
        return list[str] | None  # STARLING_MODEL="a=x b=y": a variable is split on spaces
    return str | None


def _metavar(name: str, field: FieldInfo) -> str | None:
    """The placeholder of the value in the help: its choices, or its type."""
    if name == "policy":
        from app.scheduler.policies import POLICIES

        return "|".join(POLICIES)
    if name in ("workers", "cors_origins"):
        return "INT,INT,..." if name == "workers" else "ORIGIN"
    kinds = (field.annotation, *get_args(field.annotation))
    for kind in kinds:
        if get_origin(kind) is Literal:
            return "|".join(get_args(kind))
    names = {int: "INT", float: "NUMBER", Path: "FILE", tuple[str, ...]: "NAME=SOURCE"}
    return None if field.annotation is bool else next((names[kind] for kind in kinds if kind in names), "TEXT")


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@cli.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None: ...


for place in _BESIDE:
    cli.command()(_beside(place))
cli.command("serve", help="Serve models over HTTP until SIGTERM or Ctrl-C, which drain.")(_flagged(_serve))
