"""What of a call's body is decoded on the helper threads, because the event loop should not stand still for so long.

A JSON parser holds the interpreter lock until it returns, so the parsers of a class take turns and use at most half of
the time (`Resources.parsing`).
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import cast

from app.contract import CLASSES, Array, Served
from app.errors import BadText
from app.http.codecs.base import Codec, DecodedCall, RequestHeaders
from app.http.codecs.by_body import ByBody
from app.http.codecs.pieces import NOT_PLAIN
from app.http.codecs.v2 import V2
from app.http.resources import Resources

_REALTIME = CLASSES[0]


async def opened_aside(resources: Resources, codec: ByBody, body: bytes, klass: str) -> ByBody:
    """A large body that names its model, parsed. Raises a leaf of StarlingError."""
    async with resources.parsing[klass]:
        return await resources.threads.run(klass != _REALTIME, codec.opened, body, resources.limits)


async def decoded_aside(
    resources: Resources, served: Served, codec: Codec, headers: RequestHeaders, body: bytes, klass: str
) -> DecodedCall:
    """The call that a body means, read by the model's front if it has one. Raises a leaf of StarlingError."""
    call = await _parsed(resources, served, codec, headers, body, klass)
    front = codec.front(served)
    if front is not None:
        sent = cast("list[Array]", call.arrays)  # fronts read bytes
        try:
            call.take(await resources.readings.read(front, klass != _REALTIME, sent, len(body)))
        except BadText as error:
            raise codec.misread(error) from None
    return call


async def _parsed(
    resources: Resources, served: Served, codec: Codec, headers: RequestHeaders, body: bytes, klass: str
) -> DecodedCall:
    """What the body says; large numbers in pieces, between which other requests run."""
    limits = resources.limits
    if not codec.slow_to_decode(served, headers, body):
        return codec.decode(served, headers, body, limits)
    own_code = served.model.decode is not None  # which may release the interpreter lock
    parsing, run, best_effort = resources.parsing[klass], resources.threads.run, klass != _REALTIME
    if isinstance(codec, V2) and not own_code:
        with suppress(*NOT_PLAIN):  # it is parsed whole, and its fault is named
            async with parsing:
                pieces = await run(best_effort, codec.in_pieces, served, headers, body, limits)
            while pieces.left:
                async with parsing:
                    await run(best_effort, pieces.parse)
            async with parsing:
                return codec.parsed(served, await run(best_effort, pieces.call))
    async with nullcontext() if own_code else parsing:
        return await run(best_effort, codec.decode, served, headers, body, limits)
