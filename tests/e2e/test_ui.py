"""The live page in a real browser: it shows what the server does, to a keyboard alone and on a small screen too.

With a key it is in test_docs.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_decoders

from .browser import Visit, api
from .conftest import Keeper
from .server import DEMO, Server

KEY = "sesame"


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Of the server: it has a model that writes, and an admin key."""
    writer = tmp_path_factory.mktemp("writer")
    tiny_decoders.save(writer, "gpt2")
    places = {"digits": DEMO / "digits", "echo": DEMO / "echo", "writer": writer}
    named = [word for name, path in places.items() for word in ("--model", f"{name}={path}")]
    return (*named, "--threads", "1", "--drain-grace-s", "0", "--admin-key", KEY)


@pytest.fixture
def ui(keeper: Keeper, flags: tuple[str, ...]) -> Server:
    return keeper.kept(("broken", "words"), *flags)


@pytest.fixture
def run(browse: Callable[..., None], ui: Server) -> Callable[..., None]:
    def running(look: Callable[[Visit], None], **options: Any) -> None:
        def looking(visit: Visit) -> None:
            api.expect(visit.page.locator("#link")).to_have_text("live")
            api.expect(visit.page.locator("#models tbody tr").first).to_be_visible()
            look(visit)
            assert visit.asked == {ui.host}, "a request left for another host"
            assert not any(KEY in url for url in visit.urls)

        browse(looking, f"http://{ui.host}/ui", **options)

    return running


def test_a_page_that_watches_does_not_hold_up_the_end(start: Callable[..., Server]) -> None:
    server = start(flags=("--watch",))
    with server.socket() as stream:
        stream.sendall(b"GET /ui/events HTTP/1.1\r\nHost: x\r\n\r\n")
        told = stream.recv(1 << 16)
        server.tell()
        while chunk := stream.recv(1 << 16):
            told += chunk
    assert server.ended() == 0
    assert told.count(b"event: hello") == told.count(b"event: bye") == 1
    assert told.endswith(b"0\r\n\r\n")


def test_models_and_the_machine_are_shown(run: Callable[..., None]) -> None:
    """With why one is not ready."""

    def look(visit: Visit) -> None:
        page, table = visit.page, visit.page.locator("#models")
        for name in ("broken", "digits", "echo"):
            api.expect(table.get_by_role("button", name=name)).to_be_visible()
        api.expect(table).to_contain_text("unavailable")
        api.expect(table).to_contain_text("expected one of BOOL, UINT8")
        api.expect(page.locator("#status")).to_contain_text("not ready: broken")
        api.expect(page.locator("#rate canvas")).to_be_visible()
        cores = re.compile(r"^cores [\d.]+, at most .*memory \d+ MiB")
        api.expect(page.locator("#machine [role=img]")).to_have_attribute("aria-label", cores)
        api.expect(page.locator("#t-memory")).to_have_text(re.compile(r"^\d+ MiB$"))

    run(look)


def test_a_request_is_sent_and_its_batches_appear(run: Callable[..., None], ui: Server) -> None:
    """A mistake shows the server's own message."""

    def look(visit: Visit) -> None:
        page = visit.page
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
        page.locator("#try-count").fill("1")
        body = '{"inputs": [{"name": "<img src=x onerror=alert(1)>"}]}'
        page.locator("#try-body").fill(body)
        page.locator("#try-send").click()
        error = ui.post("/v2/models/echo/infer", body.encode()).error
        api.expect(page.locator("#answer-status")).to_have_text(f"400: {error}")
        api.expect(page.locator("#errors tbody tr").first).to_contain_text(f"echobad_request{error}")
        assert page.locator("#answer-status img").count() == 0

    run(look)


#: What the page computes, asked of its own modules: [name, what it gives, what it should].
COMPUTED = """async () => {
  const { State, Track, parts, quantile } = await import('./ui/state.js');
  const { split } = await import('./ui/stream.js');
  const { ms, when } = await import('./ui/format.js');
  const { expanded, pretty, readable } = await import('./ui/trial.js');
  const filled = (datatype, fill) => {
    const tensor = { name: 'x', shape: [1, 2], datatype, data: { fill } };
    const [, array] = expanded(JSON.stringify({ inputs: [tensor] }));
    return array ? Array.from(array, value => typeof value === 'bigint' ? String(value) : value) : null;
  };
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
    ['fills', [['UINT8', 2], ['BOOL', true], ['INT64', -1], ['FP32', 0.1], ['FP64', 0.1]].map(one => filled(...one)),
      [[2, 2], [1, 1], ['-1', '-1'], [Math.fround(0.1), Math.fround(0.1)], [0.1, 0.1]]],
    ['no such values',
      [['UINT8', 300], ['UINT8', 1.5], ['INT64', 1.5], ['BYTES', 'a'], ['FP32', 'a']].map(one => filled(...one)),
      [null, null, null, null, null]],
    ['a list beside it, and a parameter of that name',
      expanded('{"parameters": {"fill": 3}, "inputs": [{"data": [9007199254740993]},'
        + ' {"shape": [2], "datatype": "INT16", "data": {"fill": 1}}]}')[0],
      '{"parameters": {"fill": 3}, "inputs": [{"data": [9007199254740993]},'
        + ' {"shape": [2], "datatype": "INT16", "parameters": {"binary_data_size": 4}}]}'],
    ['a long text', pretty({ b64: 'x'.repeat(99) }), `{\\n  "b64": "${'x'.repeat(99)}"\\n}`],
    ['what a number cannot hold', readable('[9007199254740993]'), '[9007199254740993]'],
    ['microseconds', [0.0042, 0.42, 0].map(ms), ['0.004 ms', '0.42 ms', '0.00 ms']],
    ['a time of another day', [Date.now() / 1e3, 0].map(at => when(at).length > 8), [false, true]],
    ['an answer', ['[1.0,0.1234567890123456]', 'no JSON'].map(readable), ['[1, 0.1234567890123456]', 'no JSON']],
    ['what is typed', expanded('{"fill"'), ['{"fill"']],
  ];
}"""


def test_what_the_page_computes(run: Callable[..., None]) -> None:
    def look(visit: Visit) -> None:
        for name, found, expected in visit.page.evaluate(COMPUTED):
            assert found == expected, name

    run(look)


def test_models_are_unloaded_and_loaded_with_the_admin_key(run: Callable[..., None]) -> None:
    def look(visit: Visit) -> None:
        page, note = visit.page, visit.page.locator("#control-note")
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

    run(look)


def test_files_and_texts_are_sent_to_models_that_read_them(run: Callable[..., None], ui: Server) -> None:
    """A text is shown while it is written."""

    def look(visit: Visit) -> None:
        page = visit.page
        send, answer = page.locator("#try-send"), page.locator("#answer-body")
        page.locator("#try-model").select_option(label="digits : 1")
        api.expect(page.locator("#try-way")).to_have_value("file")
        send.click()
        api.expect(page.locator("#answer-status")).to_have_text("Choose a file first.")
        page.locator("#try-upload").set_input_files(str(next(Path(DEMO, "digits", "samples").glob("3.*"))))
        send.click()
        api.expect(answer).to_contain_text('"label": 3')
        page.locator("#try-model").select_option(label="words : 1")
        page.locator("#try-text").fill("hey")
        send.click()
        api.expect(answer).to_contain_text('"HEY"')
        assert visit.urls[-1] == f"http://{ui.host}/predict/words/versions/1"
        page.locator("#try-way").select_option("file")
        page.locator("#try-upload").set_input_files([])
        send.click()
        api.expect(answer).to_be_hidden()
        page.locator("#try-model").select_option(label="writer : 1")
        page.locator("#try-text").fill("The ferry")
        send.click()
        api.expect(page.locator("#answer-status")).to_have_text(re.compile(r"^20 tokens in \S+ \S+, the first after "))
        told = ui.post("/v2/models/writer/generate", {"text_input": "The ferry"}).json()
        assert answer.text_content() == told["text_output"]
        page.locator("#try-way").select_option("file")
        page.locator("#try-upload").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"A miller"})
        send.click()
        api.expect(answer).to_contain_text("generated_text")
        told = ui.post("/predict/writer", b"A miller", {"Content-Type": "text/plain"}).json()
        assert json.loads(answer.text_content() or "") == told

    run(look)


def test_it_works_by_the_keyboard_alone(run: Callable[..., None]) -> None:
    def tab_to(visit: Visit, selector: str) -> None:
        """What has the focus must show it."""
        for _ in range(40):
            visit.press("Tab")
            if visit.page.evaluate("selector => document.activeElement.matches(selector)", selector):
                assert visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"{selector} was not reached by the keyboard")

    def look(visit: Visit) -> None:
        page = visit.page
        visit.press("Tab")
        api.expect(page.locator(".skip")).to_be_focused()
        tab_to(visit, "#pause")
        visit.press("Enter")
        api.expect(page.locator("#link")).to_have_text("paused")
        visit.press("Enter")
        tab_to(visit, "#models button[data-key^=digits]")
        visit.press("Space")
        api.expect(page.locator("#rate-title")).to_have_text("Requests · digits")
        tab_to(visit, "#models button[data-key^=echo]")
        visit.press("Enter")
        page.wait_for_function("document.activeElement.dataset.key?.startsWith('echo')")
        tab_to(visit, "#batches summary")
        visit.press("Enter")
        api.expect(page.locator("#batches table")).to_be_visible()
        tab_to(visit, "#try-send")
        visit.press("Enter")
        api.expect(page.locator("#answer-status")).to_contain_text("200 in")

    run(look)


def test_a_page_that_is_not_connected_does_not_say_that_the_server_is_ready(run: Callable[..., None]) -> None:
    def look(visit: Visit) -> None:
        page, place = visit.page, "**/ui/events"
        page.route(place, lambda route: route.fulfill(status=429, json={"error": "16 pages watch already"}))
        page.locator("#pause").click()
        page.locator("#pause").click()
        api.expect(page.locator("#link")).to_have_text("offline: 16 pages watch already")
        api.expect(page.locator("#status")).to_have_text("unknown")
        page.unroute(place)
        api.expect(page.locator("#link")).to_have_text("live")
        api.expect(page.locator("#status")).to_contain_text("ready")

    run(look)


def test_a_narrow_screen_does_not_scroll_sideways(run: Callable[..., None], ui: Server) -> None:
    image = {"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}
    for _ in range(20):  # what batches take is known then, and a table is solved
        assert ui.post("/v2/models/digits/infer", {"inputs": [image]}).status == 200

    def look(visit: Visit) -> None:
        page = visit.page
        for opened in ("#batches", "#curve-table", "#latency-table", "#choice-table"):
            page.locator(f"{opened} summary").click()
        api.expect(page.locator("#choice-table tbody tr")).not_to_have_count(0)
        page.locator("#try-model").select_option(label="echo : 1")
        page.locator("#try-send").click()
        api.expect(page.locator("#answer-body")).to_be_visible()
        page.evaluate("document.getElementById('control-note').textContent = 'why it was not loaded '.repeat(9)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert page.evaluate("[...document.querySelectorAll('.state')].every(one => one.getClientRects().length === 1)")
        widths = page.evaluate(
            "[...document.querySelectorAll('.card')].map(card => card.scrollWidth - card.clientWidth)"
        )
        assert max(widths) <= 0
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground))) < 64

    run(look, viewport={"width": 320, "height": 800}, color_scheme="dark")  # 1280 pixels enlarged fourfold, too
