"""A server as LoadGen's system under test: its samples are rows, a query is a request of one or many of them.

A fixed number of threads send, each on a connection of its own, which stays open. A query is never waited for where
LoadGen issues it. Nothing here imports LoadGen.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import orjson

from app.bench.payload import ModelMetadata
from loadtest.payloads import Request, WrongAnswer, input_values, refusal, v2_request

TIMEOUT_S = 60.0


class Sample(NamedTuple):
    """One that LoadGen asks for: its own number for it, and which of the library's it is."""

    id: int
    index: int  # type: ignore[assignment]  # the library calls it so, and nobody needs that of tuples


class Library:
    """`count` rows of made-up values for a model. Raises ValueError for one whose inputs do not lead with rows."""

    def __init__(self, metadata: Mapping[str, Any], count: int, *, length: int = 16) -> None:
        self.count = count
        self._name = str(metadata["name"])
        self._model = ModelMetadata.parse(orjson.dumps(metadata))
        if not all(tensor.batched for tensor in self._model.inputs):
            raise ValueError(f"model {self._name!r}: expected inputs that lead with rows")
        self._values = input_values(self._model, count, length, np.random.default_rng(0))

    def request(self, samples: Sequence[Sample]) -> Request:
        """A V2 request with a row for each sample, tensors as bytes."""
        chosen = [sample.index for sample in samples]
        return v2_request(
            self._name, self._model, [values[chosen] for values in self._values], len(chosen), binary=True
        )


class System:
    """Sends what LoadGen issues; `complete` is called on the thread that got the answer. End it with `close`.

    `address`: of the server, HOST:PORT. `rows`: the most of one request; a larger query is cut. `faults`: requests
    without a right answer, by kind; their samples are reported as complete all the same, or LoadGen would wait for
    ever.
    """

    def __init__(
        self,
        address: str,
        library: Library,
        complete: Callable[[Sequence[Sample]], None],
        *,
        connections: int,
        rows: int,
    ) -> None:
        self._address = address
        self._library = library
        self._complete = complete
        self._rows = rows
        self._work: SimpleQueue[Sequence[Sample] | None] = SimpleQueue()  # holds what LoadGen has issued, and no more
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._send_all, daemon=True) for _ in range(connections)]
        for thread in self._threads:
            thread.start()

    def issue(self, samples: Sequence[Sample]) -> None:
        """One query of LoadGen's."""
        for first in range(0, len(samples), self._rows):
            self.requests += 1
            self._work.put(samples[first : first + self._rows])

    def close(self) -> None:
        """Let the threads end, once all that was issued has been sent."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _send_all(self) -> None:
        connection = HTTPConnection(self._address, timeout=TIMEOUT_S)
        while (samples := self._work.get()) is not None:
            try:
                fault = self._ask(connection, samples)
            except (OSError, HTTPException, WrongAnswer) as exc:
                connection.close()  # it opens again by itself
                fault = f"{type(exc).__name__}: {exc}"
            if fault:
                self.faults[fault] += 1
            self._complete(samples)
        connection.close()

    def _ask(self, connection: HTTPConnection, samples: Sequence[Sample]) -> str:
        """Send one request; what is wrong with its answer, or nothing."""
        request = self._library.request(samples)
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            return refusal(response.status, body)
        request.check(response.headers, body)
        return ""
