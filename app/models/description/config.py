"""Reads and checks model.toml, and makes a `ModelInfo` of it.

Every fault of the file becomes a ConfigError `FILE: KEY: expected ..., got ...`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from app.contract import Batching, ModelInfo, ModelSource
from app.errors import ConfigError, explain
from app.models.description.config_tables import InputTable, OutputTable, Table, TaskTable, expects
from app.models.description.declared_specs import input_specs, output_specs
from app.models.tasks.task_specs import TASKS

FILE_NAME = "model.toml"
#: The default `platform` of a model in its metadata, by its source's suffix.
_PLATFORMS = {
    ".onnx": "onnxruntime_onnx", ".pt": "pytorch_libtorch", ".pth": "pytorch_libtorch"
}  # fmt: skip
_WEIGHTS = "expected a model, got a file of weights: name it by weights, beside a source that builds the network"
_CONVERT = "expected ONNX: convert it with tf2onnx to model.onnx"
_PICKLE = (
    "expected no pickle, which may run any code as it is opened: save model.state_dict() and name that file by weights "
    "(PyTorch), or open it in a model.py of yours, as examples/sklearn does"
)
_ESTIMATOR = (
    "expected a network: an estimator (scikit-learn, XGBoost, LightGBM) is served by a model.py that opens it and "
    "takes its columns as inputs, as in examples/sklearn"
)
#: Suffixes of files that are no models, with the error that says what to do.
INSTEAD = {
    **dict.fromkeys((".safetensors", ".ckpt", ".bin"), _WEIGHTS),
    **dict.fromkeys((".pkl", ".pickle"), _PICKLE),
    **dict.fromkeys((".h5", ".keras", ".pb", ".tflite"), _CONVERT),
    **dict.fromkeys((".joblib", ".ubj", ".json", ".txt"), _ESTIMATOR),
}
#: Ends of the lengths that may share a batch, for inputs without bound: padding makes a row at most four times as long.
#: A batch is padded to its longest row, so one row of a million values would make all others as long.
_BUCKETS = tuple(1024 << 2 * n for n in range(10))


class WarmupTable(Table):
    """`[warmup]`: real rows to try the model with, beside model.toml."""

    file: Annotated[str, expects("a .json or .npz file", lambda value: value.endswith((".json", ".npz")))]


class ModelTable(Table):
    """A whole model.toml. Inputs and outputs may be left out with a `task`, or if an ONNX graph declares them."""

    source: str = Field(min_length=1)
    kwargs: dict[str, Any] = Field(default_factory=dict)
    task: Annotated[str, expects(f"one of {', '.join(TASKS)}", TASKS.__contains__)] | None = None
    task_options: TaskTable = TaskTable()
    weights: str | None = None
    platform: str | None = None
    description: str = ""
    row_check: Literal["refuse", "warn", "off"] = "refuse"
    profile: bool = True
    allow_untried: bool = False
    cuts: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1)
    stages: int | None = Field(default=None, ge=2, le=64)
    recurrent: bool = False
    warmup: WarmupTable | None = None
    inputs: list[InputTable] = Field(default_factory=list, min_length=1)
    outputs: list[OutputTable] = Field(default_factory=list, min_length=1)
    batching: Batching = Batching()

    @field_validator("source")
    @classmethod
    def _file_is_a_model(cls, value: str) -> str:
        if "://" in value:
            raise ValueError(f"expected a file or a class, no address: download it, got {value!r}")
        if ":" not in value and (instead := INSTEAD.get(PurePath(value).suffix)):
            raise ValueError(f"{instead}, got {value!r}")
        return value

    @model_validator(mode="after")
    def _task_or_tensors(self) -> ModelTable:
        """A model has either a task or inputs and outputs of its own."""
        if self.task is None:
            for key in ("inputs", "outputs"):
                if not getattr(self, key) and not is_onnx(self.source):
                    raise ValueError(f"{key}: expected a value, got none")
            if "task_options" in self.model_fields_set:
                raise ValueError("task_options: expected none without a task")
            return self
        if not self.source.startswith("hf:"):
            raise ValueError(f"task: expected none for the source {self.source!r}: tasks are for hf:FOLDER_OR_ID")
        for key in ("inputs", "outputs", "weights", "recurrent"):
            if key in self.model_fields_set:
                raise ValueError(f"{key}: expected none beside the task {self.task!r}, which says what goes in and out")
        self.task_options.check(self.task)
        return self

    @model_validator(mode="after")
    def _keys_agree(self) -> ModelTable:
        if self.cuts is not None and self.stages is not None:
            raise ValueError(f"stages: expected either stages or cuts, got both: {self.stages} and {self.cuts}")
        for key, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            names = [tensor.name for tensor in tensors]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{key}: expected names that differ, got {twice[0]!r} more than once")
        return self


def read_config(folder: Path) -> ModelTable:
    """Read `folder`/model.toml. Raises ConfigError naming the file, the key, the expected value and the actual one."""
    path = folder / FILE_NAME
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows put a mark in front
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: expected a readable TOML file: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: expected a readable TOML file: its values are nested too deeply") from None
    return parse_config(table, path)


def parse_config(table: Mapping[str, Any], path: Path) -> ModelTable:
    """As `read_config`, of a table that was read from the file at `path`."""
    try:
        return ModelTable.model_validate(table)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, ModelTable)}") from None


def is_onnx(source: str) -> bool:
    return source.endswith(".onnx")


def model_info(config: ModelTable, source: ModelSource, overrides: Mapping[str, object] | None = None) -> ModelInfo:
    """The ModelInfo that the file declares. Reads the files of labels.

    `overrides` holds fields of `contract.Batching` that beat the file's: flags and environment variables, which
    Settings has checked. Raises ConfigError for axes or labels that do not fit together. Outputs may have axes that no
    input has: the loader checks whether the model may have such. For a task, inputs and outputs are those known before
    the model is loaded.
    """
    path = source.folder / FILE_NAME
    batching = Batching.model_validate({**config.batching.model_dump(exclude_unset=True), **(overrides or {})})
    if config.task is not None:
        inputs, outputs = TASKS[config.task].sent, TASKS[config.task].answered
    else:
        inputs = input_specs(path, config.inputs)
        outputs = output_specs(path, config.outputs, inputs)
        if not (batching.length_buckets or all(spec.bounded for spec in inputs)):
            batching = batching.model_copy(update={"length_buckets": _BUCKETS})
    return ModelInfo(
        name=source.name,
        version=str(source.version),
        platform=config.platform or _PLATFORMS.get(PurePath(config.source).suffix, "pytorch"),
        inputs=inputs,
        outputs=outputs,
        batching=batching,
    )
