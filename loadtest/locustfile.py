"""Locust against a running server: `locust -f loadtest/locustfile.py --host URL` from the root of the checkout.

`make load` starts a server and this. A user class for each kind of payload, four shapes, each answer checked, and
latency by batch size: as entries of Locust's own statistics (type BATCH, which its totals leave out), as a table at
the end and in the file that `--results` names. What needs no Locust is in payloads.py, shapes.py and batches.py.

`--shape` chooses the shape. Locust itself takes the first class of the file; `chosen_shape` puts the right one, or
none, in its place before the load starts. locust_results.py gathers and prints what comes of a run.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from locust import FastHttpUser, events, stats, task
from locust.exception import StopTest
from locust.runners import MasterRunner

from app.sim.lengths import Lengths
from loadtest import locust_results, payloads
from loadtest.batches import bracket, rounded
from loadtest.locust_shapes import SHAPES, Diurnal, Ramp, Spike, Steps

stats.bucket_response_time = rounded
stats.PERCENTILES_TO_CHART = [0.5, 0.95, 0.99]
stats.HISTORY_STATS_INTERVAL_SEC = 1  # Locust's five seconds leave a short run without a curve
__all__ = ["BinaryUser", "Diurnal", "ImageUser", "JsonUser", "Ramp", "Spike", "Steps"]  # what Locust's page offers


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
                if response.status_code not in payloads.OVERLOADED:
                    locust_results.found.wrong += 1
                if response.status_code:  # else Locust knows what went wrong with the connection
                    response.failure(payloads.refusal(response.status_code, response.content))
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


def lengths(text: str) -> str:
    """An option's text, checked; it stays text, because Locust's page shows and sends it."""
    try:
        Lengths(text, [0])
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--model", "digits", "Model to call"),
    ("--rows", "1", "Rows of a V2 request: N or uniform:LOW:HIGH"),
    ("--lengths", "lognormal:14:4:128", "Length of variable axes, as --rows or lognormal:MEAN:SD:MAX"),
    ("--images", str(payloads.SAMPLES), "PNG or JPEG file, or folder of them"),
    ("--pace", 10.0, "Requests a second of each user; 0: as fast as answers come"),
    ("--seed", 0, "Of the payloads"),
    ("--max-p99-ms", 200.0, "Objective of the ramp"),
    ("--max-failures", 0.01, "Objective of the ramp, a share of requests"),
    ("--hold", 5.0, "Seconds at each level of the ramp, at least 3"),
)


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """What is not for the page is kept off it: it chooses shapes by itself, with `--class-picker`."""
    for name, default, text in OPTIONS:
        kind = lengths if name in ("--rows", "--lengths") else type(default)
        parser.add_argument(name, type=kind, default=default, help=f"{text} [{default}]")
    parser.add_argument("--api-key", default="", is_secret=True, help="Sent as X-API-Key")
    shape = {"choices": ["none", *SHAPES], "help": "Users over time: none is a constant number [none]"}
    parser.add_argument("--shape", default="none", include_in_web_ui=False, **shape)
    told = "JSON file for the figures in the end: requests, latency by batch size, what the ramp found"
    parser.add_argument("--results", default="", include_in_web_ui=False, help=told)


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
        metadata = payloads.metadata_of(environment.host, options.model, options.api_key)
        mix = payloads.Mix(options.rows, options.lengths, options.seed)
        for user in environment.user_classes:
            more = Path(options.images) if user is ImageUser else mix
            REQUESTS[user.__name__] = user.make(metadata, more)
    except (OSError, ValueError) as error:
        environment.process_exit_code = 1
        raise StopTest(f"no requests for model {options.model!r} at {environment.host}: {error}") from None
