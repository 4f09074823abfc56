"""A call with its parts that take long: each runs in a task, with threads for large bodies and a model's own code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, cast

from app.contract import Answer, Catalog, Lease, Served
from app.errors import NotFound
from app.http.answers import compress
from app.http.aside import decoded_aside, opened_aside
from app.http.call import OFF_LOOP_WRITE, REALTIME, Call
from app.http.codecs.base import OFF_LOOP_BYTES, DecodedCall, encode
from app.http.codecs.by_body import ByBody


class TaskedCall(Call):
    """What every inference request is. Of a plain one nothing here is called."""

    __slots__ = ()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        tasks = self.connection.tasks
        task = self.connection.loop.create_task(self._guarded(work))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as exc:
            self.set_exception(exc)
        except asyncio.CancelledError:
            self.left()
            raise

    async def choose_model(self, body: bytes) -> None:
        route, limits = self.route, self.resources.limits
        codec, catalog = route.codec, cast("Catalog", self.connection.app_state["catalog"])
        assert isinstance(codec, ByBody)  # no other route is without a model
        large = len(body) > OFF_LOOP_BYTES
        klass = self.klass or REALTIME
        opened = await opened_aside(self.resources, codec, body, klass) if large else codec.opened(body, limits)
        name = opened.choose(catalog)
        self.route = replace(route, codec=opened, model=name)
        try:
            served = catalog.find(name)
        except NotFound as error:
            error.param = "model"
            raise
        if not self.ended:  # the client may have left meanwhile
            self.served = served
            served.admit(0, self.klass)
            self.received(body)

    async def start_slowly(self, served: Served, body: bytes) -> None:
        try:
            lease = await self._prepared_on_threads(served, body)
            if lease is not None:
                self.lease = lease
                lease.submit(self)
                if self.observer is not None and not self.ended:
                    self.observer.submitted(lease)
        except Exception as exc:
            self.start_failed(exc, body)

    async def _prepared_on_threads(self, served: Served, body: bytes) -> Lease | None:
        """The lease with the inputs written; None if the client has left meanwhile."""
        held, self.held = self.held, 0  # threads use the body and the slots to their end, even if the client leaves
        lease = None
        try:
            decoded = await decoded_aside(
                self.resources, served, self.route.codec, self.headers, body,
                self.klass or served.info.batching.default_class,
            )  # fmt: skip
            if self.done():
                return None
            self.decoded = decoded
            lease = self.take_slots(served, decoded)
            for index, values in enumerate(decoded.arrays):
                if values.nbytes > OFF_LOOP_WRITE:
                    await self.resources.threads.run_to_end(self.best_effort, lease.write, index, values)
                else:
                    lease.write(index, values)
            if self.done():
                return None
            written, lease = lease, None
            return written
        finally:
            if lease is not None:
                lease.close()
            self.held = held
            if self.ended:
                self.release()

    async def encode_slowly(self, served: Served, decoded: DecodedCall, answer: Answer) -> None:
        threads, codec = self.resources.threads, self.route.codec
        body, json_length = await threads.run(self.best_effort, encode, served, codec, decoded, answer)
        self.compress_and_succeed(served, answer, body, json_length)

    async def compress_slowly(
        self, served: Served, answer: Answer, body: bytes, json_length: int | None, encoding: str
    ) -> None:
        compressed = await self.resources.threads.run(self.best_effort, compress, body, encoding)
        self.succeed(served, answer, compressed, json_length, encoding)
