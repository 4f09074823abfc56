"""What a request says about texts that are too long: to cut them, and where. The names are those of other servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.contract import Front, TextCut
from app.errors import bad_field
from app.http.codecs.base import DecodedCall
from app.values.tensors import shown

_SIDES = {"left": True, "right": False}
#: TEI's, Voyage's and Hugging Face's true and false; Cohere's and NIM's words; the number of tokens, of TGI.
_CUTS = {"NONE": None, "END": TextCut(left=False), "START": TextCut(left=True)}
NAMES = frozenset({
    "truncate", "truncation", "truncate_prompt_tokens", "max_tokens_per_doc", "truncation_direction", "truncation_side",
})  # fmt: skip


def take_cut(call: DecodedCall, front: Front) -> TextCut | None:
    """Take the fields of NAMES out of the call's parameters; see `cut_of`."""
    given = call.parameters
    if not given or NAMES.isdisjoint(given):
        return None
    call.parameters = {name: value for name, value in given.items() if name not in NAMES}
    return cut_of(given, front)


def cut_of(given: Mapping[str, Any], front: Front | None) -> TextCut | None:
    """What the fields of NAMES among these say; None: long texts are refused. Raises BadRequest."""
    left: bool | None = None
    for name in ("truncation_direction", "truncation_side"):
        if (side := given.get(name)) is not None:
            left = _SIDES.get(side.lower()) if isinstance(side, str) else None
            if left is None:
                raise bad_field(name, f"expected left or right, got {shown(side)}")
    found = [_cut(name, value) for name, value in given.items() if name in NAMES and value is not None]
    cuts = [cut for cut in found if cut is not None]
    if not cuts:
        return None
    if len(cuts) > 1:
        raise bad_field(cuts[0].name, f"expected nothing beside {cuts[1].name}")
    (cut,) = cuts
    if front is None or not front.reader.cuts or (cut.last and len(front.reader.sent) < 2):
        raise bad_field(cut.name, "not accepted: this model reads texts whole")
    return TextCut(cut.most, cut.left if left is None else left, cut.last, cut.name)


def _cut(name: str, value: Any) -> TextCut | None:
    if name.startswith("truncation_"):
        return None
    if name in ("truncate", "truncation") and (type(value) is bool or isinstance(value, str)):
        if isinstance(value, str) and value.upper() not in _CUTS:
            raise bad_field(name, f"expected true, false, NONE, START, END or a number of tokens, got {shown(value)}")
        cut = _CUTS[value.upper()] if isinstance(value, str) else TextCut() if value else None
        return None if cut is None else TextCut(None, cut.left, name=name)
    if name == "truncate_prompt_tokens" and value == -1 and type(value) is int:
        return TextCut(name=name)
    if type(value) is not int or value < 1:
        raise bad_field(name, f"expected a number of at least 1, got {shown(value)}")
    return TextCut(value, last=name == "max_tokens_per_doc", name=name)
