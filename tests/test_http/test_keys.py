"""Keys: which requests they open, where they are from, and one key's share of a queue. No message holds a key."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from hmac import compare_digest
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.contract import Klass
from app.errors import ConfigError, Forbidden, QueueFull, Unauthorized
from app.http import keys as module
from app.http.auth import Auth
from app.http.keys import Key, Keys, Shares, keys_of

from .catalog import KEY, LOCKED
from .echo import INFER, Caller, Echo, MakeCaller, body

SECRETS = ("alpha-1", "beta-2", "gamma-3")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# of the team\nalpha-1\n\n  beta-2  \r\n")
    return path


def held(keys: Keys) -> list[str]:
    return [key for key in SECRETS if keys.find(key.encode())]


def test_a_key_a_line_and_what_it_may_ask_for(file: Path) -> None:
    keys = Keys("api_key", "gamma-3", file)
    assert held(keys) == list(SECRETS)
    for wrong in (b"", b"alpha-", b"alpha-1 ", b"# of the team", b"of", b"\xff"):
        assert not keys.find(wrong)
    assert held(Keys("api_key", None, file)) == ["alpha-1", "beta-2"]
    file.write_text("alpha-1 priority=2  class=best_effort # at night\nbeta-2\nbeta-2 class=realtime\nd#4\t#\n")
    keys = Keys("api_key", "gamma-3", file)
    found = [keys.find(key) for key in (b"alpha-1", b"beta-2", b"gamma-3", b"d#4", b"alpha-1 priority=2")]
    assert found == [Key(b"alpha-1", 2, Klass.BEST_EFFORT), Key(b"beta-2"), Key(b"gamma-3"), Key(b"d#4"), None]


def test_every_key_is_compared(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only those up to the right one: how many there are before it would show in the time."""
    keys, compare = Keys("api_key", None, file), Mock(side_effect=compare_digest)
    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    assert keys.find(b"alpha-1")
    assert compare.call_count == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# nothing\n\n", "expected a key, found none"),
        (b"alpha-1\nbeta 2\n", "line 2: behind the key: expected priority"),
        (b"alpha-1\n\xff\n", "UTF-8"),
        (b"a" * (65 << 10), "at most 65536 bytes"),
        *((b"alpha-1 " + option, "line 1: behind the key: expected priority=1 or more, or class=")
          for option in (b"priority=0", b"priority=", b"class=bulk", b"rate=3")),
    ],
)  # fmt: skip
def test_files_that_are_none(file: Path, content: bytes, words: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        Keys("admin_key", None, file)
    place, _, told = str(caught.value).partition(": ")
    assert place == f"admin_key_file {file}"
    assert not any(part in told for part in ("alpha", "beta", "aaa"))


@pytest.mark.parametrize("key", ["", "two words", "schlüssel"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^api_key: expected a key") as caught:
        Keys("api_key", key, None)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "gamma-3\nbroken line\n"])
def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_old_keys(
    file: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    """Which is told once."""
    caplog.set_level("INFO")
    keys = Keys("api_key", None, file)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    for _ in range(3):
        keys.reread()
    assert held(keys) == ["alpha-1", "beta-2"]
    (line,) = caplog.records
    assert (line.levelname, "the keys read before still hold" in line.getMessage()) == ("ERROR", True)
    told = line.getMessage().replace(str(file), "")  # which is named after the test
    assert not any(key in told for key in (*SECRETS, "broken"))
    file.write_text("gamma-3")
    keys.reread()
    assert held(keys) == ["gamma-3"]
    assert caplog.records[-1].getMessage() == "api_key_file: read again: keys: 1"


def test_a_secret_of_kubernetes(tmp_path: Path) -> None:
    """Its files are links into a folder that is a link, too, and is swapped as a whole."""
    for number, key in enumerate(SECRETS[:2]):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "keys").write_text(key)
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "keys").symlink_to("..data/keys")
    keys = Keys("api_key", None, tmp_path / "keys")
    assert held(keys) == ["alpha-1"]
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    keys.reread()
    assert held(keys) == ["beta-2"]


UNLOAD = "/v2/repository/models/echo/unload"
LOAD = "/v2/repository/models/echo/load"


def auth(api: str | None = None, admin: str | None = None, *, control: bool = False) -> Auth:
    return Auth(keys_of("api_key", api, None), keys_of("admin_key", admin, None), control=control)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({b"authorization": b"Bearer sesame"}, ""),
        ({b"authorization": b"bearer  sesame "}, ""),
        ({b"x-api-key": b"sesame", b"authorization": b"Basic other"}, ""),
        ({}, "is needed"),
        ({b"authorization": b"Basic sesame"}, "is needed"),
        ({b"x-api-key": b""}, "is wrong"),
        ({b"x-api-key": b"Sesame"}, "is wrong"),
        ({b"x-api-key": b"\xff", b"authorization": b"Bearer sesame"}, "is wrong"),
    ],
)
def test_the_key_and_anything_else(headers: dict[bytes, bytes], words: str) -> None:
    """`words`: of the error, "" for none."""
    assert auth("sesame").key_of(headers) == (None if words else Key(b"sesame"))
    for kind, check in (
        ("API", partial(auth("sesame").check, "/v2")), ("admin", auth(admin="sesame").check_control),
    ):  # fmt: skip
        with pytest.raises(Unauthorized, match=f"{kind} key {words}") if words else contextlib.nullcontext():
            check(headers)


def test_without_keys_everything_is_open_but_control() -> None:
    auth().check("/v2", {})
    auth().check(UNLOAD, {})
    with pytest.raises(Forbidden, match="--model-control"):
        auth().check_control({b"x-api-key": b"sesame"})
    auth(control=True).check_control({})
    for headers, allowed in (({}, False), ({b"x-api-key": b"api"}, True)):  # control takes the other key
        with contextlib.nullcontext() if allowed else pytest.raises(Unauthorized):
            auth("api", control=True).check(UNLOAD, headers)


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://evil", "127.0.0.1:8000", "none"),
        ("http://[", "[", "none"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "all"),
        ("http://[::1]:8000", "[::1]:8000", "all"),
        ("https://models.example.com", "models.example.com", "keyed"),  # a stranger's name may mean this machine
        ("https://app.example.com", "127.0.0.1:8000", "all"),
    ],
)
def test_a_page_of_another_host_changes_nothing(origin: str, host: str, allowed: str) -> None:
    headers = {b"origin": origin.encode(), b"host": host.encode(), b"x-api-key": b"admin"}
    origins = ("https://app.example.com",)
    keyed = Auth(None, keys_of("admin_key", "admin", None), origins=origins)
    refused = pytest.raises(Forbidden, match=r"a page of '\S+' may not load .*--cors-origins")
    for one, passes in ((Auth(control=True, origins=origins), allowed == "all"), (keyed, allowed != "none")):
        with contextlib.nullcontext() if passes else refused:
            one.check_control(headers)


@pytest.mark.parametrize("control", [False, True])
def test_an_admin_key_alone_opens_control_and_nothing_else(control: bool) -> None:
    one = auth("api", "admin", control=control)
    for path in (LOAD, UNLOAD):
        one.check(path, {b"x-api-key": b"admin"})  # which `check_control` decides on
        one.check_control({b"x-api-key": b"admin"})
        with pytest.raises(Unauthorized, match="admin key is wrong"):
            one.check_control({b"x-api-key": b"api"})
    for path in ("/v2", "/v2/repository/index", f"{UNLOAD}\n", f"{LOAD}/", "/v2/repository/models/a/b/load"):
        with pytest.raises(Unauthorized, match="API key is wrong"):
            one.check(path, {b"x-api-key": b"admin"})
    assert one.key_of({b"x-api-key": b"admin"}) is None


A, B = Key(b"a"), Key(b"b")
QUEUE = ("mlp", "1", Klass.REALTIME)


def test_a_key_alone_leaves_room_for_the_next_and_holds_half_beside_others() -> None:
    shares, other = Shares(), ("mlp", "1", Klass.BEST_EFFORT)
    first = shares.take(QUEUE, A, 41, 100)
    taken = [shares.take(QUEUE, A, 49, 100), shares.take(other, A, 90, 100)]  # queues count apart
    with pytest.raises(QueueFull, match=r"hold 90 rows, and may hold 90% of the queue's 100$"):
        shares.take(QUEUE, A, 1, 100)
    taken.append(shares.take(QUEUE, B, 10, 100))
    first()
    with pytest.raises(QueueFull, match="while others wait"):
        shares.take(QUEUE, A, 2, 100)
    for answered in (shares.take(QUEUE, A, 1, 100), *taken):
        answered()
    assert not shares._rows  # nothing is kept of those that are empty
    shares.take(QUEUE, A, 100, 100)  # the only request of a key may be as large as the queue


@pytest.fixture
def call(caller: MakeCaller, file: Path) -> Caller:
    """Of a server with three keys."""
    file.write_text("lead\nteam priority=2\nbulk class=best_effort\n")
    return caller(auth=Auth(keys_of("api_key", None, file)))


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
    call: Caller, key: bytes, parameters: dict[str, object], status: int
) -> None:
    reply = await call(INFER, body(parameters=parameters), {b"x-api-key": key})
    assert reply.status == status
    if status == 403:
        named = "class: with this key only best_effort" if key == b"bulk" else "priority: with this key it may be 2"
        assert reply.error.startswith(named)


async def test_a_greedy_key_leaves_room_and_gets_its_part_back(call: Caller, model: Echo) -> None:
    """The queue holds 8 rows, of which a key alone may hold 7."""
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


async def test_the_only_key_may_fill_the_queue(caller: MakeCaller, model: Echo) -> None:
    call = caller(auth=LOCKED)
    model.opened = False
    first = asyncio.create_task(call(INFER, body(7), KEY))
    await model.ran.wait()
    model.opened = True
    assert (await call(INFER, body(), KEY)).status == 200
    model.leases[0].submit(model.leases[0]._waiter)
    assert (await first).status == 200
