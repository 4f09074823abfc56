"""The crowd counts what it is answered and comes back as its kind says; the page tells of every target missed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from experiments.overload import resending, resending_page
from experiments.overload.crowd import Crowd, Job
from loadtest.bench.load import Request
from loadtest.common.paths import LOOPBACK

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\nno"
REQUEST = Request("m", "/predict/m", (), b"{}")


@pytest.mark.parametrize("fresh", [False, True])
def test_a_refused_client_sends_again(fresh: bool) -> None:
    """The server here answers 49 requests, each second one with a refusal, and then closes everything."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        text = resending.text_of(REQUEST, listener.getsockname()[1], fresh=fresh)
        job = Job(listener.getsockname()[1], text, 1, seconds=60, fresh=fresh, warm_s=0)
        crowd = Crowd(job)

        def serve() -> None:
            answered = 0
            while answered < 49:
                client, _ = listener.accept()
                with client, suppress(ConnectionResetError):  # a client that comes anew resets its connection
                    while answered < 49 and client.recv(4096):
                        answered += 1
                        client.sendall(REFUSED if answered % 2 else OK)
            crowd.ends = 0.0

        thread = threading.Thread(target=serve)
        thread.start()
        counted = crowd.run()
        thread.join()
    assert counted.status[200] == 24
    assert counted.status[429] in (24, 25)  # the last may not have come


def figure(**changed: Any) -> dict[str, Any]:
    return {
        "kind": "resends", "fresh": False, "connections": 64, "rate": 0.0, "goodput": 100.0, "refused": 0.0,
        "other": {}, "failed": {}, "left": 0.0, "cores": 1.0, "p50_ms": 1.0, "p99_ms": 2.0, "refused_p50_ms": None,
        "refused_p99_ms": None, "probes": 10, "probe_p50_ms": 1.0, "probe_p99_ms": 2.0, "probe_max_ms": 3.0, **changed,
    }  # fmt: skip


def test_page() -> None:
    figures = [
        figure(), figure(connections=1100, goodput=59.0), figure(connections=2500, probe_p99_ms=501.0),
        figure(fresh=True, goodput=10.0), figure(fresh=True, connections=1100, goodput=6.0, failed={"ECONNRESET": 2}),
        figure(kind="leaves", rate=320.0, left=5.0, p50_ms=None),
    ]  # fmt: skip
    data = {"seconds": 5, "fifty_per_s": 160.0, "models": {"fifty": figures}, "facts": {"cores": "2"}}
    assert [line.split(":")[0] for line in resending_page.missed(data)] == [
        "fifty, 1100 kept connections", "fifty, 2500 kept connections",
    ]  # fmt: skip
    text = resending_page.PAGE.text(data)
    assert "| leaves | 2 | 100 | 0 | 5 | none |" in text
    assert "2 ECONNRESET" in text
    assert text.count("**NO**") == 2
