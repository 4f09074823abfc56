"""Options of several commands, and the models that they name: those that `starling serve` takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import ConfigError
from app.settings import Precision

if TYPE_CHECKING:  # torch takes seconds to load: only when a command runs
    from app.contract import Model, ModelSource
    from app.models.repository import Repository

ModelsOption = Annotated[
    str,
    typer.Option(
        envvar="STARLING_MODELS", help="A repository, a model's folder or file, or a set: demo, bench; as serve takes."
    ),
]
ExtraOption = Annotated[
    list[str] | None,
    typer.Option(
        "-m",
        "--model",
        envvar="STARLING_MODEL",
        metavar="NAME=SOURCE",
        help="One more model; SOURCE is its folder or file. As serve takes.",
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


@dataclass(frozen=True, slots=True)
class Models:
    """What `starling serve` would serve from there. `places`: of models without a model.toml, what the user named, by
    the folder of the written one.
    """

    repository: Repository
    places: Mapping[Path, str]

    def place(self, source: ModelSource) -> str:
        """What `--model NAME=` takes for this version, relative if it is below the working folder."""
        if source.folder in self.places:
            return self.places[source.folder]
        place = os.path.relpath(source.folder)
        return str(source.folder) if place.startswith("..") else place


def served(context: typer.Context, models: str | None, extra: Sequence[str] = ()) -> Models:
    """What `serve` would serve from there, until the command ends; models None: `extra` alone. Raises ConfigError."""
    from app import process

    process.prepare()
    from app.models.repository import Repository
    from planner.commands.scaffold.bare import with_model_toml

    changed: Any = context.with_resource(with_model_toml("demo" if models is None else models, extra))
    named = changed.get("model", extra)
    places = {text.partition("=")[2]: was.partition("=")[2] for text, was in zip(named, extra, strict=True)}
    if models is not None and "models" in changed:
        places[changed["models"]] = models
    written = {Path(folder): place for folder, place in places.items() if folder != place}
    return Models(Repository(changed.get("models", models), named), written)


def find_model(context: typer.Context, name: str, known: Models) -> tuple[ModelSource, str]:
    """The highest version of a model among the known ones, else in the folder or file `name`; and its place.

    Raises ConfigError if there is none, and for a folder with several models.
    """
    from app.models.model_files import NOTHING, kind_of
    from app.models.repository import SETS

    if sources := known.repository.sources(name):
        return sources[-1], known.place(sources[-1])
    if not name or kind_of(Path(name)) == NOTHING:
        listed = ", ".join(known.repository.scan()) or "none"
        raise ConfigError(f"model {name!r} is not known; models: {listed}")
    there = served(context, f"./{name}" if name in SETS else name)
    inside = there.repository.scan()
    if len(inside) != 1:
        held = f"of {', '.join(inside)}; name one, with --models {name}" if inside else "without a model"
        raise ConfigError(f"model: expected a name or the folder of one model, got {name!r}, a folder {held}")
    ((*_, highest),) = inside.values()
    return highest, there.place(highest)


def load_model(source: ModelSource, max_batch: int = 0) -> Model:
    """Load the model with the same code as the server."""
    from app.models.loading import load

    return load(source, {"max_batch": max_batch} if max_batch else None)
