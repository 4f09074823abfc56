"""Locust against a running server: `locust -f loadtest/locustfile.py --host URL` from the root of the checkout.

`make load` starts a server and this. A user class for each kind of payload, four shapes, each answer checked, and
latency by batch size: as entries of Locust's own statistics (type BATCH, which its totals leave out), as a table at
the end and in the file that `--results` names. What needs no Locust is in payloads.py, shapes.py and batches.py.

`--shape` chooses the shape. Locust itself takes the first class of the file; `chosen_shape` puts the right one, or
none, in its place before the load starts. What comes of a run is gathered and told by locust_results.py.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from locust import FastHttpUser, LoadTestShape, events, stats, task
from locust.exception import StopTest
from locust.runners import MasterRunner

from loadtest import locust_results, payloads, shapes
from loadtest.batches import bracket, rounded

log = logging.getLogger("loadtest")

stats.bucket_response_time = rounded
stats.PERCENTILES_TO_CHART = [0.5, 0.95, 0.99]
stats.HISTORY_STATS_INTERVAL_SEC = 1  # Locust's five seconds leave a short run without a curve
SPAWN_RATE = 100.0  # users started in a second: the most that Locust recommends
#: What a server says when it is asked for more than it can do; a ramp is meant to see it. 0: no connection.
OVERLOADED = {0, 429, 503, 504}


#: The requests to be sent, by user class. Locust has one run at a time in a process.
REQUESTS: dict[str, list[payloads.Request]] = {}


class ModelUser(FastHttpUser):
    """Sends one prepared request after the other, at the pace of `--pace`, and checks each answer."""

    abstract = True
    kind: ClassVar[str]
    make: ClassVar[Callable[..., list[payloads.Request]]]

    def on_start(self) -> None:
        options = self.environment.parsed_options
        self.pace = options.pace
        self.random = random.Random()
        self.begun_s = time.perf_counter()
        self.label = f"{options.model} {self.kind}"
        # Locust would accept compressed answers, and measure the server's gzip.
        self.common = {"Accept-Encoding": "identity"} | ({"X-API-Key": options.api_key} if options.api_key else {})

    def wait_time(self) -> float:
        """Gaps from start to start are exponential, so that many users together are a Poisson process."""
        if not self.pace:
            return 0.0
        now_s = time.perf_counter()
        wait_s = max(0.0, self.begun_s + self.random.expovariate(self.pace) - now_s)
        self.begun_s = now_s + wait_s
        return wait_s

    @task
    def infer(self) -> None:
        request = self.random.choice(REQUESTS[type(self).__name__])
        headers = {**self.common, **request.headers}
        with self.client.post(
            request.path, data=request.body, headers=headers, name=self.label, catch_response=True
        ) as response:
            if response.status_code != 200:
                if response.status_code not in OVERLOADED:
                    locust_results.found.wrong += 1
                if response.status_code:  # else Locust knows what went wrong with the connection
                    response.failure(refusal(response.status_code, response.content))
                return
            try:
                request.check(response.headers, response.content)
            except payloads.WrongAnswer as error:
                locust_results.found.wrong += 1
                response.failure(f"wrong answer: {error}")
                return
            self.count(response)

    def count(self, response: Any) -> None:
        """Enter a right answer under its batch's size, where the server names it."""
        size = int(response.headers.get("X-Batch-Size", "0"))
        if not size:
            return
        latency_ms = response.request_meta["response_time"]
        locust_results.found.batches.add(self.label, size, latency_ms, response.headers.get("Server-Timing", ""))
        entry = self.environment.stats.entries[f"{self.label}, batch {bracket(size)}", "BATCH"]
        entry.log(latency_ms, len(response.content))


class JsonUser(ModelUser):
    """V2 with JSON tensors."""

    kind = "V2 JSON"
    make = staticmethod(payloads.v2_json)


class BinaryUser(ModelUser):
    """V2 with binary tensors."""

    kind = "V2 binary"
    make = staticmethod(payloads.v2_binary)


class ImageUser(ModelUser):
    """An image file on the friendly route."""

    kind = "image"
    make = staticmethod(payloads.image_files)


def refusal(status: int, body: bytes) -> str:
    """What a failure is called: errors are counted by it, so it must not differ from request to request."""
    if status in OVERLOADED or status >= 500:
        return f"status {status}"
    try:
        return f"status {status}: {json.loads(body)['error']}"
    except (ValueError, KeyError, TypeError):
        return f"status {status}"


class Timed(LoadTestShape):
    """A shape that is a function of time: `--users` at most, over `--run-time`."""

    abstract = True
    use_common_options = True
    course: ClassVar[shapes.Course]

    def tick(self) -> tuple[int, float] | None:
        users, seconds = bounds(self.runner.environment.parsed_options)
        at_s = self.get_run_time()
        return (self.course(at_s, users, seconds), SPAWN_RATE) if at_s < seconds else None


class Steps(Timed):
    """A quarter of the users, a half, three quarters, all."""

    course = staticmethod(shapes.steps)


class Diurnal(Timed):
    """From a tenth of the users up to all and down again, like a day."""

    course = staticmethod(shapes.diurnal)


class Spike(Timed):
    """A fifth of the users, and all of them in the middle fifth of the time."""

    course = staticmethod(shapes.spike)


class Ramp(LoadTestShape):
    """More and more users until the p99 or the share of failures breaks its objective."""

    use_common_options = True
    ramp: shapes.Ramp | None = None

    def reset_time(self) -> None:
        super().reset_time()
        options = self.runner.environment.parsed_options
        objective = shapes.Objective(options.max_p99_ms, options.max_failures)
        self.ramp = shapes.Ramp(*bounds(options), options.hold, objective)

    def tick(self) -> tuple[int, float] | None:
        assert self.ramp is not None
        levels = len(self.ramp.levels)
        users = self.ramp.step(self.get_run_time(), lambda: locust_results.counted(self.runner))
        if len(self.ramp.levels) > levels:
            log.info("ramp: %s", self.ramp.levels[-1])
        return None if users is None else (users, SPAWN_RATE)


SHAPES: dict[str, type[LoadTestShape]] = {"steps": Steps, "diurnal": Diurnal, "spike": Spike, "ramp": Ramp}


def bounds(options: Any) -> tuple[int, float]:
    """Most users and length in seconds; a shape needs both."""
    return options.num_users or 1, float(options.run_time or 60)


def sizes(text: str) -> str:
    """An option's text, checked; it stays text, because Locust's page shows and sends it."""
    try:
        payloads.Sizes.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """What is not for the page is kept off it: it chooses shapes by itself, with `--class-picker`."""
    add = parser.add_argument
    add("--model", default="digits", help="Model to call [digits]")
    add("--rows", type=sizes, default="1", help="Rows of a V2 request: N, uniform:LO:HI or choice:A,B,... [1]")
    add(
        "--lengths",
        type=sizes,
        default="lognormal:14:4:128",
        help="Length of variable axes, as --rows or lognormal:MEAN:SD:MAX [lognormal:14:4:128]",
    )
    add("--images", default=str(payloads.SAMPLES), help="PNG or JPEG file, or folder of them [the demo's digits]")
    add("--pace", type=float, default=10.0, help="Requests a second of each user; 0: as fast as answers come [10]")
    add("--seed", type=int, default=0, help="Of the payloads [0]")
    add("--api-key", default="", is_secret=True, help="Sent as X-API-Key")
    add("--max-p99-ms", type=float, default=200.0, help="Objective of the ramp [200]")
    add("--max-failures", type=float, default=0.01, help="Objective of the ramp, a share of requests [0.01]")
    add("--hold", type=float, default=5.0, help="Seconds at each level of the ramp, at least 3 [5]")
    add(
        "--shape",
        choices=["none", *SHAPES],
        default="none",
        include_in_web_ui=False,
        help="Users over time: none is a constant number [none]",
    )
    add(
        "--results",
        default="",
        include_in_web_ui=False,
        help="JSON file for the figures in the end: requests, latency by batch size, what the ramp found",
    )


@events.init.add_listener
def chosen_shape(environment: Any, runner: Any, **_: Any) -> None:
    """Put the shape that `--shape` names in the place of the first one of this file, or none."""
    options = environment.parsed_options
    environment.shape_class = SHAPES[options.shape]() if options.shape != "none" else None
    if environment.shape_class is not None:
        environment.shape_class.runner = runner
    if options.hold < 3:
        raise SystemExit("--hold: expected at least 3 s, which leaves two to measure")


@events.test_start.add_listener
def prepare(environment: Any, **_: Any) -> None:
    """Ask the server what the model takes, and make the requests. Ends the run where that fails."""
    locust_results.reset()
    if isinstance(environment.runner, MasterRunner):
        return
    options = environment.parsed_options
    try:
        metadata = fetch(environment.host, f"/v2/models/{options.model}", options.api_key)
        mix = payloads.Mix(payloads.Sizes.parse(options.rows), payloads.Sizes.parse(options.lengths), options.seed)
        for user in environment.user_classes:
            more = Path(options.images) if user is ImageUser else mix
            REQUESTS[user.__name__] = user.make(metadata, more)
    except (OSError, http.client.HTTPException, ValueError) as error:
        environment.process_exit_code = 1
        raise StopTest(f"no requests for model {options.model!r} at {environment.host}: {error}") from None


def fetch(host: str | None, path: str, key: str) -> dict[str, Any]:
    """A JSON answer of the server. Raises OSError or HTTPException where it cannot be had, ValueError if not a 200."""
    address = urlsplit(host or "")
    if not address.hostname:
        raise ValueError(f"--host: expected a URL, got {host!r}")
    secure = address.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(address.hostname, address.port, timeout=10)
    try:
        connection.request("GET", address.path.rstrip("/") + path, headers={"X-API-Key": key} if key else {})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(refusal(response.status, body))
    answer: dict[str, Any] = json.loads(body)
    return answer
