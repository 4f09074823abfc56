"""What errors say, to clients and in the log."""

from __future__ import annotations

import os

import pytest

from app.errors import BadRequest, ConfigError, ModelFailed, text_of


@pytest.mark.parametrize("kind", [BadRequest, ModelFailed, ConfigError])
def test_messages_do_not_say_where_in_memory_objects_are(kind: type[Exception]) -> None:
    assert str(kind(f"cannot read {object()!r} at 0x1f")) == "cannot read <object object> at 0x1f"


@pytest.mark.parametrize("kind", [BadRequest, ConfigError, ModelFailed])
def test_messages_can_be_encoded(kind: type[Exception]) -> None:
    """Bytes of a path that are no UTF-8 are lone surrogates in Python."""
    told = str(kind(os.fsdecode(b"caf\xe9") + "/\ud800/größe: not there"))
    assert told == "caf\ufffd/\ufffd/größe: not there"
    assert told.encode().decode() == told


def test_a_key_error_says_what_it_is() -> None:
    """As for what a model's `decode` or `present` raises: Python's message is the bare key."""
    assert text_of(KeyError("pixels")) == "no key 'pixels'"
