"""One server at a time: one that tests share and leave as it was, or one of a test's own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .server import DEMO, PATIENCE_S, Gate, Server

SHARED = (
    "brain", "broken", "gate", "kinds", "labelled", "marked", "narrow", "plus", "scaled", "several", "tokens", "words",
)  # fmt: skip
FLAGS = (
    "--model", f"digits={DEMO / 'digits'}", "--model", f"echo={DEMO / 'echo'}",
    "--max-body-mib", "4", "--max-json-mib", "1", "--body-timeout-s", "1", "--drain-grace-s", "0", "--model-control",
)  # fmt: skip


class Keeper:
    """Starts and ends servers, so that never two run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._kept: Server | None = None
        self._wanted: tuple[tuple[str, ...], ...] = ()
        self._own: Server | None = None

    def shared(self) -> Server:
        """The server of most tests."""
        return self.kept(SHARED, *FLAGS)

    def kept(self, models: tuple[str, ...], *flags: str) -> Server:
        """The server that runs, if it has these models and flags; else a new one. Whoever gets it leaves it idle."""
        if self._kept is None or self._wanted != (models, flags) or self._kept.process.poll() is not None:
            self.close()
            self._kept, self._wanted = Server(self._place(), models, *flags), (models, flags)
        return self._kept

    def start(self, *models: str, flags: tuple[str, ...] = (), fresh: bool = False) -> Server:
        """A server of the caller's own, ended after the test at the latest; `fresh` as in `Server`."""
        self.close()
        self._own = Server(self._place(), models, "--drain-grace-s", "0", *flags, fresh=fresh)
        return self._own

    def end_own(self) -> None:
        if self._own is not None:
            self._own.stop(signal.SIGKILL)  # one that was to end by itself has, unless its test has failed
            self._own = None

    def _place(self) -> Path:
        self._count += 1
        return self._folder / f"repository-{self._count}"

    def close(self) -> None:
        self.end_own()
        if self._kept is not None:
            self._kept.stop(signal.SIGINT)  # which skips a grace
            self._kept = None


@pytest.fixture(scope="session")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    kept = Keeper(tmp_path_factory.mktemp("servers"))
    try:
        yield kept
    finally:
        kept.close()


@pytest.fixture
def server(keeper: Keeper) -> Server:
    """The shared server: idle, and to be left so."""
    return keeper.shared()


@pytest.fixture
def start(keeper: Keeper) -> Iterator[Callable[..., Server]]:
    """Start a server of one's own: `start("gate", flags=("--max-queue", "2"))`."""
    try:
        yield keeper.start
    finally:
        keeper.end_own()


@pytest.fixture(scope="session")
def text_flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    from .texts import save_models  # here: transformers takes seconds to import

    return tuple(save_models(tmp_path_factory.mktemp("texts")))


@pytest.fixture
def texts(keeper: Keeper, text_flags: tuple[str, ...]) -> Server:
    """A server of the models in texts.py: idle, and to be left so."""
    return keeper.kept((), *text_flags)


@pytest.fixture(scope="session")
def browse() -> Iterator[Callable[..., None]]:
    """`browse(look, url, ...)` calls look(visit) with a page, see browser.py."""
    from .browser import browsing

    with browsing() as look:
        yield look


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """For requests that wait while the test goes on."""
    with ThreadPoolExecutor(64) as pool:
        yield pool


@pytest.fixture
def gate(server: Server, threads: ThreadPoolExecutor) -> Iterator[Gate]:
    """Holds the one worker until it is opened; the test must open it."""
    assert server.gate is not None
    held = threads.submit(server.infer, "gate", [[2]])
    server.gate.wait()
    yield server.gate
    assert held.result(PATIENCE_S).status == 200
    assert server.slots("gate") == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the shared server come first and follow one another, so that it is started once for all of them."""
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.e2e)
    shared = [item for item in mine if isinstance(item, pytest.Function) and takes_shared_server(item)]
    items.sort(key=lambda item: item not in shared)


def takes_shared_server(item: pytest.Function) -> bool:
    """Whether its `server` is the one of this file: modules may have their own."""
    return "server" in item.fixturenames and not hasattr(item.module, "server")
