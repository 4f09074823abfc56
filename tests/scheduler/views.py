"""What a policy sees, made up."""

from __future__ import annotations

from app.scheduler.policies.view import Facts, KeyView

_FOREVER = 1 << 62


def view_of(
    ready: int, limit: int, full: int, oldest: int = 0, max_delay: int = 0, facts: Facts | None = None
) -> KeyView:
    """A view of a device with room for all and rows without deadlines."""
    return KeyView(
        ready=ready, limit=limit, full=full, oldest=lambda: oldest, max_delay=max_delay,
        room=_FOREVER, due=_FOREVER, running_and_free=lambda: (1, _FOREVER), facts=facts or Facts(),
    )  # fmt: skip
