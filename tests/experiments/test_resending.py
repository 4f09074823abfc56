"""The crowd counts what it is answered and comes back as its kind says; the page tells of every target missed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from experiments.overload import resending
from experiments.overload.crowd import Crowd, Job
from loadtest.common.paths import LOOPBACK
from loadtest.generator.load import PreparedRequest

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\nno"
REQUEST = PreparedRequest("m", "/predict/m", (), b"{}")


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
