"""What people see of a server first: its page, its document, the request to try; behind a prefix, from other origins.

One server has all of it: a key, a prefix, and an origin that may call. The browser reaches no host but this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from .conftest import Keeper
from .server import DEMO, PATIENCE_S, Server

MODELS = ("averaged", "frames", "kinds", "labelled", "scaled", "several", "tokens", "wide", "words")
KEY = {"X-API-Key": "sesame"}
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


class Page(BaseHTTPRequestHandler):
    """A page of another origin."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>shop</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """The address of a page that may call the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as site:
        thread = threading.Thread(target=site.serve_forever, name="shop")
        thread.start()
        try:
            yield f"http://localhost:{site.server_address[1]}"
        finally:
            site.shutdown()
            thread.join(PATIENCE_S)


@pytest.fixture
def server(keeper: Keeper, shop: str) -> Server:
    models = ("--model", f"digits={DEMO / 'digits'}", "--model", f"echo={DEMO / 'echo'}")
    front = ("--api-key", "sesame", "--model-control", "--root-path", "/models/", "--cors-origins", shop)
    return keeper.kept(MODELS, *models, *front)


def test_every_example_works_when_it_is_sent(server: Server) -> None:
    document = server.get("/openapi.json").json()
    assert document["servers"] == [{"url": "/models"}]
    tried = set()
    for path, methods in document["paths"].items():
        operation = methods.get("post", {})
        media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if operation.get("tags", [None])[0] not in {*MODELS, "digits", "echo"}:
            continue
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        for name, example in media["examples"].items():
            answer = server.post(f"/models{path}", example["value"], KEY)
            assert answer.status == 200, (path, name, answer.body)
            if len(answer.body) < 10_000:  # the validator takes seconds for more
                Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
        tried.add(operation["tags"][0])
    assert tried == {*MODELS, "digits", "echo"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_request_to_try_works(server: Server) -> None:
    line = server.line(r"^try     (.*)").group(1)
    assert "sesame" not in line
    ran = subprocess.run(
        [*("sh", "-c"), f"{line} -s -w ' %{{http_code}}'"], capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, "STARLING_API_KEY": "sesame"}, check=True,
    )  # fmt: skip
    assert ran.stdout.endswith(" 200"), ran


# in a browser

in_a_browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """A page of a browser that knows no host but this one. What it asks for is in `page.asked`."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
        opened = browser.new_page()
        opened.set_default_timeout(PATIENCE_S * 1000)
        opened.asked, opened.wrong = [], []
        opened.on("request", lambda request: opened.asked.append(request.url))
        opened.on("pageerror", lambda error: opened.wrong.append(str(error)))
        opened.on("requestfailed", lambda request: opened.wrong.append(request.url))
        try:
            yield opened
        finally:
            browser.close()


@in_a_browser
def test_the_page_in_a_browser(server: Server, page: Any) -> None:
    page.goto(f"http://{server.host}/models/docs")
    operation = page.locator(".opblock", has_text="/predict/echo").first
    operation.wait_for()
    assert page.locator(".opblock").count() == len(server.get("/openapi.json").json()["paths"])  # one operation each
    operation.locator(".opblock-summary-control").click()
    send = operation.locator("button.execute")
    status = operation.locator(".live-responses-table .response .response-col_status")
    send.click()
    status.wait_for()
    assert status.inner_text().startswith("401")

    page.locator("button.authorize.unlocked").first.click()
    page.locator(".auth-container input").first.fill("sesame")
    page.locator(".auth-btn-wrapper button.authorize").first.click()
    page.locator(".auth-btn-wrapper button.btn-done").first.click()
    send.click()
    page.locator(".live-responses-table .response-col_status", has_text="200").first.wait_for()
    shown = operation.locator(".live-responses-table .response-col_description .highlight-code").first.inner_text()
    assert json.loads(shown.removeprefix("Download")) == {"y": [1, 1, 1, 1]}
    assert page.wrong == []
    assert {url.split("/")[2] for url in page.asked if not url.startswith("data:")} == {server.host}
    assert page.asked[-1].startswith(f"http://{server.host}/models/predict/echo")


_CALL = """async ([url, key, body]) => {
  const answer = await fetch(url, {method: "POST", headers: {"Content-Type": "application/json", ...key}, body});
  return [answer.status, await answer.json(), answer.headers.get("x-request-id")];
}"""


@in_a_browser
def test_a_page_of_another_origin(server: Server, page: Any, shop: str) -> None:
    """A browser asks first, and then lets the page read answers and errors alike; those of others read nothing."""
    page.goto(shop)
    url = f"http://{server.host}/models/predict/echo"
    assert page.evaluate(_CALL, [url, KEY, "[1, 2, 3, 4]"])[:2] == [200, {"y": [1, 2, 3, 4]}]
    status, body, request_id = page.evaluate(_CALL, [url, KEY, "[1]"])
    assert (status, list(body), bool(request_id)) == (400, ["error"], True)
    assert page.evaluate(_CALL, [url, {}, "[1, 2, 3, 4]"])[0] == 401
    assert page.evaluate(_CALL, [f"http://{server.host}/nowhere", KEY, "1"])[0] == 404
    page.goto(shop.replace("localhost", "127.0.0.1"))
    with pytest.raises(Exception, match="Failed to fetch"):
        page.evaluate(_CALL, [url, KEY, "[1, 2, 3, 4]"])
