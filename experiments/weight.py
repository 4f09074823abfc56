"""How much code there is, and how much of it one request runs: `python -m experiments.weight`.

First the lines of code by folder: no blank lines, comments or docstrings. Then a server in this process is asked for
the demo model `echo`, as V2 JSON, on one warm connection, and every call of a function in app/ between a request and
its answer is counted, on the event loop and the workers' threads: files, functions, calls, and how often a call is in
another file than the one before it. The figures are those of the median request. `--files` names the files and their
functions, too.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import tokenize
from collections import Counter
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from loadtest.common.page import lines_table
from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import READY_LIMIT_S, READY_PATH, free_port

DEPTHS = {"app": 2, "planner": 1, "tests": 2, "loadtest": 1, "experiments": 1}  # folders that are told apart
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()
#: Sent in one piece with the body: of two pieces the second is sometimes read later, which takes more calls.
REQUEST = (
    b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
WARM, COUNTED = 40, 21
SETTLED_S = 0.05  # after an answer: what the server does for it then is part of the request

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines of a module that hold code: no blank lines, comments or docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
            docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1)) if first else set()
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


class Weight(NamedTuple):
    folder: str
    lines: int
    files: int


def weights(top: Path, depth: int) -> list[Weight]:
    """Of the folders below `top` down to `depth`, with all that is in them, and of the whole."""
    whole = f"{top.name}, all"
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sorted(top.rglob("*.py")):
        folder = "/".join((top.name, *path.relative_to(top).parts[:-1][: depth - 1]))
        for name in [folder, whole] if depth > 1 else [whole]:
            lines[name] += code_lines(path.read_text(encoding="utf-8"))
            files[name] += 1
    return [Weight(name, lines[name], files[name]) for name in sorted(lines)]


class Call(NamedTuple):
    file: str
    function: str


class Calls:
    """Notes the calls of functions in app/ while `on`, on the event loop and the threads of workers.

    Threads that solve tables work for no request.
    """

    def __init__(self) -> None:
        self.on = False
        self.made: list[Call] = []
        self._app = f"{ROOT / 'app'}{os.sep}"

    def install(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        serves = threading.current_thread().name.startswith(("MainThread", "worker"))
        if event == "call" and self.on and serves and frame.f_code.co_filename.startswith(self._app):
            file = frame.f_code.co_filename.removeprefix(self._app)
            self.made.append(Call(file, frame.f_code.co_qualname))

    def take(self) -> list[Call]:
        taken, self.made = self.made, []
        return taken


def ask(port: int, calls: Calls, found: list[list[Call]]) -> None:
    """Send the requests one after another, note the calls of the last ones, and end the server."""
    try:
        connection = ready(port)
        request = REQUEST % (port, len(BODY)) + BODY
        for number in range(WARM + COUNTED):
            calls.on = number >= WARM
            connection.sock.sendall(request)
            response = HTTPResponse(connection.sock, method="POST")
            response.begin()
            assert response.status == 200, response.read()
            response.read()
            time.sleep(SETTLED_S)
            calls.on = False
            found += [calls.take()] if number >= WARM else []
        connection.close()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def ready(port: int) -> HTTPConnection:
    """A connection to the server, once its models are loaded."""
    ends_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < ends_s:
        connection = HTTPConnection(LOOPBACK, port, timeout=10)
        try:
            connection.request("GET", READY_PATH)
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                return connection
        except OSError:
            pass
        connection.close()
        time.sleep(SETTLED_S)
    raise TimeoutError(f"the server was not ready after {READY_LIMIT_S:g} s")


def walk() -> list[Call]:
    """The calls of the median request."""
    port, calls, found = free_port(), Calls(), list[list[Call]]()
    calls.install()
    client = threading.Thread(target=ask, args=(port, calls, found), daemon=True)
    client.start()
    from app.cli.commands import cli

    flags = ["--port", str(port), "--drain-grace-s", "0", "--no-pages", "--profile-budget-s", "0"]
    try:
        with tempfile.TemporaryDirectory() as profiles:  # none of an earlier run
            cli(["serve", *flags, "--profile-dir", profiles], standalone_mode=False)
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    client.join(READY_LIMIT_S)
    return sorted(found, key=len)[len(found) // 2]


def counts(calls: list[Call]) -> dict[str, int]:
    return {
        "files": len({call.file for call in calls}),
        "functions": len(set(calls)),
        "calls": len(calls),
        "changes of file": sum(one.file != other.file for one, other in itertools.pairwise(calls)),
    }


def by_file(calls: list[Call]) -> str:
    """Each file with the calls in it and their functions, in order of the first call."""
    functions: dict[str, list[str]] = {}
    for call in calls:
        functions.setdefault(call.file, []).append(call.function)
    return "\n".join(f"{len(names):4} {file}: {', '.join(dict.fromkeys(names))}" for file, names in functions.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.weight", description=__doc__)
    parser.add_argument("--files", action="store_true", help="name the files and functions that the request runs")
    chosen = parser.parse_args()
    for top, depth in DEPTHS.items():
        print(lines_table([f"{top}/", "code lines", "files"], weights(ROOT / top, depth)), end="\n\n")
    calls = walk()
    print("One warm V2 JSON request: " + ", ".join(f"{count} {name}" for name, count in counts(calls).items()))
    if chosen.files:
        print(by_file(calls))


if __name__ == "__main__":
    main()
