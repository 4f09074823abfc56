"""Every error a caller can see.

StarlingError
 +-- BadRequest 400
 |    +-- BadText 400        of one row
 |    |    +-- TextTooLong 400
 |    +-- BadFrames 400, 431  answered by the connection
 +-- Unauthorized 401
 +-- Forbidden 403
 +-- NotFound 404
 +-- MethodNotAllowed 405
 +-- BodyTimeout 408
 +-- LengthRequired 411
 +-- TooLarge 413
 +-- UnsupportedMedia 415
 +-- QueueFull 429           with a retry hint, as both below
 +-- TooManyConnections 429
 +-- DeadlineUnreachable 429
 +-- ClientGone 499
 +-- ModelFailed 500
 +-- OutputNotJson 500
 +-- NotReady 503            with one, too
 +-- DeadlineExceeded 504

`error_parts` in `http/errors.py` makes `{"error": message}` of each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def presentable(text: str) -> str:
    """The text without memory addresses, which exceptions of a model's code may contain and only help attackers.

    What is no Unicode, as bytes of paths that are no UTF-8 are in Python, becomes U+FFFD: no encoder takes it.
    """
    text = _ADDRESS.sub("", text) if " at 0x" in text else text
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def text_of(error: BaseException) -> str:
    """The message of an error; its type where it has none. An exception class of a model's may raise when asked."""
    try:
        text = str(error) or type(error).__name__
        return f"no key {text}" if isinstance(error, KeyError) else text
    except BaseException:
        return f"{type(error).__name__} (it cannot be shown)"


class StarlingError(Exception):
    """Base of all errors that reach a caller. Raise a leaf, never this.

    `cause`: the exception of a model's own code that led to this error, if any; it is logged when the request is
    answered. `param`: the wrong field of the request, for routes whose error bodies name it. `closes`: a call that it
    answers closes its connection: the rest of a body that came too late, a server that may be going.
    """

    status = 500
    code = "internal"
    closes = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: int | None = None,
        cause: BaseException | None = None,
        param: str | None = None,
    ) -> None:
        self.message = presentable(message)
        super().__init__(self.message)
        self.retry_after_s = retry_after_s
        self.cause = cause
        self.param = param


#: What a caller hears of any other exception: nothing. Who answers with it logs the exception.
INTERNAL = StarlingError("internal error: the server's log has the details")


def as_starling_error(exc: BaseException) -> StarlingError:
    """The error that a caller sees."""
    return exc if isinstance(exc, StarlingError) else INTERNAL


class BadRequest(StarlingError):
    status, code = 400, "bad_request"


def bad_field(field: str, what: str) -> BadRequest:
    """The error for a wrong field of the request: what is wrong with it."""
    return BadRequest(f"{field}: {what}", param=field)


class BadText(BadRequest):
    """`name`: of the input. `row`: of the call, None if it has only one. `wrong`: "expected ..., got ..."."""

    def __init__(self, name: str, row: int | None, wrong: str) -> None:
        super().__init__(f"{name}{'' if row is None else f' of row {row}'}: {wrong}", param=name)
        self.name = name
        self.row = row
        self.wrong = wrong


class TextTooLong(BadText):
    code = "context_length_exceeded"  # OpenAI's: agents that see it shorten their conversation


class BadFrames(BadRequest):
    """Chunks or trailers are malformed. The connection has answered the request, with `status`."""

    def __init__(self, status: int) -> None:
        super().__init__("body: not valid chunks")
        self.status = status


class Unauthorized(StarlingError):
    status, code = 401, "unauthorized"


class Forbidden(StarlingError):
    status, code = 403, "forbidden"


class NotFound(StarlingError):
    status, code = 404, "not_found"


class MethodNotAllowed(StarlingError):
    status, code = 405, "method_not_allowed"


class BodyTimeout(StarlingError):
    status, code, closes = 408, "body_timeout", True


class LengthRequired(StarlingError):
    status, code = 411, "length_required"


class TooLarge(StarlingError):
    status, code = 413, "too_large"


class UnsupportedMedia(StarlingError):
    status, code = 415, "unsupported_media"


class QueueFull(StarlingError):
    status, code = 429, "queue_full"


class TooManyConnections(StarlingError):
    status, code, closes = 429, "too_many_connections", True


class DeadlineUnreachable(StarlingError):
    status, code = 429, "deadline_unreachable"


class ClientGone(StarlingError):
    status, code = 499, "client_gone"


class ModelFailed(StarlingError):
    status, code = 500, "model_failed"


class OutputNotJson(StarlingError):
    status, code = 500, "output_not_json"


class NotReady(StarlingError):
    status, code, closes = 503, "not_ready", True


class DeadlineExceeded(StarlingError):
    status, code = 504, "deadline_exceeded"


def codes(kind: type[StarlingError] = StarlingError) -> set[str]:
    """The codes of all errors that are `kind`."""
    return {kind.code}.union(*(codes(leaf) for leaf in kind.__subclasses__()))


class ConfigError(Exception):
    """A setting, model.toml or model file is wrong. The message names file, key and what was expected.

    Never sent to a client as such: at start it is one line and exit status 2; while serving it is the reason that the
    repository index shows for the model.
    """

    def __init__(self, message: str) -> None:
        super().__init__(presentable(message))


#: How pydantic says what it expects, and how that is said here.
_OURS = {
    r"^\w+ should (be|have) |(, unable to| after validation,| or instance of).*": "",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a (valid )?dictionary": "a table",
    "a valid ": "a ",
    "a (?=integer)|valid (?=integer)": "an ",
    "tuple": "list",
}


def explain(error: ValidationError, table: type[BaseModel]) -> str:
    """A fault of values that do not fit `table`, as `inputs[0].shape: expected ..., got ...`."""
    # a missing key last: an unknown one may be its misspelt name
    first = min(error.errors(), key=lambda one: one["type"] == "missing")
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
    if first["type"] == "missing":
        return f"{where}: expected a value, got none"
    if first["type"] == "extra_forbidden":
        *above, key = first["loc"]
        return f"{where}: unknown key; expected one of {_known_keys(table, above)}{_belongs(table, str(key))}"
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        # a validator of a whole table names the key within it
        return f"{where}.{text}" if re.match(r"\w+: ", text) and where else f"{where}: {text}" if where else text
    if first["type"] == "list_type" and isinstance(first["input"], dict) and where in _tables(table):
        return f"{where}: expected a list of tables, [[{where}]], got one table, [{where}]"
    wanted = first["msg"]
    for pattern, ours in _OURS.items():
        wanted = re.sub(pattern, ours, wanted)
    return f"{where}: expected {wanted}, got {first['input']!r}"


def _known_keys(table: type[BaseModel], steps: Sequence[int | str]) -> str:
    """The keys of the table that these steps of a location lead to."""
    for step in steps:
        if isinstance(step, str):
            table = _tables(table)[step]
    return ", ".join(table.model_fields)


def _belongs(table: type[BaseModel], key: str) -> str:
    """Where else the key may stand: in TOML it belongs to the table named above it."""
    names = ["above the first [table]"] if key in table.model_fields else []
    names += [f"under [{name}]" for name, inner in _tables(table).items() if key in inner.model_fields]
    return f"; {key} stands {' or '.join(names)}" if names else ""


def _tables(table: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The tables in a table, by their keys."""
    kinds = {name: field.annotation for name, field in table.model_fields.items()}
    return {
        name: each for name, kind in kinds.items() for each in (*get_args(kind), kind) if hasattr(each, "model_fields")
    }


def not_installed(name: str, packages: str = "", why: str = "is not installed") -> ConfigError:
    """The error for a missing optional library. Says what to install, by its names on PyPI, and where."""
    return ConfigError(f"{name} {why}: pip install {packages or name}, in the environment {sys.prefix}")


def refused(exc: OSError) -> str:
    """What the system has refused: the file, if there is one, and why."""
    why = exc.strerror or str(exc)
    return why if exc.filename is None else f"{exc.filename}: {why}"


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Put the file, and the key or setting, before the text of an error of ours, which becomes a ConfigError."""
    try:
        yield
    except (ConfigError, StarlingError) as error:
        raise ConfigError(f"{where}: {error}") from None


@contextmanager
def as_config_error(field: str = "") -> Iterator[None]:
    """Turn ValueError and OSError into ConfigError: mistakes of a command's user become one line, after the `field`."""
    try:
        yield
    except (ValueError, OSError) as exc:
        text = refused(exc) if isinstance(exc, OSError) else str(exc)
        raise ConfigError(f"{field}: {text}" if field else text) from exc
