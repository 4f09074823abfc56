"""One key's part of a queue: it never keeps others out, and a lone request is never refused for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.errors import QueueFull
from app.http.auth import Auth
from app.http.keys import Key, Shares, keys_of

from .echo import INFER, Echo, MakeCaller, body

A, B = Key(b"a"), Key(b"b")
QUEUE = ("mlp", "1", "realtime")


def test_a_key_alone_leaves_room_for_the_next_and_holds_half_beside_others() -> None:
    shares, other = Shares(), ("mlp", "1", "best_effort")
    shares.take(QUEUE, A, 90, 100)
    shares.take(other, A, 90, 100)  # queues count apart
    with pytest.raises(QueueFull, match=r"hold 90 rows, and may hold 90% of the queue's 100$"):
        shares.take(QUEUE, A, 1, 100)
    shares.take(QUEUE, B, 10, 100)
    shares.give_back(QUEUE, A, 41)
    with pytest.raises(QueueFull, match="while others wait"):
        shares.take(QUEUE, A, 2, 100)
    shares.take(QUEUE, A, 1, 100)
    for queue, key, rows in ((QUEUE, A, 50), (QUEUE, B, 10), (other, A, 90)):
        shares.give_back(queue, key, rows)
    assert not shares._rows  # nothing is kept of those that are empty
    shares.take(QUEUE, A, 100, 100)  # the only request of a key may be as large as the queue


@pytest.fixture
def auth(tmp_path: Path) -> Auth:
    file = tmp_path / "keys"
    file.write_text("lead\nteam priority=2\nbulk class=best_effort\n")
    return Auth(keys_of("api_key", None, file))


@pytest.mark.parametrize(
    ("key", "parameters", "status"),
    [
        (b"lead", {"priority": 1}, 200),
        (b"team", {"priority": 2}, 200),
        (b"team", {"priority": 1}, 403),
        (b"bulk", {"class": "best_effort"}, 200),
        (b"bulk", {}, 403),
    ],
)
async def test_a_key_names_no_class_and_priority_beyond_its_own(
    caller: MakeCaller, model: Echo, auth: Auth, key: bytes, parameters: dict[str, object], status: int
) -> None:
    reply = await caller(model, options={"auth": auth})(INFER, body(parameters=parameters), {b"x-api-key": key})
    assert reply.status == status
    assert model.open_leases == 0
    if status == 403:
        named = "class: with this key only best_effort" if key == b"bulk" else "priority: with this key it may be 2"
        assert reply.json()["error"].startswith(named)


async def test_a_greedy_key_leaves_room_and_gets_its_part_back(caller: MakeCaller, model: Echo, auth: Auth) -> None:
    """The queue holds 8 rows, of which a key alone may hold 7."""
    call = caller(model, options={"auth": auth})
    model.opened = False
    greedy = [asyncio.create_task(call(INFER, body(), {b"x-api-key": b"lead"})) for _ in range(8)]
    (refused,), waiting = await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().status == 429
    assert b"retry-after" in refused.result().headers
    model.opened = True
    for lease in model.leases[:7]:
        lease.submit(lease._waiter)
    assert {reply.status for reply in await asyncio.gather(*waiting)} == {200}
    assert (await call(INFER, body(), {b"x-api-key": b"lead"})).status == 200
    assert model.open_leases == 0
