"""What people see of a server first: its pages, its document; behind a prefix and with a key.

One server has all of it. The browser reaches no host but this machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from jsonschema import Draft202012Validator

from .browser import Visit, api
from .conftest import Keeper
from .server import DEMO, Server

MODELS = ("averaged", "frames", "kinds", "labelled", "scaled", "several", "tokens", "wide", "words")
SERVED = {*MODELS, "digits", "echo"}
KEY = {"X-API-Key": "sesame"}


@pytest.fixture
def server(keeper: Keeper) -> Server:
    models = ("--model", f"digits={DEMO / 'digits'}", "--model", f"echo={DEMO / 'echo'}")
    front = ("--api-key", "sesame", "--model-control", "--root-path", "/models/")
    return keeper.kept(MODELS, *models, *front)


def test_every_example_works_when_it_is_sent(server: Server) -> None:
    document = server.get("/openapi.json").json()
    assert document["servers"] == [{"url": "/models"}]
    posts = {path: methods["post"] for path, methods in document["paths"].items() if "post" in methods}
    of_models = {path: operation for path, operation in posts.items() if operation["tags"][0] in SERVED}
    assert {operation["tags"][0] for operation in of_models.values()} == SERVED
    for path, operation in of_models.items():
        media = operation["requestBody"]["content"]["application/json"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        for name, example in media["examples"].items():
            answer = server.post(f"/models{path}", example["value"], KEY)
            assert answer.status == 200, (path, name, answer.body)
            if len(answer.body) < 10_000:  # the validator takes seconds for more
                Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())


def test_the_page_of_the_document(server: Server, browse: Callable[..., None]) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        operation = page.locator(".opblock", has_text="/predict/echo").first
        operation.wait_for()
        assert page.locator(".opblock").count() == len(server.get("/openapi.json").json()["paths"])
        operation.locator(".opblock-summary-control").click()
        page.locator("button.authorize.unlocked").first.click()
        page.locator(".auth-container input").first.fill("sesame")
        page.locator(".auth-btn-wrapper button.authorize").first.click()
        page.locator(".auth-btn-wrapper button.btn-done").first.click()
        operation.locator("button.execute").click()
        page.locator(".live-responses-table .response-col_status", has_text="200").first.wait_for()
        shown = operation.locator(".live-responses-table .response-col_description .highlight-code").first.inner_text()
        assert json.loads(shown.removeprefix("Download")) == {"y": [1, 1, 1, 1]}
        assert visit.asked == {server.host}
        assert visit.urls[-1].startswith(f"http://{server.host}/models/predict/echo")

    browse(look, f"http://{server.host}/models/docs")


def test_the_live_page_asks_for_a_key_and_keeps_it_in_the_tab_alone(server, browse) -> None:
    def look(visit: Visit) -> None:
        page, dialog = visit.page, visit.page.locator("#key")
        api.expect(dialog).to_be_visible()
        visit.press("Escape")
        api.expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Enter key").click()
        api.expect(page.locator("#key-value")).to_be_focused()
        page.keyboard.type("wrong")
        visit.press("Enter")
        api.expect(page.locator("#key-why")).to_have_text("the API key is wrong")
        page.keyboard.type("sesame")
        visit.press("Enter")
        api.expect(page.locator("#link")).to_have_text("live")
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        page.locator("#try-model").select_option(label="echo : 1")
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-status")).to_contain_text("200 in")
        page.reload()
        api.expect(page.locator("#link")).to_have_text("live")
        page.locator("#forget").click()
        api.expect(dialog).to_be_visible()
        assert not any("sesame" in url for url in visit.urls)

    browse(look, f"http://{server.host}/models/ui")
