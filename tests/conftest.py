"""The option --core, native threads as in a server, and a garbage collector that leaves alone what stays."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
import tiers

from app import process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--core",
        action="store_true",
        help="a few examples of everything and no test marked full, for tests/scheduler and tests/simulator",
    )


def pytest_configure(config: pytest.Config) -> None:
    tiers.core = config.getoption("core")
    with suppress(ModuleNotFoundError):  # the tests of a GPU run without it, too
        from hypothesis import settings

        # Examples of a test that says no number; and no machine is too slow for them.
        settings.register_profile("suite", max_examples=40, deadline=None)
        settings.load_profile("suite")
    # As in a server. Threads that spin while they wait cost more than the work where several processes share the cores.
    process.quiet_native_libraries()
    gc.disable()
    # A shell starts what it puts into the background with SIGINT ignored, and children inherit that: the programs that
    # tests interrupt would run on for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the core tier one in six cases of each test, beginning with the first."""
    if not tiers.core:
        return
    cases: Counter[str] = Counter()
    chosen, others = [], []
    for item in items:
        function = item.nodeid.split("[")[0]
        in_core = cases[function] % 6 == 0 and item.get_closest_marker("full") is None
        (chosen if in_core else others).append(item)
        cases[function] += 1
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_collection_finish() -> None:
    """Modules, tests and fixtures stay for ever: to walk them again and again took a fifth of the core tier's time."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Logging is the process's: put it back."""
    names = [None, "starling", "uvicorn", "starling.access", "python_multipart", "opentelemetry.trace"]
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    handlers = list(logging.getLogger().handlers)
    hooks = threading.excepthook, sys.unraisablehook
    yield
    threading.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(False)
    for logger, level in before:
        logger.setLevel(level)
    logging.getLogger().handlers[:] = handlers
