"""The live page in a real browser: it shows what the server does, to a keyboard alone and on a small screen too."""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import tiny_decoders

from .conftest import Keeper
from .server import DEMO, PATIENCE_S, Server
from .test_recurrent import GENERATE, LINES

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
KEY = "sesame"
PATIENCE_MS = 20_000
MODELS = ("--model", f"digits={DEMO / 'digits'}", "--model", f"echo={DEMO / 'echo'}", "--drain-grace-s", "0")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """On a thread of its own: Playwright runs a loop, and keeps it, where the rest of the suite has loops too."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with ThreadPoolExecutor(1, "browser") as thread:
        playwright = thread.submit(lambda: api.sync_playwright().start()).result()
        try:
            opened = thread.submit(playwright.chromium.launch, executable_path=path, args=["--no-sandbox"]).result()
            yield thread, opened
            thread.submit(opened.close).result()
        finally:
            thread.submit(playwright.stop).result()


class Visit:
    """A page of the browser, with what went wrong on it, and every host that it asked."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        self.server = server
        self.faults: list[str] = []
        self.asked: set[str] = set()
        self.urls: list[str] = []
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(PATIENCE_MS)
        api.expect.set_options(timeout=PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._told)
        self.page.on("request", self._requested)
        self.page.goto(f"http://{server.host}/ui")

    def _told(self, message: Any) -> None:
        """A refused request is an error of the console, too; it is one that the tests make."""
        if message.type in {"error", "warning"} and "the server responded with a status of 4" not in message.text:
            self.faults.append(message.text)

    def _requested(self, request: Any) -> None:
        self.urls.append(request.url)
        self.asked.add(urlsplit(request.url).netloc)

    def live(self) -> None:
        api.expect(self.page.locator("#link")).to_have_text("live")
        api.expect(self.page.locator("#models tbody tr").first).to_be_visible()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, selector: str, most: int = 40) -> None:
        """By the Tab key alone, and what has the focus must show it."""
        for _ in range(most):
            self.press("Tab")
            if self.page.evaluate("selector => document.activeElement.matches(selector)", selector):
                assert self.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"{selector} was not reached by the keyboard")

    def assert_clean(self) -> None:
        assert self.faults == []
        assert self.asked == {self.server.host}, "a request left for another host"
        assert not any(KEY in url for url in self.urls)


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Of the server of most tests: it has models that write, and an admin key."""
    writer = tmp_path_factory.mktemp("writer")
    tiny_decoders.save(writer, "gpt2")
    more = ("--model", f"writer={writer}", "--model", f"generate={GENERATE}", "--threads", "1")
    return (*MODELS, *more, "--admin-key", KEY)


@pytest.fixture
def run(browser: Any, keeper: Keeper, flags: tuple[str, ...]) -> Any:
    """`run(test, ...)` calls test(visit) on the browser's thread, with a page of the shared server.

    `keyed`: of one that wants a key for everything, and lets nobody load models.
    """
    thread, opened = browser

    def on_thread(test: Any, server: Server, options: dict[str, Any]) -> None:
        visit = Visit(opened, server, **options)
        try:
            test(visit)
        finally:
            visit.page.close()
        visit.assert_clean()

    def running(test: Any, *, keyed: bool = False, **options: Any) -> None:
        server = keeper.kept(("broken", "words"), *((*MODELS, "--api-key", KEY) if keyed else flags))
        thread.submit(on_thread, test, server, options).result()

    return running


def test_a_page_that_watches_does_not_hold_up_the_end(start: Callable[..., Server]) -> None:
    server = start(flags=("--allow-empty",))
    with socket.create_connection(server.host.split(":"), timeout=PATIENCE_S) as stream:
        stream.sendall(b"GET /ui/events HTTP/1.1\r\nHost: x\r\n\r\n")
        told = stream.recv(1 << 16)
        server.tell()
        while chunk := stream.recv(1 << 16):
            told += chunk
    assert server.ended() == 0
    assert told.count(b"event: hello") == told.count(b"event: bye") == 1
    assert told.endswith(b"0\r\n\r\n")


def test_models_are_shown_with_why_one_is_not_ready(run: Any) -> None:
    def look(visit: Visit) -> None:
        visit.live()
        table = visit.page.locator("#models")
        for name in ("broken", "digits", "echo"):
            api.expect(table.get_by_role("button", name=name)).to_be_visible()
        api.expect(table).to_contain_text("unavailable")
        api.expect(table).to_contain_text("expected one of BOOL, UINT8")
        api.expect(visit.page.locator("#status")).to_contain_text("not ready: broken")
        api.expect(visit.page.locator("#rate canvas")).to_be_visible()

    run(look)


def test_a_request_is_sent_and_its_batches_appear(run: Any) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        visit.live()
        page.locator("#models").get_by_role("button", name="echo").click()
        api.expect(page.locator("#try-way")).to_have_value("values")
        api.expect(page.locator("#try-body")).to_have_value(re.compile(r'"shape": \[1, 4\]'))
        page.locator("#try-count").fill("8")
        page.locator("#batches summary").click()
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-status")).to_have_text(re.compile(r"^8 answers in .*, in batches of"))
        api.expect(page.locator("#answer-body")).to_contain_text('"model_name": "echo"')
        row = page.locator("#batches tbody tr").first
        api.expect(row).to_contain_text("echo")
        api.expect(row).to_contain_text("real")
        api.expect(page.locator("#line [role=img]")).to_have_attribute("aria-label", re.compile(r"^\d+ batch"))
        api.expect(page.locator("#parts tbody")).to_contain_text("queue and hand-over")
        api.expect(page.locator("#t-p50")).to_have_text(re.compile(r"^[\d.]+ m?s$"))

    run(look)


def test_a_mistake_shows_the_servers_own_message(run: Any) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        visit.live()
        page.locator("#try-model").select_option(label="echo : 1")
        for body in ("{", '{"inputs": [{"name": "<img src=x onerror=alert(1)>"}]}'):
            page.locator("#try-body").fill(body)
            page.locator("#try-send").click()
            answer = visit.server.post("/v2/models/echo/infer", body.encode())
            api.expect(page.locator("#answer-status")).to_have_text(f"400: {answer.error}")
            row = page.locator("#errors tbody tr").first
            api.expect(row).to_contain_text(f"echobad_request{answer.error}")
        assert page.locator("#answer-status img").count() == 0

    run(look)


#: What the page computes, asked of its own modules: [name, what it gives, what it should].
COMPUTED = """async () => {
  const { State, Track, parts, quantile } = await import('./ui/state.js');
  const { split } = await import('./ui/stream.js');
  const { expanded, pretty } = await import('./ui/trial.js');
  const one = (program, ok, calls) => ({
    name: 'a', version: '1', program, outcomes: { realtime: { ok, queue_full: 1 }, best_effort: {} },
    waiting: { realtime: 2, best_effort: 1 },
    latency: [ok, 0], calls, queue: calls, compute: [0, 0, 0], rows: ok, executions: ok, formed: { idle: ok },
  });
  const track = new Track();
  track.add(1, one(0, 0, [0, 0]));
  track.add(2, one(0, 8, [8, 16e6]));
  const counted = [track.rate(), track.waiting(), track.window().rows, track.window().formed.idle];
  const means = parts({ calls: [2, 20e6], queue: [2, 4e6], compute: [1e6, 6e6, 1e6] }).map(([, , ms]) => ms);
  track.add(3, one(1, 2, [2, 4e6]));
  const state = new State();
  const tick = (at, cpu, models = [], batches = []) => state.tick(
    { at: 1e6 * at, not_ready: null, busy_s: [0], machine: [cpu, 64, 0], errors: [], models, batches });
  const past = (...at) => state.past({
    at: at.map((s) => 1e6 * s), process: at.map(() => [1, 32, 0, 0]), errors: [],
    models: [{ name: 'a', version: '1', samples: [[7, 0, 5, 0]] }],
  });
  state.hello({ started: 1, batch_fields: ['began', 'took', 'batches'] });
  past(10, 20);
  tick(25, 5, [one(0, 0, [0, 0])], [[24e6, 5e5, 3]]);
  past(20, 30);
  tick(30.5, 6, [one(0, 4, [0, 0])]);
  tick(31, 7, [one(0, 4, [0, 0])]);
  return [
    ['half of one bucket', quantile([0, 4, 0], [1, 3], 0.5), 2],
    ['beyond the last bound', quantile([0, 0, 1], [1, 3], 0.99), 3],
    ['no call', quantile([0, 0], [1], 0.5), null],
    ['rates and sums', counted, [8, 3, 8, 8]],
    ['parts add up', means, [2, 0.5, 3, 0.5, 4]],
    ['no call has no parts', parts({ calls: [0, 0], queue: [0, 0], compute: [0, 0, 0] }), []],
    ['a new program is counted anew', track.window().rows, 0],
    ['what was before is filled in', state.tracks.get('a\\n1').series.columns[0], [20, 30, 31]],
    ['and is that of the server', state.tracks.get('a\\n1').series.columns[3], [5, 5, 2]],
    ['cores', state.machine.columns[1], [1, 1, 1, 2]],
    ['times without messages', state.unseen, [[0, 25], [25, 30.5]]],
    ['batches have ends', state.batches[0].end, 24.5],
    ['events', split('event: a\\ndata: {}\\n\\nevent: b\\nda'), [[['a', '{}']], 'event: b\\nda']],
    ['fills', JSON.parse(expanded('{"inputs": [{"shape": [1, 3], "data": {"fill": 2}}]}')).inputs[0].data, [2, 2, 2]],
    ['a long text', pretty({ b64: 'x'.repeat(99) }), `{\\n  "b64": "${'x'.repeat(99)}"\\n}`],
    ['what is typed', expanded('{"fill"'), '{"fill"'],
  ];
}"""


def test_what_the_page_computes(run: Any) -> None:
    def look(visit: Visit) -> None:
        for name, found, expected in visit.page.evaluate(COMPUTED):
            assert found == expected, name

    run(look)


def test_models_are_unloaded_and_loaded_with_the_admin_key(run: Any) -> None:
    def look(visit: Visit) -> None:
        page, note = visit.page, visit.page.locator("#control-note")
        visit.live()
        page.on("dialog", lambda dialog: dialog.accept())
        page.locator("#models").get_by_role("button", name="echo").click()
        page.get_by_role("button", name="Unload echo").press("Enter")
        api.expect(page.locator("#key-title")).to_have_text("Loading and unloading needs the admin key")
        page.keyboard.type(KEY)
        visit.press("Enter")
        api.expect(note).to_have_text("echo: unloaded")
        api.expect(page.get_by_role("button", name="Unload echo")).to_be_disabled()
        page.get_by_role("button", name="Load echo", exact=True).press("Enter")
        api.expect(note).to_have_text("echo: loaded")
        page.locator("#models").get_by_role("button", name="broken").click()
        page.get_by_role("button", name="Load broken", exact=True).click()
        api.expect(note).to_contain_text("expected one of BOOL, UINT8")

    run(look)


def test_cpu_and_memory_are_shown(run: Any) -> None:
    def look(visit: Visit) -> None:
        visit.live()
        page, cpu = visit.page, visit.page.locator("#machine [role=img]")
        api.expect(cpu).to_have_attribute("aria-label", re.compile(r"^cores [\d.]+, at most .*memory \d+ MiB"))
        api.expect(page.locator("#t-memory")).to_have_text(re.compile(r"^\d+ MiB$"))
        api.expect(page.locator("#t-cpu-note")).to_contain_text("core")

    run(look)


def test_files_and_texts_are_sent_to_models_that_read_them(run: Any) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        visit.live()
        page.locator("#try-model").select_option(label="digits : 1")
        api.expect(page.locator("#try-way")).to_have_value("file")
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-status")).to_have_text("Choose a file first.")
        page.locator("#try-upload").set_input_files(str(next(Path(DEMO, "digits", "samples").glob("3.*"))))
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-body")).to_contain_text('"label": 3')
        page.locator("#try-model").select_option(label="words : 1")
        api.expect(page.locator("#try-way")).to_have_value("text")
        page.locator("#try-text").fill("hey")
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-body")).to_contain_text('"HEY"')

    run(look)


def test_a_text_is_shown_while_it_is_written(run: Any) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        visit.live()
        page.locator("#try-model").select_option(label="writer : 1")
        page.locator("#try-text").fill("The ferry")
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-status")).to_have_text(re.compile(r"^20 tokens in \S+ \S+, the first after "))
        expected = visit.server.post("/v2/models/writer/generate", {"text_input": "The ferry"}).json()["text_output"]
        assert page.locator("#answer-body").text_content() == expected
        page.locator("#try-text").fill("The ferry " * 20)
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-status")).to_contain_text("400: text_input: expected at most")

    run(look)


def test_what_a_recurrent_model_gives_out_is_shown_step_by_step(run: Any) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        visit.live()
        page.locator("#try-model").select_option(label="digits : 1")
        api.expect(page.locator("#try-way option[value=steps]")).to_be_disabled()
        page.locator("#try-model").select_option(label="generate : 1")
        page.locator("#try-way").select_option("steps")
        tensor = {"name": "prompt", "shape": [2, 9], "datatype": "UINT8", "data": list("".join(LINES).encode())}
        page.locator("#try-body").fill(json.dumps({"inputs": [tensor]}))
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-status")).to_have_text(re.compile(r"^200 in \S+ \S+, the first after "))
        shown = page.locator("#answer-body").text_content().splitlines()
        events = [re.fullmatch(r"row (\d): text \[([\d, ]*)\](, final)?", line).groups() for line in shown]
        for at, line in enumerate(LINES.values()):
            codes = [code for row, part, _ in events if int(row) == at for code in re.findall(r"\d+", part)]
            assert bytes(map(int, codes)).decode() == line + "\n"
        assert [row for row, _, final in events if final] == ["0", "1"]

    run(look)


def test_all_of_it_works_by_the_keyboard_alone(run: Any) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        visit.live()
        visit.press("Tab")
        api.expect(page.locator(".skip")).to_be_focused()
        visit.tab_to("#pause")
        visit.press("Enter")
        api.expect(page.locator("#link")).to_have_text("paused")
        visit.press("Enter")
        visit.live()
        visit.tab_to("#models button[data-key^=digits]")
        visit.press("Space")
        api.expect(page.locator("#rate-title")).to_have_text("Requests · digits")
        visit.tab_to("#models button[data-key^=echo]")
        visit.press("Enter")
        page.wait_for_function("document.activeElement.dataset.key?.startsWith('echo')")
        for name, key, value in (("longest", "ArrowLeft", 120), ("span", "ArrowRight", 30)):
            for _ in range(20):
                visit.press("Tab")
                if page.evaluate("document.activeElement.name") == name:
                    break
            visit.press(key)
            api.expect(page.locator(f"input[name={name}][value='{value}']")).to_be_checked()
        visit.tab_to("#batches summary")
        visit.press("Enter")
        api.expect(page.locator("#batches table")).to_be_visible()
        visit.tab_to("#try-send")
        visit.press("Enter")
        api.expect(page.locator("#answer-status")).to_contain_text("200 in")

    run(look)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_does_not_scroll_sideways(run: Any, scheme: str) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        visit.live()
        page.locator("#batches summary").click()
        for table in ("#curve-table", "#latency-table", "#choice-table"):
            page.locator(f"{table} summary").click()
        api.expect(page.locator("#choice-table tbody tr")).not_to_have_count(0)
        page.locator("#try-model").select_option(label="echo : 1")
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-body")).to_be_visible()
        page.locator("#try-body").fill("{")
        page.locator("#try-send").click()
        api.expect(page.locator("#errors tbody tr").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        widths = page.evaluate(
            "[...document.querySelectorAll('.card')].map(card => card.scrollWidth - card.clientWidth)"
        )
        assert max(widths) <= 0
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", ground))) < 64) == (scheme == "dark")

    run(look, viewport={"width": 400, "height": 800}, color_scheme=scheme)


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(run: Any) -> None:
    def look(visit: Visit) -> None:
        page = visit.page
        dialog = page.locator("#key")
        api.expect(dialog).to_be_visible()
        visit.press("Escape")
        api.expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Enter key").click()
        api.expect(page.locator("#key-value")).to_be_focused()
        page.keyboard.type("wrong")
        visit.press("Enter")
        api.expect(page.locator("#key-why")).to_have_text("the API key is wrong")
        page.keyboard.type(KEY)
        visit.press("Enter")
        visit.live()
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        api.expect(page.locator("#control")).to_be_hidden()
        page.locator("#try-model").select_option(label="echo : 1")
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-status")).to_contain_text("200 in")
        page.reload()
        visit.live()
        page.locator("#forget").click()
        api.expect(dialog).to_be_visible()

    run(look, keyed=True)
