"""A certificate: what cannot be used is one line, and a change is taken when certificate and key fit."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from pathlib import Path

import pytest

from app.errors import ConfigError
from app.http.tls import Certificate

PLACE = Path(__file__).parents[1] / "certificates"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its key, to be replaced."""
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    shutil.copyfile(PLACE / "first.pem", cert)
    shutil.copyfile(PLACE / "first.key", key)
    return cert, key


def shown(certificate: Certificate) -> str:
    """Whose certificate a client is shown, by a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in ("first", "second"):
        ours.load_verify_locations(PLACE / f"{name}.pem")
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    client = ours.wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    found = client.getpeercert()
    assert found
    assert (client.version(), client.selected_alpn_protocol()) == ("TLSv1.3", None)
    return dict(part[0] for part in found["subject"])["commonName"]  # type: ignore[arg-type, misc, return-value]


def test_two_files_and_one(files: tuple[Path, Path], tmp_path: Path) -> None:
    assert shown(Certificate(*files)) == "first"
    both = tmp_path / "both.pem"
    both.write_bytes(files[1].read_bytes() + files[0].read_bytes())
    assert shown(Certificate(both, None)) == "first"


@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("first.pem", "nowhere", "tls_key: .*nowhere: No such file"),
        ("first.pem", "second.key", "the key is another certificate's"),
        ("first.pem", "first.pem", "expected a certificate and its key as PEM"),
        ("first.pem", "encrypted.key", "the key is encrypted"),
    ],
)
def test_files_that_are_none(cert: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Certificate(PLACE / cert, PLACE / key)
    assert "\n" not in str(caught.value)


def test_a_change_is_taken_when_both_files_fit(files: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    certificate = Certificate(*files)
    certificate.reread()
    assert caplog.records == []
    shutil.copyfile(PLACE / "second.pem", files[0])
    for _ in range(2):
        certificate.reread()
        assert shown(certificate) == "first"
    (line,) = caplog.records
    assert line.levelname == "ERROR"
    assert "another certificate's; the certificate read before goes on" in line.getMessage()
    shutil.copyfile(PLACE / "second.key", files[1])
    certificate.reread()
    assert shown(certificate) == "second"
    assert certificate.expires == Certificate(PLACE / "second.pem", PLACE / "second.key").expires > 1.7e9
    files[0].unlink()
    certificate.reread()
    assert shown(certificate) == "second"
