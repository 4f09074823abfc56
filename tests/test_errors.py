"""What errors say, to clients and in the log."""

from __future__ import annotations

import pytest

from app.errors import BadRequest, ConfigError, ModelFailed


@pytest.mark.parametrize("kind", [BadRequest, ModelFailed, ConfigError])
def test_messages_do_not_say_where_in_memory_objects_are(kind: type[Exception]) -> None:
    assert str(kind(f"cannot read {object()!r} at 0x1f")) == "cannot read <object object> at 0x1f"
