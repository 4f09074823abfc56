"""What waits: refused when the queue is full, dropped at its deadline or when its client has gone, and not run then."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

from .server import PATIENCE_S, Gate, Server, eventually


def test_a_full_queue(server: Server, gate: Gate, threads: ThreadPoolExecutor) -> None:
    waiting = [threads.submit(server.infer, "narrow", [[n]]) for n in range(3)]
    eventually(lambda: server.waiting("narrow") == 3)
    try:
        # decided before the body is read as one: what cannot be decoded is refused all the same
        for body in (b"{", b'{"inputs": []}', json.dumps({"inputs": [{"name": "x"}]}).encode()):
            answer = server.post("/v2/models/narrow/infer", body)
            assert (answer.status, "queue" in answer.error) == (429, True)
            assert int(answer.headers["retry-after"]) >= 1
        # one route's refusal is the others', too
        assert server.post("/predict/narrow", b"{").status == 429
        assert server.post("/v1/models/narrow:predict", b"{").status == 429
    finally:
        gate.open()
    assert [call.result(PATIENCE_S).json()["outputs"][0]["data"] for call in waiting] == [[0], [1], [2]]
    answer = server.infer("narrow", [[1]] * 4)  # more than the queue can ever hold
    assert (answer.status, "4 rows" in answer.error, "3" in answer.error) == (400, True, True)


def test_more_rows_than_there_is_room_now(server: Server, gate: Gate, threads: ThreadPoolExecutor) -> None:
    waiting = threads.submit(server.infer, "narrow", [[1], [2]])
    eventually(lambda: server.waiting("narrow") == 2)
    try:
        assert server.infer("narrow", [[3], [4]]).status == 429  # all rows or none
        last = threads.submit(server.infer, "narrow", [[5]])
        eventually(lambda: server.waiting("narrow") == 3)
    finally:
        gate.open()
    assert waiting.result(PATIENCE_S).status == last.result(PATIENCE_S).status == 200
    assert server.slots("narrow") == 0


def test_a_deadline_in_the_queue(server: Server, gate: Gate) -> None:
    try:
        answer = server.infer("gate", [[101]], timeout=100_000)
        assert (answer.status, "in the queue" in answer.error) == (504, True)
    finally:
        gate.open()
    assert server.infer("gate", [[102]]).status == 200
    assert 102 in gate.ran()
    assert 101 not in gate.ran()


def test_a_deadline_while_running(server: Server, threads: ThreadPoolExecutor) -> None:
    gate = server.gate
    assert gate is not None
    try:
        answer = server.infer("gate", [[2]], timeout=200_000)  # the gate stays shut
        assert (answer.status, "while it was running" in answer.error) == (504, True)
        gate.wait()
    finally:
        gate.open()
    eventually(lambda: server.slots("gate") == 0)
    assert server.infer("gate", [[103]]).status == 200


def test_a_deadline_that_cannot_be_met(server: Server, gate: Gate) -> None:
    """Predicted at admission from the measured times; 1 us is below any."""
    try:
        answer = server.infer("gate", [[104]], timeout=1)
        assert answer.status in (429, 504)
        assert (answer.status == 429) == ("retry-after" in answer.headers)
    finally:
        gate.open()
    assert 104 not in gate.ran()


def half_open(server: Server, model: str, value: float) -> socket.socket:
    """An inference sent, its answer not waited for."""
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    body = json.dumps({"inputs": [tensor]}).encode()
    host, _, port = server.host.partition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_S)
    connection.sendall(
        b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s"
        % (model.encode(), len(body), body)
    )
    return connection


def test_clients_that_go_while_waiting(server: Server, gate: Gate) -> None:
    used = server.slots("gate")
    try:
        connections = [half_open(server, "gate", 200 + n) for n in range(8)]
        eventually(lambda: server.slots("gate") == used + 8)
        for connection in connections[:6]:
            connection.close()
        eventually(lambda: server.slots("gate") == used + 2)
        assert server.waiting("gate") == 2
    finally:
        gate.open()
    assert [connection.recv(12) for connection in connections[6:]] == [b"HTTP/1.1 200"] * 2
    for connection in connections[6:]:
        connection.close()
    assert sorted(value for value in gate.ran() if 200 <= value < 300) == [206, 207]
    assert (
        server.metric('starling_requests_total{class="realtime",model="gate",outcome="client_gone",version="1"}') == 6
    )


def test_a_client_that_goes_while_running(server: Server) -> None:
    gate = server.gate
    assert gate is not None
    connection = half_open(server, "gate", 2)
    gate.wait()
    connection.close()
    gone = 'starling_requests_total{class="realtime",model="gate",outcome="client_gone",version="1"}'
    before = server.metric(gone)
    gate.open()
    eventually(lambda: server.slots("gate") == 0)
    assert server.metric(gone) - before <= 1
    assert server.infer("gate", [[105]]).status == 200


def test_priority_goes_first(server: Server, gate: Gate, threads: ThreadPoolExecutor) -> None:
    calls = []
    for number in range(8):
        calls.append(threads.submit(server.infer, "gate", [[300 + number]], priority=3 if number < 4 else 1))
        eventually(lambda expected=number + 1: server.waiting("gate") == expected)
    gate.open()
    assert [call.result(PATIENCE_S).status for call in calls] == [200] * 8
    assert [value for value in gate.ran() if 300 <= value < 400] == [304, 305, 306, 307, 300, 301, 302, 303]


def test_a_row_that_fails_fails_alone(server: Server, gate: Gate, threads: ThreadPoolExecutor) -> None:
    retried = 'starling_batches_total{class="realtime",model="marked",reason="retry",version="1",worker="0"}'
    before = server.metric(retried)
    rows = [[n, n] for n in range(1, 8)]
    rows.insert(3, [-1, 0])
    calls = [threads.submit(server.infer, "marked", [row]) for row in rows]
    eventually(lambda: server.waiting("marked") == 8)  # the largest batch: they run together
    gate.open()
    answers = [call.result(PATIENCE_S) for call in calls]
    assert [answer.status for answer in answers] == [200] * 3 + [500] + [200] * 4
    assert [answer.json()["outputs"][0]["data"] for n, answer in enumerate(answers) if n != 3] == rows[:3] + rows[4:]
    assert "a marked row" in answers[3].error
    assert server.metric(retried) > before
    assert server.slots("marked") == 0


def test_a_failed_row_fails_its_call_and_is_named(server: Server) -> None:
    answer = server.infer("marked", [[1, 1], [2, 2], [-1, 0], [3, 3]])
    assert (answer.status, "row 2" in answer.error, "a marked row" in answer.error) == (500, True, True)
    assert server.slots("marked") == 0


def test_a_broken_model_is_not_split_for_ever(server: Server, threads: ThreadPoolExecutor) -> None:
    answers = list(threads.map(lambda _: server.infer("marked", [[-1, -1]] * 8), range(20)))
    assert {answer.status for answer in answers} == {500}
    answers = list(threads.map(lambda n: server.infer("marked", [[n, n]]), range(20)))
    assert {answer.status for answer in answers} == {200}
