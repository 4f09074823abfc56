"""Options of several commands, and the model that they name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.errors import ConfigError
from app.settings import Precision

if TYPE_CHECKING:  # torch takes seconds to load: only when a command runs
    from app.contract import Model, ModelSource

ModelsOption = Annotated[
    str, typer.Option(envvar="STARLING_MODELS", help="A model repository folder, or a set that ships: demo, bench.")
]
ExtraOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        envvar="STARLING_MODEL",
        metavar="NAME=SOURCE",
        help="One more model; SOURCE is a folder with model.toml.",
    ),
]
DeviceOption = Annotated[
    str, typer.Option(envvar="STARLING_DEVICE", help="Where to run it: auto, cpu, cuda or cuda:N.")
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(envvar="STARLING_PRECISION", help="fp32 leaves the model as it is; bf16, fp16 compute in that."),
]
ProfileDirOption = Annotated[
    Path | None,
    typer.Option(envvar="STARLING_PROFILE_DIR", help="Where `starling serve` finds it. \\[the user's cache folder]"),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# of the commands that simulate

ProfileOption = Annotated[
    str,
    typer.Option("--profile", help="A profile's file, or linear:A+Bb for batches of b rows that take A + B x b ms."),
]
RateOption = Annotated[
    str, typer.Option("--rate", help="Requests per second, of all replicas together; several as 100,200.")
]
LoadOption = Annotated[
    str,
    typer.Option("--load", help="The rate as a share of the best rows per second of one device; several as 0.6,0.9."),
]
BatchOption = Annotated[
    int, typer.Option("--max-batch", help="Largest batch, rows. \\[the profile's; 32 for linear:]", show_default=False)
]


def typed(context: typer.Context) -> set[str]:
    """The names of the options that were given on the command line, not by variables or defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def refuse(given: Iterable[str], names: Iterable[str], why: str) -> None:
    """Raise ConfigError if one of the options `names`, which would be ignored, was given."""
    for name in names:
        if name in given:
            raise ConfigError(f"{name}: {why}")


def find_model(name: str, models: str, extra: list[str]) -> ModelSource:
    """The highest version of a model in the repository `models` or in `extra`, else in the folder `name`.

    Raises ConfigError if there is none, and for a folder with several models.
    """
    from app.models.repository import Repository

    repository = Repository(models, extra)
    if sources := repository.sources(name):
        return sources[-1]
    folder = Path(name)
    if not folder.is_dir():
        raise ConfigError(f"model {name!r} is not known; models: {', '.join(repository.scan()) or 'none'}")
    inside = Repository(folder).scan()
    if len(inside) != 1:
        held = f"of {', '.join(inside)}; name one, with --models {name}" if inside else "without a model"
        raise ConfigError(f"model: expected a name or the folder of one model, got {name!r}, a folder {held}")
    ((*_, highest),) = inside.values()
    return highest


def load_model(name: str, models: str, extra: list[str], max_batch: int) -> Model:
    """Load the model with the same code as the server."""
    from app.models.loading import load

    return load(find_model(name, models, extra), {"max_batch": max_batch or None})
