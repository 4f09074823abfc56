"""Whether a model that has been loaded is in stages: its source says so, or model.toml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.contract import Model
from app.errors import ConfigError
from app.models.description.config import ModelTable
from app.models.recurrent.cells import CellModel
from app.models.stages.staged import Staged


def in_stages(model: Model, config: ModelTable, path: Path) -> Model:
    """The model with the stages that its factory gave it or that the model.toml at `path` asks for, if it has any.

    Raises ConfigError naming the file and the key.
    """
    call = model.call
    asked = config.cuts is not None or config.stages is not None
    given = isinstance(call, Staged) and len(call.stages) > 1
    if not (asked or given):
        return model
    for index, table in enumerate(config.inputs):
        if table.datatype == "BYTES":
            what = f"{path}: inputs[{index}].datatype"
            raise ConfigError(f"{what}: expected numbers for a model in stages, got BYTES")
    if not asked:
        assert isinstance(call, Staged)
        return replace(model, stages=call.stages, again=call.again, context=call.context)
    from app.models.stages.slicing import Cuts, sliced  # imports much of torch, which takes half a second

    cuts = Cuts(tuple(config.cuts or ()), config.stages or 0)
    try:
        if given or isinstance(call, CellModel):
            what = "a source that returns Staged" if given else "a recurrent model"
            raise ConfigError(f"expected none for {what}, got {cuts.told}")
        return sliced(model, cuts)
    except ConfigError as error:
        raise ConfigError(f"{path}: {'cuts' if config.cuts else 'stages'}: {error}") from None
