"""A server in memory, and both clients driven alike: with a clock that only waits and answers move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from starling_client import AsyncClient, Client

Handler = Callable[[httpx.Request], httpx.Response]
_DTYPES = {"FP32": "<f4", "INT64": "<i8"}


def failing(status: int, message: str = "no", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": message}, headers={k.replace("_", "-"): v for k, v in headers.items()})


@dataclass
class FakeServer:
    """Answers V2 for one model that doubles its FP32 input `x` [rows, 2] into `y`, and sums its rows into `s`.

    `script`: what the next inferences are answered, or raise, instead; None is as usual. `tells`: names of what /config
    says. `version` is the model's.
    """

    script: list[httpx.Response | Exception | None] = field(default_factory=list)
    config: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ("binary_tensor_data",)
    outputs: tuple[str, ...] = ("y", "s")
    version: str = "1"
    name_of_input: str = "x"
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[httpx.Request] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # of the inferences answered

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        path = request.url.path
        if path.endswith("/infer"):
            told = self.script.pop(0) if self.script else None
            if isinstance(told, Exception):
                raise told
            return self.infer(request) if told is None else told
        if path == "/v2":
            return httpx.Response(200, json={"name": "fake", "extensions": list(self.extensions)})
        if path.endswith("/config"):
            return failing(404) if self.config is None else httpx.Response(200, json=self.config)
        if path.startswith("/v2/models/double"):
            return httpx.Response(200, json=self.metadata())
        return failing(404, f"no such thing: {path}", X_Request_ID="r-404")

    def metadata(self) -> dict[str, Any]:
        about = {"y": [-1, 2], "s": [-1]}
        return {
            "name": "double",
            "versions": [self.version],
            "platform": "fake",
            "inputs": [{"name": self.name_of_input, "datatype": "FP32", "shape": [-1, 2]}],
            "outputs": [{"name": name, "datatype": "FP32", "shape": about[name]} for name in self.outputs],
        }

    def infer(self, request: httpx.Request) -> httpx.Response:
        length = request.headers.get("inference-header-content-length")
        head = json.loads(request.content[: int(length)] if length else request.content)
        (tensor,) = head["inputs"]
        if tensor["name"] != self.name_of_input:
            return failing(400, f"inputs[0].name: expected {self.name_of_input}")
        if length:
            x = np.frombuffer(request.content[int(length) :], "<f4").reshape(tensor["shape"])
        else:
            x = np.array(tensor["data"], "<f4").reshape(tensor["shape"])
        self.rows.append(len(x))
        made = {"y": x * 2, "s": x.sum(axis=1)}
        wanted = [one["name"] for one in head.get("outputs", ())] or self.outputs
        answer, tail = [], b""
        for name in wanted:
            entry: dict[str, Any] = {"name": name, "shape": made[name].shape, "datatype": "FP32"}
            if length:
                entry["parameters"] = {"binary_data_size": made[name].nbytes}
                tail += made[name].tobytes()
            else:
                entry["data"] = made[name].ravel().tolist()
            answer.append(entry)
        text = json.dumps({"model_name": "double", "model_version": self.version, "outputs": answer}).encode()
        headers = {"x-request-id": request.headers.get("x-request-id", "made"), **self.headers}
        if length:
            headers["inference-header-content-length"] = str(len(text))
        return httpx.Response(200, content=text + tail, headers=headers)

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.asked]

    @property
    def infers(self) -> list[httpx.Request]:
        return [request for request in self.asked if request.url.path.endswith("/infer")]

    def head(self, index: int = -1) -> Any:
        """The JSON of an inference that was asked for."""
        request = self.infers[index]
        length = request.headers.get("inference-header-content-length")
        return json.loads(request.content[: int(length)] if length else request.content)


class Driven:
    """One of the clients, called without `await`. `waited`: seconds of each pause, none of which takes any time."""

    def __init__(self, kind: str, server: Handler, runner: asyncio.Runner, **options: Any) -> None:
        self.kind, self.waited, self.now = kind, list[float](), 1000.0
        self._runner = runner
        if kind == "sync":
            self.client: Any = Client(
                "http://fake", http=httpx.Client(transport=httpx.MockTransport(server)), **options
            )
            self.client._sleep = self._wait
        else:

            async def handler(request: httpx.Request) -> httpx.Response:
                return server(request)

            http = httpx.AsyncClient(transport=httpx.MockTransport(handler))
            self.client = AsyncClient("http://fake", http=http, **options)
            self.client._sleep = self._pause
        self.client._calls.clock = lambda: self.now
        self.client._calls._chance = lambda: 0.5

    def _wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    async def _pause(self, seconds: float) -> None:
        self._wait(seconds)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the client, its answer awaited where it must be."""
        method = getattr(self.client, name)

        def call(*args: Any, **named: Any) -> Any:
            found = method(*args, **named)
            return found if self.kind == "sync" else self._runner.run(found)

        return call


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(2 * count, dtype=np.float32).reshape(count, 2)


def limited(rows: int) -> dict[str, Any]:
    """What /config of a Starling says that takes so many rows."""
    return {"max_batch_size": 8, "parameters": {"max_request_rows": {"string_value": str(rows)}}}


def repeated(response: Callable[[], httpx.Response], count: int) -> Sequence[httpx.Response]:
    return [response() for _ in range(count)]
