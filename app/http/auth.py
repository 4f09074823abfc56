"""Who may send which request: clients with a key, where there is one. Probes need none.

Loading and unloading models is for nobody, unless the server was started with `--model-control` or an admin key. Where
there is an admin key, it is asked for there in place of the other, and opens nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from app.errors import Forbidden, Unauthorized
from app.http.keys import Key, Keys
from app.http.routes.probes import LIVE_PATHS, READY_PATHS, ROOT

#: Orchestrators have no key, and must be answered also when there are too many connections.
PROBES = frozenset((*LIVE_PATHS, *READY_PATHS, ROOT))

#: Who watches an overload needs it then; it takes the key.
METRICS = "/metrics"

_CONTROL = re.compile(r"/v2/repository/models/[^/]+/(?:load|unload)")
_OFF = "loading and unloading models is off: start the server with --model-control, or with --admin-key"


class Auth:
    """`keys` open all routes, `admin` those that load and unload models; None asks for no key.

    `control`: whether models may be loaded and unloaded where there is no admin key; `origins`: of pages that may ask
    for it, beside the server's own.
    """

    def __init__(
        self,
        keys: Keys | None = None,
        admin: Keys | None = None,
        *,
        control: bool = False,
        origins: Collection[str] = (),
    ) -> None:
        self.keys = keys
        self._admin = admin
        self._control = control
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)

    def check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Raise Unauthorized for a request without the API key, but for those that bring an admin key in its place.

        `check_control` decides on these, in the route itself: a path that only looks like one of them opens nothing.
        """
        if self.keys is None or (self._admin is not None and _CONTROL.fullmatch(path)):
            return
        _check(headers, self.keys, "API")

    @property
    def control(self) -> str:
        """What loading and unloading needs: "admin" for the admin key, "open" for no other key than all; "off"."""
        return "admin" if self._admin is not None else "open" if self._control else "off"

    @property
    def several(self) -> bool:
        """Whether there is more than one API key."""
        return self.keys is not None and self.keys.several

    def key_of(self, headers: dict[bytes, bytes]) -> Key | None:
        """The API key that a request came with; None for none, or a wrong one, and where none is asked for."""
        given = _given(headers)
        return None if given is None or self.keys is None else self.keys.find(given)

    def check_control(self, headers: dict[bytes, bytes]) -> None:
        """Raise Forbidden or Unauthorized for a request to load or unload that may not come."""
        origin = headers.get(b"origin")
        if origin is not None and not self._own(origin.lower(), headers.get(b"host", b"").lower()):
            raise Forbidden("Origin: a page of another host may not load or unload models")
        if self._admin is not None:
            self._admin.reread()  # a key that was taken away a moment ago must not unload anything
            _check(headers, self._admin, "admin")
        elif not self._control:
            raise Forbidden(_OFF)

    def _own(self, origin: bytes, host: bytes) -> bool:
        """Whether a browser's page is the server's own, or one that may call it.

        Where no key is asked for, the host must be localhost or an address: any other name may be one that a stranger
        has made to mean this machine (DNS rebinding).
        """
        if origin in self._origins:
            return True
        name = _name_in(origin)
        if name is None or name != _name_in(b"//" + host):
            return False
        return self._admin is not None or self.keys is not None or name == "localhost" or _is_address(name)

    def reread(self) -> None:
        """Read files of keys again that have changed."""
        for keys in (self.keys, self._admin):
            if keys is not None:
                keys.reread()


def _check(headers: dict[bytes, bytes], keys: Keys, kind: str) -> None:
    given = _given(headers)
    if given is None:
        raise Unauthorized(f"an {kind} key is needed: X-API-Key, or Authorization: Bearer")
    if keys.find(given) is None:
        raise Unauthorized(f"the {kind} key is wrong")


def _name_in(url: bytes) -> str | None:
    """The host of an origin, without its port."""
    try:
        return urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _given(headers: dict[bytes, bytes]) -> bytes | None:
    """The key that a request came with."""
    given = headers.get(b"x-api-key")
    if given is None:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else None
    return given
