"""The cases of `make bench`: a function for each, `case(session) -> figures`, with the project's targets."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from loadtest.bench import bodies
from loadtest.bench.figures import Figure, Target
from loadtest.bench.reference_servers import TorchLoop, bare_echo, constant
from loadtest.bench.session import BATCH, THREADS, Measured, Session, alternate, ratios
from loadtest.common.command import resident_mib
from loadtest.common.paths import ROOT
from loadtest.common.servers import BARE_LIMIT_S, starling
from loadtest.generator.load import LoadError, PreparedRequest, answer_of

RATE = "requests/s"
MODELS = ROOT / "loadtest" / "bench" / "models"
#: One row runs for 5 ms and one waits: of 64 connections 62 are refused, again and again.
REFUSING = ("--models", str(MODELS / "sleep"), "--max-batch", "1", "--max-queue", "1", "--threads", "1")
#: Measuring batch times would allocate memory at a time of its own, between two loads.
DEMO = ("--models", "demo", "--profile-budget-s", "0")
REQUESTS = 100_000
MOST_S = 120.0  # in which they have to be answered


def rates(measured: list[Measured]) -> tuple[float, ...]:
    return tuple(one.per_second for one in measured)


def latency_note(measured: list[Measured]) -> str:
    """Median latencies at the client over the rounds."""
    p50, p99 = (median(getattr(one.result, field) for one in measured) for field in ("p50_ms", "p99_ms"))
    return f"latency p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def cpu_figures(what: str, measured: list[Measured]) -> list[Figure]:
    """CPU time per request, which other load on the machine affects less than a rate; empty if it is not known."""
    known = tuple(one.cpu_us for one in measured if one.cpu_us is not None)
    return [Figure(f"{what}: CPU per request", "us", known)] if known else []


def echo(session: Session) -> list[Figure]:
    """What the server costs beyond HTTP: the identity model against an ASGI app that sends the body back."""
    wires = {"V2 JSON": (bodies.v2_json, Target(0.8, aim=1.0)), "V2 binary": (bodies.v2_binary, Target(0.8))}
    requests = [session.request("echo", make) for make, _ in wires.values()]
    server = session.starling()
    with bare_echo() as bare:
        bare.wait_ready("/", BARE_LIMIT_S)
        contenders = [(to, request) for request in requests for to in (server, bare)]
        for to, request in contenders:
            session.checked(to, request)
        tried = alternate(session.plan.rounds, *(partial(session.load, to, request) for to, request in contenders))
    figures = []
    for (wire, (_, target)), ours, theirs in zip(wires.items(), tried[::2], tried[1::2], strict=True):
        figures += [
            Figure(f"echo, {wire}", RATE, rates(ours), note=latency_note(ours)),
            Figure(f"bare uvicorn ASGI echo, {wire} body", RATE, rates(theirs), note=latency_note(theirs)),
            Figure(f"echo against bare ASGI echo, {wire}", "ratio", ratios(rates(ours), rates(theirs)), target),
            *cpu_figures(f"echo, {wire}", ours),
            *cpu_figures(f"bare uvicorn ASGI echo, {wire} body", theirs),
        ]
    return figures


def latency(session: Session) -> list[Figure]:
    """How long one request takes with no other load: the identity model against the bare ASGI echo."""
    request = session.request("echo", bodies.v2_json)
    server = session.starling()
    with bare_echo() as bare:
        bare.wait_ready("/", BARE_LIMIT_S)
        contenders = [partial(session.alone, to, request) for to in (server, bare)]
        for contender in contenders:
            contender(seconds=1.0)
        tried = alternate(session.plan.rounds, *contenders)
    ours, theirs = (tuple(one.p50_ms for one in results) for results in tried)
    tails = [tuple(one.p99_ms for one in results) for results in tried]
    return [
        Figure("echo, V2 JSON, one connection: p50", "ms", ours),
        Figure("bare uvicorn ASGI echo, one connection: p50", "ms", theirs),
        Figure(
            "echo against bare ASGI echo, one connection: p50", "ratio", ratios(ours, theirs), Target(2.0, at_most=True)
        ),
        Figure("echo, V2 JSON, one connection: p99", "ms", tails[0], Target(1.0, at_most=True)),
        Figure("bare uvicorn ASGI echo, one connection: p99", "ms", tails[1]),
    ]


def mlp(session: Session) -> list[Figure]:
    """How much of the device serving uses: rows through the server against a loop that only computes."""
    request = session.request("mlp", bodies.v2_binary)
    server = session.starling()
    with TorchLoop("mlp", BATCH, THREADS) as bare:
        bare.wait_ready()
        bare.rows_per_second(1.0)
        session.warm_up(server, request)
        served: list[Measured] = []

        def rows_served() -> float:  # a request is one row
            served.append(session.load(server, request))
            return served[-1].per_second

        ours, theirs = alternate(session.plan.rounds, rows_served, lambda: bare.rows_per_second(session.plan.seconds))
    middle = median(answer.batch for answer in session.timed(request, 64, 1.0))
    note = f"{latency_note(served)}; half of the calls ran in batches of {middle:g} or more"
    return [
        Figure("mlp, V2 binary", "rows/s", tuple(ours), note=note),
        Figure(f"bare torch loop, batch {BATCH}", "rows/s", tuple(theirs)),
        Figure("mlp against bare torch loop", "ratio", ratios(ours, theirs), Target(0.95, aim=0.98)),
    ]


def overhead(session: Session) -> list[Figure]:
    """Latency of a single request besides its model's time, with no other load."""
    wires = {"binary": bodies.v2_binary, "JSON": bodies.v2_json}
    requests = {wire: session.request("mlp", make) for wire, make in wires.items()}
    for request in requests.values():
        session.timed(request, 1, 1.0)
    figures = []
    tried = alternate(session.plan.rounds, *(partial(spent, session, request) for request in requests.values()))
    for wire, rounds in zip(requests, tried, strict=True):
        inside, queue, outside = (tuple(values) for values in zip(*rounds, strict=True))
        figures += [
            Figure(f"mlp, {wire}, one connection: total less compute, p50", "ms", inside, Target(0.3, at_most=True)),
            Figure(f"mlp, {wire}, one connection: of it in the queue, p50", "ms", queue),
            Figure(f"mlp, {wire}, one connection: client's latency less compute, p50", "ms", outside),
        ]
    return figures


def spent(session: Session, request: PreparedRequest) -> tuple[float, float, float]:
    """Medians in ms of one round: total less compute, queue, and the client's latency less compute."""
    answers = session.timed(request, 1)
    inside = median(answer.total_ms - answer.compute_ms for answer in answers)
    outside = median(answer.latency_ms - answer.compute_ms for answer in answers)
    return inside, median(answer.queue_ms for answer in answers), outside


def wire(session: Session) -> list[Figure]:
    """JSON against binary for a model that keeps the device busy."""
    server = session.starling()
    json, binary = (session.request("mlp", make) for make in (bodies.v2_json, bodies.v2_binary))
    session.warm_up(server, json, binary)
    text, raw = alternate(session.plan.rounds, lambda: session.load(server, json), lambda: session.load(server, binary))
    sizes = f"bodies of {len(json.body):,} and {len(binary.body):,} bytes"
    return [
        Figure("mlp, V2 JSON", RATE, rates(text), note=latency_note(text)),
        Figure("mlp, V2 binary", RATE, rates(raw), note=latency_note(raw)),
        Figure("mlp, JSON against binary", "ratio", ratios(rates(text), rates(raw)), Target(0.8), note=sizes),
    ]


def refusals(session: Session) -> list[Figure]:
    """What refusing costs: requests to a slow model whose queue is full, against the bare ASGI echo."""
    with starling(REFUSING, session.plan.server) as server, bare_echo() as bare:
        server.wait_ready()
        bare.wait_ready("/", BARE_LIMIT_S)
        request = bodies.v2_json(server.metadata("sleep"))
        bodies.check(request, *answer_of(server, request))
        # the same client counts for both: telling statuses apart costs it a little
        contenders = [partial(session.load, to, request, refusals=True) for to in (server, bare)]
        for contender in contenders:
            contender(seconds=1.0)
        ours, theirs = alternate(session.plan.rounds, *contenders)
    refused = tuple(one.result.refused_per_second for one in ours)
    share = median(one.result.refused / (one.result.refused + one.result.requests) for one in ours)
    note = f"{share:.1%} of all requests, the others were answered"
    return [
        Figure("sleep, its queue full: refused with 429", RATE, refused, note=note),
        Figure("bare uvicorn ASGI echo, same body", RATE, rates(theirs), note=latency_note(theirs)),
        Figure("refusals against bare ASGI echo", "ratio", ratios(refused, rates(theirs)), Target(0.8)),
        *cpu_figures("refusing", ours),
    ]


def memory(session: Session) -> list[Figure]:
    """What requests leave behind: the memory of a server with the demo models after many of them."""
    (found,) = alternate(session.plan.rounds, partial(resident, session))
    idle, after = (tuple(values) for values in zip(*found, strict=True))
    more = tuple(mib - before for before, mib in found)
    return [
        Figure("demo, after a warm-up: resident memory", "MiB", idle),
        Figure(f"demo, after {REQUESTS:,} requests: resident memory", "MiB", after),
        Figure(
            "demo: what these requests added", "MiB", more, Target(10, at_most=True), note="echo and digits, V2 JSON"
        ),
    ]


def resident(session: Session) -> tuple[float, float]:
    """MiB of a fresh server: after a warm-up, and after at least REQUESTS requests more."""
    with starling(DEMO, session.plan.server) as server:
        server.wait_ready()
        requests = [bodies.v2_json(server.metadata(model)) for model in ("echo", "digits")]
        for request in requests:
            answer_of(server, request)
        session.warm_up(server, *requests)
        idle = resident_mib(server.process.pid)
        if not idle:
            raise LoadError("this platform does not tell the memory of a process")
        sent, limit_s, turns = 0, time.monotonic() + MOST_S, itertools.cycle(requests)
        while sent < REQUESTS:
            if time.monotonic() > limit_s:
                raise LoadError(f"{sent:,} of {REQUESTS:,} requests were answered within {MOST_S:g} s")
            sent += session.load(server, next(turns), seconds=1.0).result.requests
        return idle, resident_mib(server.process.pid)


def start(session: Session) -> list[Figure]:
    """The time from exec to the first 200 of the readiness probe."""

    def once() -> float:
        with starling(("--models", "demo"), session.plan.server) as server:
            return server.wait_ready()

    (seconds,) = alternate(session.plan.rounds, once)
    return [Figure("start with the demo models, to ready", "s", tuple(seconds), Target(5.0, at_most=True))]


def ceiling(session: Session) -> list[Figure]:
    """The largest rate of the client itself, against a server that does nothing, to compare with the other rates."""
    server = session.starling()
    makes = {"echo": (bodies.v2_json, bodies.v2_binary), "mlp": (bodies.v2_json, bodies.v2_binary)}
    figures = []
    for request in (session.request(model, make) for model, forms in makes.items() for make in forms):
        reached = session.best.pop(request.name, None)
        _, answer = answer_of(server, request)
        with constant(answer) as idle:
            idle.wait_ready("/", BARE_LIMIT_S)
            session.warm_up(idle, request)
            (measured,) = alternate(session.plan.rounds, partial(session.load, idle, request))
        figure = Figure(f"client's ceiling, {request.name}", RATE, rates(measured))
        figures.append(figure if reached is None else noted(figure, reached))
    return figures


def noted(figure: Figure, reached: float) -> Figure:
    note = f"{figure.median / reached:.1f} times the fastest contender's best round"
    return Figure(figure.what, figure.unit, figure.rounds, figure.target, note)


Case = Callable[[Session], list[Figure]]
CASES: dict[str, Case] = {
    "echo": echo,
    "latency": latency,
    "mlp": mlp,
    "overhead": overhead,
    "wire": wire,
    "refusals": refusals,
    "memory": memory,
    "start": start,
    "ceiling": ceiling,
}
