"""What all calls of a server share: limits, bytes held, threads, keys, the log and the tracer."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from app.contract import Pending
from app.http.auth import Auth
from app.http.body import HeldBodies, Limits
from app.http.connection.refusals import RefusalQueue
from app.http.cors import Cors
from app.http.keys import Shares
from app.http.threads import HelperThreads
from app.observe.logs import CauseLog, LastErrors

if TYPE_CHECKING:
    from app.observe.tracing.spans import Tracer


@dataclass(eq=False)
class Resources:
    """Made once for a server; used on the event loop.

    `connections` returns how many connections the server has open. `tracer`, `cors`: None if the feature is off.
    `rejected` counts, by error code, requests that belong to no model. `errors`: the last ones, for the live page.
    """

    limits: Limits
    _: KW_ONLY
    auth: Auth
    connections: Callable[[], int]
    access_log: bool = False
    tracer: Tracer | None = None
    cors: Cors | None = None
    root_path: str = ""  # the prefix that an ingress may leave on paths

    def __post_init__(self) -> None:
        self.rejected: Counter[str] = Counter()
        self.errors = LastErrors()
        self.keyed = self.auth.keys is not None
        #: Answers inference requests: `infer`, and what HttpApp wraps around it.
        self.handler: Callable[[Any], Coroutine[Pending, Any, Any]]
        self.bodies = HeldBodies(self.limits)
        self.threads = HelperThreads(self.limits.threads)
        #: For JSON: a parser holds the interpreter lock for milliseconds, so two at once only delay everything else.
        self.parser = HelperThreads(1)
        self.shares = Shares()
        self.refusals = RefusalQueue(self.connections)
        self.causes = CauseLog(logging.getLogger("starling.http"))
        # Ids of requests that came without one: `id_format % next(ids)`.
        self.id_format, self.ids = secrets.token_hex(4).encode() + b"-%x", itertools.count()
