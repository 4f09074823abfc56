"""An installed Chromium, and a page of it that notes what goes wrong, and every host that it asks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_MS = 20_000


class Visit:
    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.faults: list[str] = []
        self.urls: list[str] = []
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(PATIENCE_MS)
        api.expect.set_options(timeout=PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._told)
        self.page.on("request", lambda request: self.urls.append(request.url))
        self.page.goto(url)

    def _told(self, message: Any) -> None:
        """A refused request is an error of the console, too; it is one that the tests make."""
        if message.type in {"error", "warning"} and "the server responded with a status of 4" not in message.text:
            self.faults.append(message.text)

    @property
    def asked(self) -> set[str]:
        return {urlsplit(url).netloc for url in self.urls if not url.startswith("data:")}

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


Look = Callable[[Visit], None]


@contextmanager
def browsing() -> Iterator[Callable[..., None]]:
    """A function: (look, url, ...) calls look(visit) with a page that must stay without faults.

    On a thread of its own: Playwright runs a loop, and keeps it, where the rest of the suite has loops too. The browser
    knows no host but this machine.
    """
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path")
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"

    def looking(look: Look, url: str, options: dict[str, Any]) -> None:
        visit = Visit(browser, url, **options)
        try:
            look(visit)
        finally:
            visit.page.close()
        assert visit.faults == []

    with ThreadPoolExecutor(1, "browser") as thread:
        playwright = thread.submit(lambda: api.sync_playwright().start()).result()
        launch = playwright.chromium.launch
        try:
            browser = thread.submit(launch, executable_path=path, args=["--no-sandbox", rules]).result()
            yield lambda look, url, **options: thread.submit(looking, look, url, options).result()
            thread.submit(browser.close).result()
        finally:
            thread.submit(playwright.stop).result()
