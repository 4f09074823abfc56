"""Who may do what: the API key opens everything but loading and unloading, which the admin key alone opens."""

from __future__ import annotations

import contextlib

import pytest

from app.errors import Forbidden, Unauthorized
from app.http.auth import Auth
from app.http.keys import Key, keys_of

UNLOAD = "/v2/repository/models/echo/unload"
LOAD = "/v2/repository/models/echo/load"


def auth(api: str | None = None, admin: str | None = None, *, control: bool = False) -> Auth:
    return Auth(keys_of("api_key", api, None), keys_of("admin_key", admin, None), control=control)


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": b"Bearer sesame"},
        {b"authorization": b"bearer  sesame "},
        {b"x-api-key": b"sesame", b"authorization": b"Basic other"},
    ],
)
def test_the_key(headers: dict[bytes, bytes]) -> None:
    auth("sesame").check("/v2", headers)
    assert auth("sesame").key_of(headers) == Key(b"sesame")
    auth(admin="sesame").check_control(headers)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "is needed"),
        ({b"authorization": b"Basic sesame"}, "is needed"),
        ({b"x-api-key": b""}, "is wrong"),
        ({b"x-api-key": b"Sesame"}, "is wrong"),
        ({b"x-api-key": b"\xff", b"authorization": b"Bearer sesame"}, "is wrong"),
    ],
)
def test_anything_else(headers: dict[bytes, bytes], words: str) -> None:
    with pytest.raises(Unauthorized, match=f"API key {words}"):
        auth("sesame").check("/v2", headers)
    assert auth("sesame").key_of(headers) is None
    with pytest.raises(Unauthorized, match=f"admin key {words}"):
        auth(admin="sesame").check_control(headers)


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
    for one, passes in ((Auth(control=True, origins=origins), allowed == "all"), (keyed, allowed != "none")):
        if passes:
            one.check_control(headers)
        else:
            with pytest.raises(Forbidden, match="another host"):
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
