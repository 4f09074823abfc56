"""One inference, from the request to its response: the road that every call takes, on both ways in which it comes.

`infer` is run by `Request`, without a task. Each `await` is of something that resumes it: the body, a helper thread,
the lease whose rows have ended. What fails anywhere on the road is answered at its end, by `refused`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import cast

from app.contract import Answer, Array, Front, Klass, Lease, Served, Translated, wait
from app.errors import (
    BadText,
    ClientGone,
    LengthRequired,
    MethodNotAllowed,
    NotFound,
    NotReady,
    StarlingError,
    TooLarge,
    TooManyConnections,
)
from app.http.answers import BINARY, COMPRESS_FROM, COMPRESSED, HEAD, JSON, QUICK_TO_COMPRESS, compress, wanted_encoding
from app.http.body import inflate
from app.http.codecs.base import OFF_LOOP_BYTES, DecodedCall, check_rows, encode, slow_to_encode
from app.http.codecs.text_codec import TextCodec, take_cut
from app.http.codecs.v2_decode import may_name_class
from app.http.errors import error_parts
from app.http.inference_routes import CLASS_BY_NAME, X_CLASS, parse_class, parse_query
from app.http.keys import check_permitted
from app.http.request import BODY, Request, Response
from app.http.streaming import pieces, stream_head

log = logging.getLogger("starling.http")

_BEST_EFFORT = Klass.BEST_EFFORT  # looked up once, used per request


async def infer(request: Request) -> Response:
    """Answer the request, with an error if anything fails."""
    try:
        served = admitted(request)
        body = request.body if request.body is not None else await wait(BODY)
        if b"content-encoding" in request.headers:
            body = await inflated(request, body)
        if served is None or request.route.codec.reads_first:
            served = await opened(request, served, body)
        if request.full and not may_name_class(body):
            served.admit(0, request.klass)
        lease = None
        while lease is None:
            try:
                if served.model.front is None and served.model.decode is None and len(body) <= OFF_LOOP_BYTES:
                    call = request.route.codec.decode(served, request.headers, body, request.resources.limits)
                else:
                    call = await decoded_slowly(request, served, body)
                lease = leased(request, served, call)
            except NotReady as error:
                served = reloaded(request, served, error)
        try:
            answer = await (lease.run() if call.stream is None else pieces(request, served, call.stream, lease))
        finally:
            lease.close()
        if served.model.front is None and served.model.present is None and call.rows <= served.info.quick_rows:
            body, json_length = request.route.codec.encode(served, call, answer)
        else:
            threads, codec = request.resources.threads, request.route.codec
            slow = slow_to_encode(served, codec, call, answer)
            body, json_length = await threads.run_if(slow, request.klass, encode, served, codec, call, answer)
        kind = JSON if json_length is None else BINARY % json_length
        if len(body) >= COMPRESS_FROM and call.stream is None:
            body, lines = await compressed(request, body)
            kind += lines
        return succeeded(request, served, call, answer, body, kind)
    except (KeyboardInterrupt, GeneratorExit):  # the server ends
        raise
    except BaseException as error:  # what a model's code or a library raises need not be an Exception
        return await refused(request, error)


# before the body


def admitted(request: Request) -> Served | None:
    """The model, if it has room for a row: a refusal under load must be cheap. None: the body names the model.

    Raises a leaf of StarlingError.
    """
    route, resources = request.route, request.resources
    if request.method != "POST":
        raise MethodNotAllowed(f"{request.method} {request.path}: expected POST")
    served = request.served = request.catalog.serving[route.model, route.version] if route.model else None
    if served is not None:
        request.klass = served.klass
    if X_CLASS in request.headers:
        request.klass = parse_class(request.headers[X_CLASS])
    klass = request.klass
    if route.query:
        request.options = parse_query(route.query)
    limits, bodies = resources.limits, resources.bodies
    most_held = limits.inflight
    if klass is _BEST_EFFORT:
        if resources.connections() > (most := limits.best_effort_connections):
            raise TooManyConnections(
                f"more than {most} connections are open: the rest are for real-time requests", retry_after_s=1
            )
        most_held = limits.best_effort_inflight
    if served is not None and not served.has_room(klass):
        # The body may name the real-time class, which has room.
        request.full = route.codec.names_class and klass is _BEST_EFFORT and served.has_room(Klass.REALTIME)
        if not request.full:
            served.admit(0, klass)
    request.most_held = most_held
    if (length := request.declared) is None:
        if b"transfer-encoding" not in request.headers:
            raise LengthRequired("a body is needed: expected a Content-Length header or a chunked body")
    else:
        if length > limits.body or bodies.held + length > most_held:
            bodies.check(length, most_held)
        if request.body_complete:  # else its bytes count as they arrive
            bodies.held += length
            request.held = length
    return served


# the body


async def inflated(request: Request, body: bytes) -> bytes:
    """The body as it was before its client compressed it."""
    encoding, resources = request.headers[b"content-encoding"], request.resources
    whole = await resources.threads.run(request.klass, inflate, body, encoding, resources.limits.body)
    if whole is not body:
        resources.bodies.hold(len(whole), request.most_held)
        request.held += len(whole)
    return whole


async def opened(request: Request, served: Served | None, body: bytes) -> Served:
    """Have the codec read the body. Returns the model; if the body names it, it has room."""
    codec, resources = request.route.codec, request.resources
    assert isinstance(codec, TextCodec)  # only these read first
    slow = len(body) > OFF_LOOP_BYTES
    own = await resources.parser.run_if(slow, request.klass, codec.with_body, body, resources.limits)
    name = own.choose(request.catalog) if served is None else request.route.model
    request.route = replace(request.route, codec=own, model=name)
    if served is not None:
        return served
    try:
        served = request.served = request.catalog.serving[name, None]
    except NotFound as error:
        error.param = "model"
        raise
    if X_CLASS not in request.headers:
        request.klass = served.klass
    served.admit(0, request.klass)
    return served


async def decoded_slowly(request: Request, served: Served, body: bytes) -> DecodedCall:
    """Decode on a helper thread, and have the model's front read the inputs if it has one."""
    resources, codec, headers = request.resources, request.route.codec, request.headers
    threads = resources.parser if served.model.decode is None else resources.threads
    slow = codec.slow_to_decode(served, headers, body)
    call = await threads.run_if(slow, request.klass, codec.decode, served, headers, body, resources.limits)
    if (front := codec.front(served)) is not None:
        check_rows(served.info, front.reader.rows(cast("list[Array]", call.arrays)))  # fronts read bytes
        call.take_translated(await _read(request, front, call, len(body)))
        if call.parameters:
            call.note = front.answers.with_parameters(call.note, call.parameters)
    return call


async def _read(request: Request, front: Front, call: DecodedCall, size: int) -> Translated:
    """What the model's front makes of the inputs, from a body of `size` bytes."""
    resources = request.resources
    sent = cast("list[Array]", call.arrays)
    cut = take_cut(call, front)
    try:
        if cut is not None:
            (read,) = await resources.threads.run(request.klass, front.reader.read, [sent], cut)
            return read
        return await resources.threads.read(front.reader, request.klass, sent, size)
    except BadText as error:
        raise request.route.codec.bad_text_error(error) from None


# the call


def leased(request: Request, served: Served, call: DecodedCall) -> Lease:
    """Slots with the call's inputs in them.

    Raises BadRequest if the call has more rows than the queue holds, Forbidden or QueueFull if its key does not allow
    them, and what `Served.lease` raises.
    """
    batching, resources = served.info.batching, request.resources
    request.rows = call.rows
    if call.klass is None:
        call.klass = request.klass
    klass = request.klass = call.klass
    if call.rows > batching.max_queue:
        check_rows(served.info, call.rows)
    if request.options is not None:
        priority, timeout_us, total_timeout_us = request.options
        call.priority = call.priority or priority
        call.timeout_us = call.timeout_us or timeout_us
        call.total_timeout_us = call.total_timeout_us or total_timeout_us
    key = resources.auth.key_of(request.headers) if resources.keyed else None
    if key is not None:
        check_permitted(key, klass, call.priority)
    lease = served.lease(call, request.arrived)
    if key is not None and resources.auth.several:
        try:
            queue = served.info.name, served.info.version, klass
            lease.on_close = resources.shares.take(queue, key, call.rows, batching.max_queue)
        except BaseException:
            lease.close()
            raise
    return lease


def reloaded(request: Request, before: Served, error: NotReady) -> Served:
    """The version that has taken the model's place since it was found. Raises the error if there is none."""
    try:
        served = request.catalog.serving[request.route.model, request.route.version]
    except StarlingError:
        raise error from None
    if served is before:
        raise error
    request.served = served
    return served


# the response


async def compressed(request: Request, body: bytes) -> tuple[bytes, bytes]:
    """The body as its client accepts it, and the header lines that say so."""
    wanted = wanted_encoding(request.headers.get(b"accept-encoding"), len(body))
    if wanted is None:
        return body, b""
    slow = len(body) > QUICK_TO_COMPRESS
    packed = await request.resources.threads.run_if(slow, request.klass, compress, body, wanted)
    return packed, COMPRESSED % wanted.encode()


def succeeded(
    request: Request, served: Served, call: DecodedCall, answer: Answer, body: bytes, kind: bytes
) -> Response:
    """The response with this body; `kind`: the header lines that say what it is."""
    total = time.monotonic_ns() - request.arrived
    if call.stream is not None:
        head = stream_head(request)
    else:
        head = HEAD % (
            request.request_id, answer.queue_ns / 1e6, sum(answer.times) / 1e6, total / 1e6, answer.batch, kind,
            len(body),
        )  # fmt: skip
        if request.lines:
            head += request.lines
    served.finish("ok", total, request.klass, answer, request.rows)
    request.rows = call.rows  # as a front makes them
    if log.isEnabledFor(logging.DEBUG):
        name = served.info.name
        log.debug("%s %s: ok, %.3f ms, batch %d", request.request_id.decode(), name, total / 1e6, answer.batch)
    request.outcome = answer
    return 200, head, body, False


async def refused(request: Request, error: BaseException) -> Response:
    """The error as the client wants it. While very many connections are open, a refusal waits for its turn."""
    if request.served is None:  # no model has said its default
        request.klass = CLASS_BY_NAME.get(request.headers.get(X_CLASS, b""), request.klass)
    resources = request.resources
    resources.bodies.held -= request.held
    request.held, request.body = 0, None
    request.count_failure(error)
    # Whoever brought the error has a frame that holds it, and its traceback has the frames that hold the body. A cycle
    # would keep both until a garbage collection.
    error.__traceback__ = error.__context__ = None
    status, head, body = error_parts(error, request.route.openai)
    # A too large chunked body may never end, so the connection closes. A body of a declared length is read to its
    # end and dropped: a client that still sends would otherwise see a reset connection instead of the answer.
    endless = status == TooLarge.status and b"content-length" not in request.headers
    closes = endless or (isinstance(error, StarlingError) and error.closes)
    head += b"x-request-id: %s\r\n" % request.request_id
    if status == MethodNotAllowed.status:
        head += b"allow: POST\r\n"
    if (status < ClientGone.status or status == NotReady.status) and resources.refusals.needed():
        request.drops_body = True
        await wait(resources.refusals)
    request.outcome = error
    return status, head + request.lines, body, closes
