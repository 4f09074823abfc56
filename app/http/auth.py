"""Checks the keys of requests: the API key for all routes but probes, the admin key to load and unload models.

Without `--model-control` and without an admin key, no client may load or unload models. If there is an admin key, these
routes need it instead of the API key, and it opens no other route.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from app.errors import Forbidden, Unauthorized
from app.http.keys import Key, Keys
from app.http.routes.probes import LIVE_PATHS, READY_PATHS, ROOT
from app.values.tensors import shown

#: Answered without a key and above the limit of connections: orchestrators have no key.
PROBES = frozenset((*LIVE_PATHS, *READY_PATHS, ROOT))

#: Answered above the limit of connections, because an overload is when it is needed. It needs the key.
METRICS = "/metrics"

_CONTROL = re.compile(r"/v2/repository/models/[^/]+/(?:load|unload)")
_OFF = "loading and unloading models is off: start the server with --model-control, or with --admin-key"


class Auth:
    """`keys`: for all routes; `admin`: for those that load and unload models. None: no key is needed.

    `control`: models may be loaded and unloaded without an admin key. `origins`: besides the server's own pages, pages
    of these origins may do so from a browser.
    """

    def __init__(
        self, keys: Keys | None = None, admin: Keys | None = None, *, control: bool = False, origins: Iterable[str] = ()
    ) -> None:
        self.keys = keys
        self._admin = admin
        self._control = control
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)

    def check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Raise Unauthorized for a request without the API key.

        Requests to load or unload pass if there is an admin key: `check_control` checks that one, in the route itself.
        A path that only looks like such a request matches no route.
        """
        if self.keys is None or (self._admin is not None and _CONTROL.fullmatch(path)):
            return
        _check(headers, self.keys, "API")

    @property
    def control(self) -> str:
        """Who may load and unload: "admin", with the admin key; "open", as any other request; "off", nobody."""
        return "admin" if self._admin is not None else "open" if self._control else "off"

    @property
    def several(self) -> bool:
        """Whether there is more than one API key."""
        return self.keys is not None and self.keys.several

    def key_of(self, headers: dict[bytes, bytes]) -> Key | None:
        """The API key that a request carries; None if it has none or a wrong one, or if no key is needed."""
        given = _given(headers)
        return None if given is None or self.keys is None else self.keys.find(given)

    def check_control(self, headers: dict[bytes, bytes]) -> None:
        """Raise Forbidden or Unauthorized if the request may not load or unload models."""
        origin = headers.get(b"origin")
        if origin is not None and not self._own(origin.lower(), headers.get(b"host", b"").lower()):
            named = shown(origin.decode("latin-1"))
            raise Forbidden(f"Origin: a page of {named} may not load or unload models; --cors-origins lets it")
        if self._admin is not None:
            self._admin.reread()  # a key removed from the file a moment ago must not work any more
            _check(headers, self._admin, "admin")
        elif not self._control:
            raise Forbidden(_OFF)

    def _own(self, origin: bytes, host: bytes) -> bool:
        """Whether the page in the browser is the server's own, or of an allowed origin.

        If no key is needed, the host must be localhost or an IP address: an attacker can make any other name resolve to
        this machine (DNS rebinding).
        """
        if origin in self._origins:
            return True
        name = _name_in(origin)
        if name is None or name != _name_in(b"//" + host):
            return False
        return self._admin is not None or self.keys is not None or name == "localhost" or _is_address(name)

    def reread(self) -> None:
        """Read key files again if they have changed."""
        for keys in filter(None, (self.keys, self._admin)):
            keys.reread()


def _check(headers: dict[bytes, bytes], keys: Keys, kind: str) -> None:
    given = _given(headers)
    if given is None:
        raise Unauthorized(f"an {kind} key is needed: X-API-Key, or Authorization: Bearer")
    if keys.find(given) is None:
        raise Unauthorized(f"the {kind} key is wrong")


def _name_in(url: bytes) -> str | None:
    """The host of an origin, without its port."""
    with suppress(ValueError):
        return urlsplit(url.decode("latin-1")).hostname
    return None


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(name))
    return False


def _given(headers: dict[bytes, bytes]) -> bytes | None:
    """The key that a request came with."""
    given = headers.get(b"x-api-key")
    if given is None:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else None
    return given
