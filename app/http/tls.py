"""HTTPS without a proxy in front. The certificate is read again when its files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from app.errors import ConfigError, as_config_error
from app.http.reread_files import WatchedFiles

log = logging.getLogger("starling.tls")


class Certificate:
    """A server's certificate and key. `key` None: the certificate's file contains it.

    `context` stays the same object; new connections use the certificate last loaded into it. `expires`: seconds since
    the epoch. Raises ConfigError, in one line, if the files do not fit.
    """

    def __init__(self, cert: Path, key: Path | None) -> None:
        self._files = cert, key
        self._watched = WatchedFiles(*(path for path in self._files if path is not None))
        self.context = self._loaded()
        self.expires = _expiry(cert)

    def reread(self) -> None:
        """Read the files again if one has changed. If they do not fit, the previous certificate stays in use.

        They are loaded into a new context first: a context that loads a certificate and then refuses its key is left
        with neither. So certificate and key may also be written one after the other.
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
                with as_config_error(name):
                    path.open("rb").close()  # errors of `load_cert_chain` do not name the file
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
        return context


def _expiry(cert: Path) -> float:
    """When the first certificate of the file, the server's own, expires. The file has been loaded before.

    Uses the private function that CPython's tests use: the public ones only decode a peer's certificate.
    """
    return ssl.cert_time_to_seconds(ssl._ssl._test_decode_cert(cert)["notAfter"])  # type: ignore[attr-defined]


class _Encrypted(Exception):
    """The key needs a password, and nobody can type it."""


def _no_password() -> str:
    raise _Encrypted
