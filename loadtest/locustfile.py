"""Locust against a running server: `locust -f loadtest/locustfile.py --host URL` from the root of the checkout.

`make load` starts a server and this. A user class for each kind of payload, four shapes, each answer checked, and
latency by batch size: entries of Locust's own statistics of type BATCH, which its totals leave out. What needs no
Locust is in payloads.py and shapes.py.

A locustfile of your own may import these users beside its own users and shape, and change theirs in subclasses.

`--shape` chooses the shape. Locust itself takes the first class of the file; `chosen_shape` puts the right one, or
none, in its place before the load starts.
"""

from __future__ import annotations

import json
import logging
import random
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from locust import FastHttpUser, events, stats, task
from locust.exception import StopTest
from locust.runners import MasterRunner, WorkerRunner

from loadtest import payloads
from loadtest.locust_shapes import SHAPES, Diurnal, Ramp, Spike, Steps
from planner.drawn_lengths import Lengths

log = logging.getLogger("loadtest")


def rounded(latency_ms: float) -> float:
    """0.1 ms below 100 ms, two digits above.

    Locust's own rounding, to whole milliseconds, makes one bar of all a fast server's answers.
    """
    return round(latency_ms, 1) if latency_ms < 100 else float(f"{latency_ms:.1e}")


stats.bucket_response_time = rounded  # type: ignore[assignment]  # whole milliseconds there
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
        self.client.base_url = str(self.client.base_url).rstrip("/")  # Locust puts paths, which begin with one, behind
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
            request.path,
            data=request.body,  # type: ignore[arg-type]  # bytes are sent as they are
            headers=headers,
            name=self.label,
            catch_response=True,
        ) as response:
            if response.status_code != 200:
                if response.status_code:  # else Locust knows what went wrong with the connection
                    response.failure(payloads.refusal(response.status_code, response.content))
                return
            try:
                request.check(response.headers, response.content)
            except payloads.WrongAnswer as error:
                response.failure(f"wrong answer: {error}")
                return
            self.count(response)

    def count(self, response: Any) -> None:
        """Enter a right answer under its batch's size, where the server names it."""
        if size := int(response.headers.get("X-Batch-Size", "0")):
            entry = self.environment.stats.entries[f"{self.label}, batch {bracket(size)}", "BATCH"]
            entry.log(response.request_meta["response_time"], len(response.content))


def bracket(size: int) -> str:
    """1, 2, 3-4, 5-8, 9-16, ...: the powers of two keep a report short, and padding keeps it in order."""
    high = 1 << (size - 1).bit_length()
    low = high // 2 + 1
    return f"{high:2}" if low >= high else f"{low:2}-{high}"


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
    told = "JSON file for the figures in the end: requests, latency by batch size, the ramp's verdict"
    parser.add_argument("--results", default="", include_in_web_ui=False, help=told)


@events.init.add_listener
def chosen_shape(environment: Any, runner: Any, **_: Any) -> None:
    """Put the shape that `--shape` names in the place of the first one of this file, or the user's own, or none."""
    options = environment.parsed_options
    own = (shape for shape in environment.available_shape_classes.values() if type(shape) not in SHAPES.values())
    environment.shape_class = SHAPES[options.shape]() if options.shape != "none" else next(own, None)
    if environment.shape_class is not None:
        environment.shape_class.runner = runner
    if options.hold < 3:
        raise SystemExit("--hold: expected at least 3 s, which leaves two to measure")


@events.test_start.add_listener
def prepare(environment: Any, **_: Any) -> None:
    """Ask the server what the model takes, and make the requests. Ends the run where that fails."""
    if isinstance(environment.runner, MasterRunner):
        return
    options = environment.parsed_options
    for user in environment.user_classes:
        if not issubclass(user, ModelUser):
            continue
        host = environment.host or user.host
        try:
            metadata = payloads.metadata_of(host, options.model, options.api_key)
            images = Path(options.images) if issubclass(user, ImageUser) else None
            more = images or payloads.Mix(options.rows, options.lengths, options.seed)
            REQUESTS[user.__name__] = user.make(metadata, more)
        except (OSError, ValueError) as error:
            environment.process_exit_code = 1
            raise StopTest(f"no requests for model {options.model!r} at {host}: {error}") from None


@events.quitting.add_listener
def decide_exit_code(environment: Any, **_: Any) -> None:
    """Locust's own is 1 where anything failed.

    A ramp is meant to fail: there only wrong answers count. A run without one answer has shown nothing, and is no
    success, unless there is a page: nobody may have started it.
    """
    runner, counted = environment.runner, environment.stats
    if environment.process_exit_code is not None or isinstance(runner, WorkerRunner):
        return
    if counted.num_requests == 0 and environment.parsed_options.headless:
        log.error("no request was answered")
        environment.process_exit_code = 1
    elif isinstance(environment.shape_class, Ramp) and environment.shape_class.ramp is not None:
        print(environment.shape_class.ramp.verdict())
        wrong = any(not payloads.is_overload(error.to_name()) for error in counted.errors.values())
        answered = counted.num_requests > counted.num_failures
        environment.process_exit_code = int(wrong or bool(runner.exceptions) or not answered)


@events.init.add_listener
def write_results(environment: Any, runner: Any, **_: Any) -> None:
    """At the end, for programs: Locust's entries and their total; its CSV files lack the last second."""
    if isinstance(runner, WorkerRunner) or not environment.parsed_options.results:
        return

    @environment.events.quit.add_listener
    def write(**_: Any) -> None:
        counted, ramp = runner.stats, getattr(environment.shape_class, "ramp", None)
        requests = [
            {
                "type": entry.method or None, "name": entry.name, "requests": entry.num_requests,
                "failures": entry.num_failures, "rate": round(entry.total_rps, 3),
                "mean_ms": round(entry.avg_response_time, 3),
                **{f"p{share * 100:g}_ms": entry.get_response_time_percentile(share) for share in (0.5, 0.9, 0.99)},
            }
            for entry in [*stats.sort_stats(counted.entries), counted.total]
        ]  # fmt: skip
        results = {"requests": requests, "ramp": None if ramp is None else ramp.verdict()}
        Path(environment.parsed_options.results).write_text(json.dumps(results, indent=1) + "\n")
