"""Restores frozen dataclasses from plain data: from what `asdict` returned, or from JSON of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from itertools import repeat
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

hints_of = cache(get_type_hints)  # cached, because resolving the annotations of a class or method is slow


def built(kind: Any, data: Any) -> Any:
    """A value of type `kind`: a dataclass, a tuple, an enumeration, an optional of these, or a type that JSON has.

    Raises KeyError, TypeError or ValueError if the data does not fit.
    """
    args = get_args(kind)
    if get_origin(kind) is UnionType:  # with None
        return None if data is None else built(args[0], data)
    if get_origin(kind) is tuple:
        kinds = repeat(args[0]) if args[-1] is Ellipsis else args
        return tuple(built(one, value) for one, value in zip(kinds, data, strict=False))
    if get_origin(kind) is Mapping:
        return {args[0](key): built(args[1], value) for key, value in dict(data).items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = hints_of(kind)
        return kind(**{name: built(hints[name], value) for name, value in dict(data).items()})
    return kind(data) if isinstance(kind, type) and issubclass(kind, Enum) else data
