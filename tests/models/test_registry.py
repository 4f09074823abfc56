"""Invariant: a route leads to a version that serves; every version started is stopped once, and never while routed."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading

import pytest
import pytest_asyncio

from app.contract import IndexEntry, Model
from app.errors import BadRequest, ConfigError, NotFound, NotReady
from app.models.description.config import model_info, read_config
from app.models.registry import Registry
from app.models.repository import Repository

from .folders import TOML, write_model
from .hosts import FakeHost


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def repo(tmp_path):
    write_model(tmp_path / "a")
    for version in ("1", "2", "10"):
        write_model(tmp_path / "b" / version)
    return tmp_path


@pytest_asyncio.fixture
async def registry(host, repo):
    async with Registry(host.start, host.stop, Repository(repo), Repository(repo).scan()) as registry:
        yield registry
    assert not host.running


@pytest_asyncio.fixture
async def loaded(registry):
    """The registry, with all models loaded."""
    await registry.load_all()
    return registry


NO_ROW = "no row fits. It replaces no version that works, unless model.toml says allow_untried = true"


def pending(registry):
    return [entry for entry in registry.index() if entry.awaited]


def states(registry):
    return {(entry.name, entry.version): entry.state for entry in registry.index()}


def serial(registry, name, version=None):
    return registry.serving[name, version].serial


@pytest.mark.parametrize("name", ["x" * 300, "x" * 100_000, "x\0y", "../x", ""])
async def test_names_that_no_file_system_takes_are_not_known(registry, name):
    for change in (registry.load, registry.unload):
        with pytest.raises(NotFound, match=r"^Request for unknown model: .* is not found; models: ") as caught:
            await change(name)
        assert len(str(caught.value)) < 300
    with pytest.raises(NotFound):
        registry.serving[name, None]


async def test_before_and_while_loading_everything_is_pending(registry, host):
    assert len(pending(registry)) == 4
    (start,) = host.holding("start b 2")
    loading = asyncio.create_task(registry.load_all())
    await host.until("start b 2")
    assert registry.serving["a", None].info.name == "a"
    assert states(registry)["b", "1"] == "LOADING"
    with pytest.raises(NotReady, match="model 'b' version 10 is loading") as caught:
        registry.serving["b", None]
    assert caught.value.retry_after_s == 2
    start.set()
    await loading
    assert pending(registry) == []


async def test_one_model_that_fails_leaves_the_others_serving(host, repo):
    write_model(repo / "a", "source = 3\n")
    write_model(repo / "leaves", code="import sys\ndef build():\n    sys.exit('no licence')\n")
    async with Registry(host.start, host.stop, Repository(repo), Repository(repo).scan()) as registry:
        await registry.load_all()
        assert "SystemExit: no licence" in pending(registry)[1].reason
        await registry.unload("leaves")
        assert registry.serving["b", None].info.version == "10"
        (entry,) = pending(registry)
        assert (entry.name, entry.state) == ("a", "UNAVAILABLE")
        assert "model.toml: source: expected a string, got 3" in entry.reason
        with pytest.raises(NotReady, match=r"model 'a' version 1 is unavailable: .*model.toml: source"):
            registry.serving["a", None]
        with pytest.raises(BadRequest, match=r"model 'a' cannot be loaded: version 1: .*source: expected"):
            await registry.load("a")
        write_model(repo / "a")
        await registry.load("a")
        assert registry.serving["a", None]
        assert pending(registry) == []


async def test_a_reload_leaves_no_gap(loaded, host):
    before = serial(loaded, "a")
    start, stop = host.holding("start a 1", "stop a 1")
    reload = asyncio.create_task(loaded.load("a"))
    await host.until("start a 1")
    assert serial(loaded, "a") == before
    assert states(loaded)["a", "1"] == "READY"
    start.set()
    await host.until("stop a 1")
    assert serial(loaded, "a") > before
    assert not reload.done()
    stop.set()
    await reload
    assert host.log == ["start a 1", "stop a 1"]


async def test_a_reload_that_fails_keeps_what_serves(loaded, host, repo):
    before = serial(loaded, "b")
    shutil.rmtree(repo / "b" / "1")
    host.fail["start b 10"] = ConfigError("broken now")
    with pytest.raises(BadRequest, match="version 10: broken now"):
        await loaded.load("b")
    assert serial(loaded, "b") == before
    assert loaded.versions("b") == ["1", "2", "10"]
    reasons = {entry.version: (entry.state, entry.reason) for entry in loaded.index() if entry.name == "b"}
    assert reasons["10"] == ("READY", "serves as it was; loading it again failed: broken now")
    assert pending(loaded) == []


@pytest.mark.parametrize("version", ["10", "11"], ids=["reloaded", "new"])
async def test_an_untried_version_replaces_none_that_works_unless_allowed(loaded, host, repo, caplog, version):
    write_model(repo / "b" / version)
    host.untried.add(f"b {version}")
    with pytest.raises(BadRequest, match=f"version {version}: no row fits. It replaces no version that works, unless"):
        await loaded.load("b")
    served = loaded.serving["b", None]
    assert (served.info.version, served.untried) == ("10", None)
    assert host.log.count(f"stop b {version}") == 1
    assert [told for told in caplog.messages if "no row fits" in told] == [f"model b version {version}: {NO_ROW}"]
    write_model(repo / "b" / version, f"allow_untried = true\n{TOML}")
    await loaded.load("b")
    assert states(loaded)["b", version] == "UNTRIED"
    assert loaded.serving["b", None].info.version == version


UNCHECKED = (
    "whether its rows are independent is unchecked, as it raised on every made-up row; "
    'give real rows: [warmup] file = "sample.json" in model.toml'
)


@pytest.mark.parametrize(("row_check", "then"), [("refuse", UNCHECKED), ("off", "")])
async def test_an_untried_version_serves_where_none_works_and_is_ready_once_it_has_answered(
    registry, host, repo, caplog, row_check, then
):
    write_model(repo / "a", f'row_check = "{row_check}"\n{TOML}')
    host.untried.add("a 1")
    await registry.load_all()
    assert registry.index()[0] == IndexEntry("a", "1", "UNTRIED", "no row fits", required=True)
    assert "model a version 1: serves untried: no row fits" in caplog.messages
    before = serial(registry, "a")
    await registry.load("a")
    assert serial(registry, "a") > before
    registry.serving["a", None].untried = None
    assert registry.index()[0] == IndexEntry("a", "1", "READY", then, required=True)
    host.untried.clear()
    await registry.load("a")
    assert registry.index()[0] == IndexEntry("a", "1", "READY", "", required=True)


async def test_a_reload_takes_up_new_versions_and_stops_those_that_are_gone(loaded, host, repo):
    shutil.rmtree(repo / "b" / "10")
    write_model(repo / "b" / "3")
    await loaded.load("b")
    assert loaded.versions("b") == ["1", "2", "3"]
    assert loaded.serving["b", None].info.version == "3"
    with pytest.raises(NotFound, match="versions: 1, 2, 3"):
        loaded.serving["b", "10"]
    assert host.log.count("stop b 10") == 1


async def test_a_model_that_vanishes_serves_until_it_is_unloaded(loaded, repo):
    shutil.rmtree(repo / "a")
    with pytest.raises(NotFound, match="model 'a' is no longer in the repository"):
        await loaded.load("a")
    assert loaded.serving["a", None]
    await loaded.unload("a")
    with pytest.raises(NotReady):
        loaded.serving["a", None]


async def test_a_model_that_vanishes_before_it_is_loaded(registry, repo):
    shutil.rmtree(repo / "a")
    await registry.load_all()
    (entry,) = pending(registry)
    assert (entry.name, entry.state, entry.reason) == ("a", "UNAVAILABLE", "no longer in the repository")


async def test_unload_drains_and_is_not_pending(loaded, host):
    (stop,) = host.holding("stop b 1")
    unload = asyncio.create_task(loaded.unload("b"))
    await host.until("stop b 1")
    assert set(states(loaded).values()) == {"READY", "UNLOADING"}
    with pytest.raises(NotReady, match="model 'b' version 10 is unloading"):
        loaded.serving["b", None]
    assert loaded.versions("b") == []
    stop.set()
    await unload
    with pytest.raises(NotReady, match="model 'b' version 2 is unavailable: unloaded") as caught:
        loaded.serving["b", "2"]
    assert caught.value.retry_after_s == 30
    assert pending(loaded) == []
    await loaded.unload("b")
    await loaded.load("b")
    assert loaded.serving["b", None].info.version == "10"


async def test_changes_of_one_model_happen_in_the_order_asked(registry, host, monkeypatch):
    monkeypatch.setattr("app.models.registry._TURN_S", 0.0)
    await registry.load_all()
    (start,) = host.holding("start a 1")
    tasks = [asyncio.create_task(step) for step in (registry.load("a"), registry.unload("a"), registry.load("a"))]
    await host.until("start a 1")
    await registry.load("b")  # another model does not wait
    start.set()
    await asyncio.gather(*tasks)
    assert [entry for entry in host.log if " a " in entry] == ["start a 1", "stop a 1", "stop a 1", "start a 1"]
    assert registry.serving["a", None]


async def test_a_caller_that_goes_away_does_not_stop_the_change(loaded, host):
    before = serial(loaded, "a")
    (start,) = host.holding("start a 1")
    caller = asyncio.create_task(loaded.load("a"))
    await host.until("start a 1")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    start.set()
    await host.until("stop a 1")
    await loaded.load("b")
    assert serial(loaded, "a") > before


async def test_a_stop_that_fails_fails_no_caller(loaded, host):
    host.fail["stop a 1"] = RuntimeError("stuck")
    await loaded.load("a")
    assert loaded.serving["a", None]
    host.fail.clear()
    host.running = set(loaded.ready())


async def test_close_cancels_loads_and_stops_all(host, repo):
    registry = Registry(host.start, host.stop, Repository(repo), Repository(repo).scan())
    await registry.load("a")
    host.holding("start b 2")
    loading = asyncio.create_task(registry.load_all())
    await host.until("start b 2")
    await registry.close()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert not host.running
    with pytest.raises(NotReady, match="the server is stopping"):
        registry.serving["a", None]
    with pytest.raises(NotReady, match="the server is stopping"):
        await registry.load("a")


async def test_loads_take_turns_off_the_loop(host, repo):
    seen, busy = [], threading.Lock()

    def load(source):
        seen.append((busy.acquire(blocking=False), threading.current_thread().name.startswith("model-load")))
        info = model_info(read_config(source.folder), source, {"max_batch": 2})
        busy.release()
        return Model(info, lambda x: x)

    async with Registry(host.start, host.stop, Repository(repo), Repository(repo).scan(), load) as registry:
        await asyncio.gather(registry.load("a"), registry.load("b"))
        assert registry.serving["a", None].info.batching.max_batch == 2
    assert seen == [(True, True)] * 4


async def test_reasons_can_be_shown_whatever_the_paths_are_made_of(host, tmp_path):
    repo = tmp_path / os.fsdecode(b"caf\xe9")
    write_model(repo / "bad", code="raise ValueError('\\udcff')\n")
    write_model(repo / os.fsdecode(b"n\xff"))
    (repo / "link").symlink_to(os.fsdecode(b"gone\xff"))
    async with Registry(host.start, host.stop, Repository(repo), Repository(repo).scan()) as registry:
        await registry.load_all()
        bad, link = (entry.reason for entry in registry.index())
        assert "caf\ufffd/bad/model.toml: source 'model.py:build': ValueError: \ufffd at " in bad
        assert "it is a link to gone\ufffd, which is not there" in link
        for name in ("bad", "link"):
            with pytest.raises(BadRequest, match="caf\ufffd"):
                await registry.load(name)
