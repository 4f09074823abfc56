"""Tensors of V2 datatypes: conversions, and checks of a model's outputs against its declared specification.

`returned` and `copied` make the arrays of a batch from a model's result, on a device as in `starling check`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Coroutine, Generator, Mapping, Sequence
from functools import reduce
from itertools import chain
from math import prod
from operator import and_
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from app.contract import DATATYPES, Array, Model, TensorSpec
from app.errors import ConfigError, presentable
from app.user_code import place_of
from app.values.arrays import joined_rows

#: V2 datatype name -> torch dtype. BYTES has none: it travels as a numpy object array.
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: torch.bfloat16 if name == "BF16" else getattr(torch, dtype.name)  # torch has numpy's names
    for name, dtype in DATATYPES.items()
    if name != "BYTES"
}
V2_DATATYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

#: What to do where a row has several results, as an image has boxes.
PADDED = (
    "the first axis of each output is that of the rows, and a row's result has one shape: where their number differs, "
    "as that of boxes by image, pad it (docs/model-code.md, Several results a row)"
)
#: A batch is padded to its longest row. If it becomes larger than `_ROOM` bytes and `_STRETCH` times its rows, it fails
#: as out of memory, so that fewer rows run together. `length_buckets` of model.toml avoid that for one variable axis.
_ROOM = 64 << 20
_STRETCH = 4
_OF_TEXT = "numpy.array(..., dtype=object)"
#: The message of an error in TorchScript, which begins with its type, behind the traceback and the code.
_OF_SCRIPT = re.compile(r"in the TorchScript interpreter.*<--- HERE\n(?:[ \t][^\n]*\n)*(\S.*)", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # messages of some libraries have terminal colours
#: Characters of a message that are shown: torch lists each weight that does not fit, the missing ones first.
_HEAD, _TAIL = 600, 400


def one_line(error: BaseException) -> str:
    """The type and the message of an error in one line, without colour codes, addresses and TorchScript's traceback,
    which comes before the message, `shortened`.
    """
    text = f"{type(error).__name__}: {message_of(error)}"
    if of_script := _OF_SCRIPT.search(text):
        text = of_script[1]
    return shortened(" ".join(presentable(_COLOUR.sub("", text)).split()))


def shortened(text: str) -> str:
    """Of a long text, the beginning and the end."""
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} ... {text[-_TAIL:]}"


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # the model's own exception class may raise anything here
        return "(it cannot be shown)"


def with_place(text: str, error: BaseException) -> str:
    """The text, with the line of the model's own files that raised the error, and what to do if that line looked for a
    file elsewhere than beside its own.
    """
    place = place_of(error)
    missing = error.filename if isinstance(error, FileNotFoundError) else None
    if isinstance(missing, str) and place and (Path(place).parent / missing).exists():
        place += "; paths begin where the server was started: of one beside model.py, Path(__file__).parent / NAME"
    return f"{text} at {place}" if place else text


def is_out_of_memory(error: BaseException) -> bool:
    # torch's CPU allocator raises a plain RuntimeError, which only its text distinguishes from a model's own.
    of_torch = type(error) is RuntimeError and "DefaultCPUAllocator" in str(error)
    of_system = isinstance(error, OSError) and error.errno == errno.ENOMEM  # mmap
    return of_torch or of_system or isinstance(error, MemoryError | torch.OutOfMemoryError)


def normalise(result: Any, outputs: Sequence[TensorSpec]) -> list[Any]:
    """A model's result (a tensor, a tuple or list, a mapping or named tuple by output name) as a list in their order.

    The elements are not copied. Raises ConfigError naming the output when the number or the
    names are wrong, or an element is neither a tensor nor an array.
    """
    if isinstance(result, (torch.Tensor, np.ndarray)):
        values: list[Any] = [result]
    elif isinstance(result, (tuple, list)):
        # of a named tuple, also of torch's own, as of aminmax: it may have the outputs in an order of its own
        fields = getattr(result, "__match_args__", ())
        named = bool(fields) and any(spec.name in fields for spec in outputs)
        values = _by_name({field: getattr(result, field) for field in fields}, outputs) if named else list(result)
    elif isinstance(result, Mapping):
        values = _by_name(result, outputs)
    else:
        hint = ""
        if isinstance(result, (Coroutine, Generator)):
            result.close()  # else Python warns that nobody has awaited it
            hint = ": define it without async and yield"
        elif all(hasattr(result, spec.name) for spec in outputs):  # as a dataclass
            hint = ": return a dict of its fields"
        got = type(result).__name__
        raise ConfigError(f"expected a tensor, a tuple or a mapping of outputs {_names(outputs)}, got {got}{hint}")
    if len(values) != len(outputs):
        by_row = f"; {PADDED}" if any(isinstance(value, (Mapping, list, tuple)) for value in values) else ""
        none = ", with None: leave it out" if any(value is None for value in values) else ""
        raise ConfigError(f"expected {len(outputs)} outputs {_names(outputs)}, got {len(values)}{none}{by_row}")
    for spec, value in zip(outputs, values, strict=True):
        if not isinstance(value, (torch.Tensor, np.ndarray)):
            is_text = spec.datatype == "BYTES"
            wanted = f"an array of text ({_OF_TEXT})" if is_text else "a tensor or a numpy array"
            by_row = "" if is_text else f"; {PADDED}"
            raise ConfigError(f"output {spec.name!r}: expected {wanted}, got {type(value).__name__}{by_row}")
    return values


def returned(result: Any, specs: Sequence[TensorSpec], size: int, longest: Mapping[str, int]) -> list[Any]:
    """A model's result for a batch of `size` rows, as a list of outputs of the declared shapes, not copied.

    `longest`: see `check_shape`. Raises ConfigError naming the output.
    """
    values = normalise(result, specs)
    for spec, value in zip(specs, values, strict=True):
        check_shape(spec, value, size, longest)
    return values


def _by_name(result: Mapping[Any, Any], outputs: Sequence[TensorSpec]) -> list[Any]:
    missing = [spec.name for spec in outputs if spec.name not in result]
    if missing:
        raise ConfigError(f"output {missing[0]!r}: not returned; the model returned {sorted(map(str, result))}")
    if len(result) != len(outputs):
        raise ConfigError(f"expected the outputs {_names(outputs)}, got {sorted(map(str, result))}")
    return [result[spec.name] for spec in outputs]


def check_shape(spec: TensorSpec, value: Any, size: int, longest: Mapping[str, int]) -> None:
    """Raise ConfigError unless an output is a batch of `size` rows of the declared shape.

    `longest` gives the length of the batch along each variable axis of the inputs.
    """
    shape = tuple(value.shape)
    if spec.fixed and shape == (size, *spec.shape):
        return
    if shape[:1] != (size,) or not spec.fits(shape[1:]):
        row = (longest.get(axis, -1) if axis else length for axis, length in zip(spec.axes, spec.shape, strict=True))
        other_rows = shape[:1] != (size,) and len(shape) == len(spec.shape) + 1
        by_row = f"; {PADDED}" if other_rows or getattr(value, "is_nested", False) else ""
        raise ConfigError(f"output {spec.name!r}: expected shape {[size, *row]}, got {list(shape)}{by_row}")
    for axis, got in zip(spec.axes, shape[1:], strict=True):
        if axis and longest.get(axis, got) != got:
            raise ConfigError(
                f"output {spec.name!r}: expected the length {longest[axis]} that the inputs have along axis {axis!r}, "
                f"got {got}; pad an output of another length to a bound (docs/model-code.md, Several results a row)"
            )


def copied(value: Any, spec: TensorSpec, rows: int) -> Array:
    """The first `rows` rows of an output on the host, one after another in memory of their own. ConfigError where its
    type is not what was declared; UnicodeEncodeError for half of a surrogate pair.

    numpy cuts and copies, because each torch operator releases the interpreter lock and must take it again. With a busy
    event loop that wait is the most expensive part of a small batch.
    """
    if isinstance(value, torch.Tensor):
        array = _on_host(value, spec)
    elif value.dtype == spec.dtype or (spec.datatype == "BYTES" and value.dtype.kind in "US"):  # as of text labels
        array = value
    else:
        raise wrong_type(spec, value)
    if spec.datatype != "BYTES":
        return np.array(array[:rows], order="C")  # else a transposed result would remain so
    texts = [one if type(one) is bytes else checked_text(one, spec) for one in array[:rows].reshape(-1).tolist()]
    return np.array(texts, object).reshape(array[:rows].shape)


def _on_host(value: torch.Tensor, spec: TensorSpec) -> Array:
    """A tensor as an array that may share its memory."""
    if value.dtype is not TORCH_DTYPES.get(spec.datatype):
        raise wrong_type(spec, value)
    bits = value.view(torch.uint16) if value.dtype is torch.bfloat16 else value
    try:
        lazy = bits.requires_grad or bits.is_neg() or not bits.is_cpu
        array: Array = bits.numpy(force=True) if lazy else bits.numpy()
    except (RuntimeError, TypeError) as error:  # sparse, or without values
        raise wrong_type(spec, value) from error
    return array


def wrong_type(spec: TensorSpec, value: Any) -> ConfigError:
    """The error for an output that is not of the declared datatype, or whose values cannot be read."""
    wanted: Any = _OF_TEXT
    if spec.datatype != "BYTES":
        # BF16 has no numpy dtype, so an array of it can only be its bits
        wanted = spec.dtype if isinstance(value, np.ndarray) else TORCH_DTYPES[spec.datatype]
    return ConfigError(f"output {spec.name!r}: expected {spec.datatype} ({wanted}), got {value.dtype}{_kind(value)}")


def _kind(value: torch.Tensor | Array) -> str:
    """What kind of tensor it is, and what makes an ordinary one of it; "" of others."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.is_quantized:
        return ": return y.dequantize()"
    if value.is_complex():
        return ": return y.real, y.abs() or torch.view_as_real(y)"
    if value.layout is not torch.strided:
        return f" of layout {value.layout}: return y.to_dense()"
    if value.is_meta or type(value) is not torch.Tensor:
        return f", a {type(value).__name__} on {value.device} without values that can be read"
    return ""


def checked_text(value: Any, spec: TensorSpec) -> bytes | str:
    """An element of a BYTES output; a number as its text. Raises ConfigError for anything else, UnicodeEncodeError for
    half of a surrogate pair.
    """
    if isinstance(value, str):
        value.encode()
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, int | float | np.generic):
        return str(value)
    raise ConfigError(f"output {spec.name!r}: expected bytes or str in each place, got {type(value).__name__}")


# conversions


def stacked(rows: Sequence[Any], spec: TensorSpec) -> Any:
    """Separate rows as one batch: a tensor, or an array of text. Shorter rows are padded. A row may be bare bytes, for
    text without axes.

    Raises MemoryError if padding would make the batch many times as large as its rows.
    """
    if isinstance(rows[0], bytes):
        return np.array(rows, object)
    longest = tuple(map(max, zip(*(row.shape for row in rows), strict=True)))
    nbytes = len(rows) * prod(longest) * spec.dtype.itemsize
    if nbytes > max(_ROOM, _STRETCH * sum(row.nbytes for row in rows)):
        raise MemoryError(f"input {spec.name!r}: {len(rows)} rows padded to {list(longest)} would take {nbytes} bytes")
    each = [row[None] for row in rows]
    batch = joined_rows(each, stored(spec, spec.pad_value)) if len(each) > 1 else each[0].copy()
    return as_tensor(spec, batch)


def stored(spec: TensorSpec, value: float) -> Any:
    """A number as the memory of an input holds it: of BF16 the bits, of text nothing."""
    if spec.datatype == "BYTES":
        return b""
    return to_bits(np.array([value], np.float32))[0] if spec.datatype == "BF16" else value


def as_tensor(spec: TensorSpec, values: Array) -> torch.Tensor | Array:
    """An array as a tensor that shares its memory; text is returned unchanged."""
    return values if spec.datatype == "BYTES" else torch.from_numpy(values).view(TORCH_DTYPES[spec.datatype])


def with_server_inputs(
    inputs: Sequence[TensorSpec], sent: list[Any], lengths: Mapping[str, torch.Tensor], longest: Mapping[str, int]
) -> list[Any]:
    """All inputs of a batch in the order declared: those that clients send, and those that the server computes from the
    lengths of its rows: the lengths themselves, and masks.

    `lengths` has the length of each row, padding rows included, along each variable axis; `longest` the length of the
    batch along it.
    """
    if len(sent) == len(inputs):
        return sent
    values = iter(sent)
    return [_computed(spec, lengths, longest) if spec.made else next(values) for spec in inputs]


def _computed(spec: TensorSpec, lengths: Mapping[str, torch.Tensor], longest: Mapping[str, int]) -> torch.Tensor:
    """The input `spec`, in memory of its own, on the device of `lengths`."""
    dtype = TORCH_DTYPES[spec.datatype]
    if spec.lengths_of:
        return lengths[spec.lengths_of].to(dtype, copy=True)
    size = len(next(iter(lengths.values())))
    shape = [size, *(longest[axis] if axis else length for axis, length in zip(spec.axes, spec.shape, strict=True))]
    inside = [
        (torch.arange(longest[axis], device=lengths[axis].device) < lengths[axis][:, None]).view(
            size, *[1] * before, longest[axis], *[1] * (len(spec.axes) - before - 1)
        )
        for before, axis in enumerate(spec.axes)
        if axis
    ]
    # A model may write into its inputs, which expanded memory does not allow.
    return reduce(and_, inside).expand(shape).to(dtype).contiguous()


def device_of(call: Any) -> torch.device:
    """The device of a module's weights or buffers; the CPU without any."""
    held = chain(call.parameters(), call.buffers()) if isinstance(call, nn.Module) else ()
    return next((value.device for value in held), torch.device("cpu"))


def networks_of(model: Model) -> list[nn.Module]:
    """The networks that a model and its stages are, or that they keep: as an object's attributes, in a function's
    closure, or as the owner of a method.
    """
    found: list[Any] = []
    for part in (model.call, *model.stages.calls, model.stages.context):
        cells = (isinstance(part, FunctionType) and part.__closure__) or ()  # a proxy has an attribute of any name
        closed = [cell.cell_contents for cell in cells if cell != CellType()]  # one is empty: of an unset variable
        own = getattr(part, "__dict__", None)
        found += [part, getattr(part, "__self__", None), *closed, *(own.values() if isinstance(own, Mapping) else ())]
    return [one for one in found if isinstance(one, nn.Module)]


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Cast between floating-point types only: an integer in place of a float is a `wrong_type`."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point() and dtype.is_floating_point
    return value.to(dtype) if floating else value


def to_bits(values: Array) -> Array:
    """float32 numbers as the bits of bfloat16."""
    bits: Array = torch.from_numpy(np.asarray(values, np.float32)).to(torch.bfloat16).view(torch.uint16).numpy()
    return bits


def _names(specs: Sequence[TensorSpec]) -> list[str]:
    return [spec.name for spec in specs]
