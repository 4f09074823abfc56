"""HTTPS without a proxy in front: a certificate that is read again when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from app.errors import ConfigError
from app.http.reread_files import WatchedFiles

log = logging.getLogger("starling.tls")


class Certificate:
    """A server's certificate with its key. `context` is the same object for ever; new connections get what it has.

    `expires`: seconds since the epoch.

    `key` None: the certificate's file holds it, too. Raises ConfigError, in one line, where the files do not fit.
    """

    def __init__(self, cert: Path, key: Path | None) -> None:
        self._files = cert, key
        self._watched = WatchedFiles(*(path for path in self._files if path is not None))
        self.context = self._loaded()
        self.expires = _expiry(cert)

    def reread(self) -> None:
        """Read the files again if one has changed. If they do not fit, what was read before stays in use.

        A context that takes a certificate and then refuses its key is left with neither, so another one tries first.
        That is also why certificate and key may be written one after the other: between the two nothing changes.
        """
        if not self._watched.changed():
            return
        try:
            self._loaded()
            self.context.load_cert_chain(*self._files, password=_no_password)
        except (ConfigError, OSError, _Encrypted) as exc:
            log.error("%s; the certificate read before goes on", exc)  # noqa: TRY400 - the message says all there is
        else:
            self.expires = _expiry(self._files[0])
            log.info("tls_cert %s: read again", self._files[0])

    def _loaded(self) -> ssl.SSLContext:
        cert, key = self._files
        for name, path in (("tls_cert", cert), ("tls_key", key)):
            if path is not None:
                try:
                    path.open("rb").close()  # errors of `load_cert_chain` do not name the file
                except OSError as exc:
                    raise ConfigError(f"{name} {path}: {exc.strerror or exc}") from None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)  # TLS 1.2 or newer
        context.set_alpn_protocols(["http/1.1"])
        files = f"tls_cert {cert}" if key is None else f"tls_cert {cert}, tls_key {key}"
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except ssl.SSLError as exc:
            mismatch = exc.reason == "KEY_VALUES_MISMATCH"
            wrong = "the key is another certificate's" if mismatch else "expected a certificate and its key as PEM"
            raise ConfigError(f"{files}: {wrong}") from None
        except _Encrypted:
            raise ConfigError(f"{files}: the key is encrypted: expected one without a password") from None
        except OSError as exc:
            raise ConfigError(f"{files}: {exc.strerror or exc}") from None
        return context


def _expiry(cert: Path) -> float:
    """When the first certificate of a file, which is the server's own, is no longer valid. It has been loaded before.

    CPython's own tests take a certificate apart like this; the public functions do so for a peer's alone.
    """
    return ssl.cert_time_to_seconds(ssl._ssl._test_decode_cert(cert)["notAfter"])  # type: ignore[attr-defined]


class _Encrypted(Exception):
    """A key needs a password, which nobody is there to type."""


def _no_password() -> str:
    raise _Encrypted
