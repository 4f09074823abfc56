"""One version of a model, and the states that the index tells."""

from __future__ import annotations

from dataclasses import dataclass

from app.contract import IndexEntry, ModelSource, Served
from app.models.checks.trial import UNCHECKED

READY, UNTRIED, LOADING, UNLOADING, UNAVAILABLE = "READY", "UNTRIED", "LOADING", "UNLOADING", "UNAVAILABLE"


@dataclass(slots=True)
class Version:
    """One version of a model that is or was in the repository. `state`: why it does not serve; see `entry`.

    `unchecked`: its rows were to be compared, and none could be made.
    """

    source: ModelSource
    required: bool  # asked for at start, and not unloaded since
    state: str = LOADING
    reason: str = ""
    served: Served | None = None
    unchecked: bool = False

    def entry(self) -> IndexEntry:
        """The state of the version, for the index. Nothing else decides it."""
        state, reason = self.state, self.reason
        if self.served is not None:
            untried = self.served.untried
            state = READY if untried is None else UNTRIED
            reason = "; ".join(filter(None, (reason, str(untried or (UNCHECKED if self.unchecked else "")))))
        return IndexEntry(self.source.name, str(self.source.version), state, reason, self.required)
