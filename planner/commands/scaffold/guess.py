"""Guesses a model's inputs and outputs from its layers and from runs, for the model.toml of `starling new`.

A guess is tried before it is written. If there is none, the error asks for `--input NAME:DATATYPE[SHAPE]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from app.contract import DATATYPES, SampleRow, TensorSpec, axis_bounds
from app.errors import ConfigError, explain
from app.models.base import PADDED, V2_DATATYPES
from app.models.checks.samples import made_up_rows, stack
from app.models.description.config_tables import InputTable
from app.models.description.declared_specs import input_specs

InputTables = list[dict[str, Any]]

_SIDES = (224, 64, 32, 28, 96, 128)  # pixels of an image: common sizes, tried in this order
_LONGEST = 128  # of sequences: a bound that the owner may raise later
_SHORT, _LONG = 8, 12  # two lengths, to see which axes of an output follow them
_RECURRENT = ("LSTM", "GRU", "RNN")
_EXPORT = (
    "export it with torch.export.export(..., dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), a dict for each input"
)
_ONE_BY_ONE = ", or serve rows one by one: a model.toml with max_batch = 1 under [batching]"
ASK = 'give the inputs by --input NAME:DATATYPE[SHAPE], one row without the batch, such as --input "x:FP32[3]"'


def guesses(module: nn.Module) -> Iterator[InputTables]:
    """Guesses of the module's only input, from its first layer with weights, in several sizes. Raises ConfigError."""
    names = _arguments(module)
    if len(names) != 1:
        raise ConfigError(f"its forward takes {', '.join(names) or 'nothing'}, of which no shapes are known: {ASK}")
    for layer in module.modules():
        shapes = list(_shapes(layer))
        if shapes:
            yield from ([{"name": names[0], **shape}] for shape in shapes)
            return
    raise ConfigError(f"none of its layers says what it takes: {ASK}")


def exported_inputs(program: Any) -> InputTables:
    """The inputs of a torch.export program: shapes from its graph, free axes by name. The first axis is the batch.

    Raises ConfigError if that is of one size, as in a program that was exported in the ordinary way.
    """
    wanted = set(program.graph_signature.user_inputs)
    upper = {str(symbol): str(found.upper) for symbol, found in program.range_constraints.items()}
    bounds = {symbol: int(text) for symbol, text in upper.items() if text.isdecimal()}  # others are infinite
    axes: dict[str, str] = {}
    tables: InputTables = []
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in wanted:
            continue
        value = node.meta["val"]
        if not value.ndim or isinstance(value.shape[0], int):
            got = f"got [{', '.join(map(str, value.shape))}]"
            how = _EXPORT + (_ONE_BY_ONE if tuple(value.shape[:1]) == (1,) else "")
            raise ConfigError(f"input {node.name!r}: expected a batch of any size as the first axis, {got}: {how}")
        symbols = [None if isinstance(size, int) else str(size) for size in value.shape[1:]]
        for symbol in filter(None, symbols):
            axes.setdefault(symbol, "length" if not axes else f"length_{len(axes) + 1}")
        sizes = zip(symbols, value.shape[1:], strict=True)
        shape = [axes[symbol] if symbol else int(size) for symbol, size in sizes]
        table = {"name": node.name, "datatype": _datatype(value), "shape": shape}
        if any(symbol in bounds for symbol in symbols):
            largest = zip(symbols, shape, strict=True)
            table["max_shape"] = [bounds.get(symbol, -1) if symbol else size for symbol, size in largest]
        tables.append(table)
    return tables


def specs_of(tables: InputTables) -> tuple[TensorSpec, ...]:
    """The specs of these tables. Raises ConfigError for tables that are not valid in model.toml."""
    try:
        return input_specs(Path("--input"), [InputTable.model_validate(table) for table in tables])
    except ValidationError as error:
        raise ConfigError(f"input: {explain(error, InputTable)}") from None


def request_row(specs: Sequence[TensorSpec]) -> SampleRow:
    """A made-up row of short sequences, for a request."""
    return made_up_rows(specs, [_lengths(specs, _SHORT)])[0]


def found_outputs(call: Callable[..., Any], tables: InputTables) -> list[dict[str, Any]]:
    """Run two made-up rows at two lengths, and return the outputs as tables of model.toml.

    Raises ConfigError, or whatever the model raises.
    """
    specs = specs_of(tables)
    runs: list[dict[str, Any]] = []
    lengths = [_lengths(specs, length) for length in (_SHORT, _LONG)]
    for one in lengths:
        with torch.inference_mode():
            runs.append(_named(call(*stack(specs, made_up_rows(specs, [one, one])))))
    axes = list(lengths[0])
    outputs = []
    for name, first in runs[0].items():
        pairs = list(zip(first.shape, runs[1][name].shape, strict=True))
        if pairs[:1] != [(2, 2)]:
            raise ConfigError(f"output {name!r}: expected a row for each of 2, got shape {list(first.shape)}; {PADDED}")
        shape = [_axis(pair, axes, lengths, name) for pair in pairs[1:]]
        outputs.append({"name": name, "datatype": _datatype(first), "shape": shape})
    return outputs


def _lengths(specs: Sequence[TensorSpec], length: int) -> dict[str, int]:
    """A length for each variable axis, no two equal, within its bound."""
    return {
        axis: min(length + place, bound or length + place)
        for place, (axis, bound) in enumerate(axis_bounds(specs).items())
    }


def _axis(pair: tuple[int, int], axes: Sequence[str], lengths: Sequence[Mapping[str, int]], name: str) -> int | str:
    if pair[0] == pair[1]:
        return int(pair[0])
    for axis in axes:
        if pair == (lengths[0][axis], lengths[1][axis]):
            return axis if "." not in axis else -1
    raise ConfigError(f"output {name!r}: an axis is {pair[0]} and {pair[1]} long, which follows none of the inputs'")


def _named(result: Any) -> dict[str, Any]:
    """A model's outputs by name: its own, or made-up ones."""
    if isinstance(result, Mapping):
        named = {str(name): value for name, value in result.items() if value is not None}
    elif isinstance(result, (tuple, list)):
        names = ["output"] if len(result) == 1 else [f"output_{number}" for number in range(len(result))]
        named = dict(zip(getattr(result, "__match_args__", names), result, strict=True))  # of a named tuple its own
    else:
        named = {"output": result}
    for name, value in named.items():
        if not isinstance(value, (torch.Tensor, np.ndarray)):
            by_row = f"; {PADDED}" if isinstance(value, (Mapping, list, tuple)) else ""
            raise ConfigError(
                f"output {name!r}: expected a tensor or a numpy array, got {type(value).__name__}{by_row}"
            )
    return named


def _datatype(value: Any) -> str:
    """The V2 datatype of a tensor or an array; text is BYTES."""
    if isinstance(value, np.ndarray):
        known = {dtype: name for name, dtype in DATATYPES.items() if name != "BF16"}
        found = "BYTES" if value.dtype.kind in "OUS" else known.get(value.dtype, "")
    else:
        found = V2_DATATYPES.get(value.dtype, "")
    if not found:
        raise ConfigError(f"expected a type that V2 has, got {value.dtype}")
    return found


def _arguments(module: nn.Module) -> list[str]:
    """Names of the arguments that `forward` must be given."""
    if isinstance(module, torch.jit.ScriptModule):
        forward: Any = module.forward
        arguments = forward.schema.arguments[1:]
        return [argument.name for argument in arguments if not argument.has_default_value()]
    parameters = inspect.signature(module.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in positional and one.default is one.empty] or ["x"]


def _kind(layer: nn.Module) -> str:
    """The name of a layer's class, also of one in TorchScript."""
    return str(getattr(layer, "original_name", type(layer).__name__))


def _shapes(layer: nn.Module) -> Iterator[dict[str, Any]]:
    """Guesses of the input of a layer with weights, the likeliest first; none for other layers."""
    kind = _kind(layer)
    weight = getattr(layer, "weight_ih_l0" if kind in _RECURRENT else "weight", None)
    if not isinstance(weight, torch.Tensor):
        return
    sizes = list(weight.shape)
    channels = sizes[1] * int(getattr(layer, "groups", 1)) if len(sizes) > 1 else sizes[0]
    if kind == "Embedding":
        bounds = {"minimum": 0, "maximum": sizes[0] - 1}
        yield {"datatype": "INT64", "shape": ["tokens"], "max_shape": [_LONGEST], **bounds}
    elif kind in _RECURRENT:
        yield {"datatype": "FP32", "shape": ["time", channels], "max_shape": [_LONGEST, channels]}
    elif kind in ("Conv2d", "BatchNorm2d"):
        yield from ({"datatype": "FP32", "shape": [channels, side, side]} for side in _SIDES)
    elif kind == "Conv1d":
        yield {"datatype": "FP32", "shape": [channels, "time"], "max_shape": [channels, _LONGEST]}
    elif kind in ("Linear", "BatchNorm1d"):
        yield {"datatype": "FP32", "shape": [channels]}
    elif kind == "LayerNorm":
        yield {"datatype": "FP32", "shape": sizes}
