"""The Dockerfile, read: it cannot be built where the tests run."""

from __future__ import annotations

import json
import re
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path

import pytest
from background import QuietHandler, ended, running

from app.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
LIVE = "/v2/health/live"
CERTIFICATE = ROOT / "tests" / "certificates" / "first.pem"


def instructions() -> list[tuple[str, str]]:
    """(name, rest) of each instruction, continued lines joined and comments left out."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def all_of(wanted: str) -> list[str]:
    return [rest for name, rest in instructions() if name == wanted]


def last(wanted: str) -> str:
    """What holds at run time: the last one, which must be in the last stage."""
    names = [name for name, _ in instructions()]
    stage = len(names) - 1 - names[::-1].index("FROM")
    found = [rest for name, rest in instructions()[stage:] if name == wanted]
    assert found, f"no {wanted} in the last stage"
    return found[-1]


def test_what_it_copies_exists_and_is_what_the_context_sends() -> None:
    copied = [path for rest in all_of("COPY") if not rest.startswith("--") for path in rest.split()[:-1]]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied)


def test_it_ends_as_a_user_that_is_not_root() -> None:
    assert int(last("USER").split(":")[0]) > 0


def test_it_starts_a_command_that_there_is() -> None:
    script, command, *flags = json.loads(last("ENTRYPOINT")) + json.loads(last("CMD"))
    assert f'\n{script} = "starling_serve:main"' in (ROOT / "pyproject.toml").read_text()
    assert command == "serve"
    names = [flag[2:].partition("=")[0].replace("-", "_") for flag in flags if flag.startswith("--")]
    assert set(names) <= set(Settings.model_fields)


def test_variables_are_settings() -> None:
    found = re.findall(r"STARLING_(\w+)=(\S+)", " ".join(all_of("ENV")))
    settings = Settings(**{name.lower(): value for name, value in found})  # as the command line does
    assert settings.host == "0.0.0.0"
    assert last("EXPOSE") == str(settings.port)


@contextmanager
def answering(status: int, *, https: bool) -> Iterator[tuple[int, list[str]]]:
    """A server that gives every request `status`: its port, and the paths asked for."""
    asked: list[str] = []

    class Handler(QuietHandler):
        def get(self) -> None:
            asked.append(self.path)
            self.answer(status)

    listener = HTTPServer(("127.0.0.1", 0), Handler)
    if https:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))
        listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    with running(listener) as server:
        yield server.server_port, asked


@pytest.mark.parametrize(
    ("status", "healthy", "given"),
    [
        (200, True, {}),
        (503, False, {}),
        (200, True, {"TLS_CERT": str(CERTIFICATE)}),
        (503, False, {"TLS_CERT": str(CERTIFICATE)}),
        (200, True, {"TLS_CERT": "", "HOST": "127.0.0.1"}),  # empty: as not given
    ],
)
def test_health_check_asks_for_liveness(status: int, healthy: bool, given: dict[str, str]) -> None:
    """As the server speaks, and not by the proxy that Docker gives to containers."""
    program, *arguments = json.loads(last("HEALTHCHECK").partition(" CMD ")[2])
    assert program == "python"
    variables = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    with answering(status, https=bool(given.get("TLS_CERT"))) as (port, asked):
        variables |= {f"STARLING_{name}": value for name, value in {"HOST": "0.0.0.0", "PORT": port, **given}.items()}
        done = ended(sys.executable, *arguments, env={name: str(value) for name, value in variables.items()})
    assert (done.returncode == 0) is healthy
    assert asked == [LIVE]
