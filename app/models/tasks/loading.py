"""Loads the model of a task as a `contract.Model`: tensors inside, texts or images and labels for clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.contract import Model, ModelSource, SampleRow
from app.errors import ConfigError, StarlingError
from app.models.base import one_line
from app.models.checks.sample_files import read_samples
from app.models.description.config import FILE_NAME, CheckNames, ModelTable, model_info
from app.models.sources import hubs
from app.models.stages.stages import in_stages
from app.models.tasks.opening import TaskFront


def load_task(
    config: ModelTable,
    source: ModelSource,
    overrides: Mapping[str, object],
    limits: Mapping[str, int],
    row_check: str,
    check_names: CheckNames | None,
) -> Model:
    """As `loaders.load`, of a model.toml with a task. Raises ConfigError naming the file and the key."""
    listed = model_info(config, source, overrides, check_names)
    where = f"{source.folder / FILE_NAME}: source {config.source!r}"
    name = config.source.partition(":")[2]
    try:
        opened = hubs.open_task(str(config.task), name, source.folder, config.kwargs, config.task_options)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:  # transformers raises errors of many kinds
        raise ConfigError(f"{where}: {one_line(error)}") from error
    front = opened.front
    for limit, value in limits.items():
        if hasattr(front.reader, limit):
            setattr(front.reader, limit, value)
    info = replace(listed, inputs=front.reader.inputs, outputs=opened.outputs)
    samples = opened.samples
    if config.warmup is not None:
        path = source.folder / config.warmup.file
        rows = read_samples(path, front.face(info))
        samples, front.example = _read_through(front, rows, str(path)), rows[0]
    model = Model(
        info=info,
        call=opened.module.eval(),
        present=front.present,
        samples=samples,
        row_check=row_check,
        front=front,
    )
    return in_stages(model, config, source.folder / FILE_NAME)


def _read_through(front: TaskFront, rows: tuple[SampleRow, ...], path: str) -> tuple[SampleRow, ...]:
    """Rows as clients send them, as rows of the model itself."""
    found = []
    for row in rows:
        try:
            read = front.read([array[None] for array in row.arrays])
        except StarlingError as error:
            raise ConfigError(f"{path}: {error}") from None
        found.append(SampleRow(tuple(array[0] for array in read.arrays), read.lengths))
    return tuple(found)
