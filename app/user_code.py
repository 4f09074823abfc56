"""Finds the frames of a traceback in the model owner's code: not the server's, torch's or the standard library's."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_ROOT = str(Path(__file__).parent.parent)  # not resolved: neither are the names in frames
_SERVER = tuple(os.path.join(_ROOT, package, "") for package in ("app", "planner"))
_DEMO_MODELS = os.path.join(_ROOT, "app", "models", "demo", "")  # their code counts as an owner's
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages, which may lie inside _STDLIB

ExcInfo = tuple[type[BaseException], BaseException, TracebackType]


def links_of(error: BaseException) -> Iterator[TracebackType]:
    """The links of the error's traceback, one per frame, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def own_links(error: BaseException) -> list[TracebackType]:
    """The links in the owner's code, and in packages that it calls."""
    return [link for link in links_of(error) if _is_own(_file(link))]


def own_trace(error: BaseException) -> ExcInfo | None:
    """For the log's `exc_info`: the owner's exception, from its first own frame on. None if no own frame is in it.

    Follows causes: `raise ConfigError(...) from error`.
    """
    cause: BaseException | None = error
    while cause is not None:
        if links := own_links(cause):
            return type(cause), cause, links[0]
        cause = cause.__cause__
    return None


def place_of(error: BaseException) -> str:
    """The last frame in the owner's own files, as `FILE:LINE in NAME`; "" if there is none."""
    found = own_trace(error)
    if found is None:
        return ""
    links = own_links(found[1])
    last = ([link for link in links if not is_installed(_file(link))] or links)[-1]
    return f"{_file(last)}:{last.tb_lineno} in {last.tb_frame.f_code.co_name}"


def _file(link: TracebackType) -> str:
    return link.tb_frame.f_code.co_filename


def is_installed(filename: str) -> bool:
    """Whether a file or folder is of an installed package."""
    return not _INSTALLED.isdisjoint(filename.split(os.sep))


def _is_own(filename: str) -> bool:
    if filename.startswith(_DEMO_MODELS):
        return True
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if filename.startswith(("<frozen ", "<model ", *_SERVER)) or (
        torch and filename.startswith(os.path.dirname(torch) + os.sep)
    ):
        return False
    return not filename.startswith(_STDLIB) or is_installed(filename)
