"""Serve what waits, up to the largest batch, as soon as a worker is free (also called ad hoc, or zero window)."""

from __future__ import annotations

from app.scheduler.policies.base import BasePolicy


class NoWait(BasePolicy):
    """Never idles while rows wait. Batches form by themselves while workers are busy."""

    name = "no_wait"
