"""Invariant: a record is complete up to where it says that it is not, and replays to the same Steps."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from fakes import MS, FakeDevice, Fate, Pushed, virtual, virtual_loop

from app.engine.record_file import RecordFile
from app.errors import StarlingError
from app.scheduler.record import RecordingScheduler
from app.scheduler.types import Fault
from app.sim.replay import replay

from .rig import POISON, Rig, ask, make_model, rows_of, serving

BOUND = 65_536  # entries that may wait for the disk


def test_every_entry_is_a_line(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    with RecordFile(path) as record:
        for number in range(5_000):
            record.sink({"in": "tick", "t": number, "text": "ä\n"})
    lines = path.read_text("utf-8").splitlines()
    assert [json.loads(line)["t"] for line in lines] == list(range(5_000))


def test_an_empty_record(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    with RecordFile(path):
        pass
    assert path.read_text() == ""


def test_an_earlier_record_is_replaced(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    path.write_text("old\n")
    with RecordFile(path) as record:
        record.sink({"t": 1})
    assert path.read_text() == '{"t":1}\n'


def test_a_file_that_cannot_be_opened(tmp_path: Path):
    with pytest.raises(OSError, match="nowhere"):
        RecordFile(tmp_path / "nowhere" / "record.jsonl")


def test_what_is_too_much_is_dropped_and_the_hole_is_marked(tmp_path: Path, caplog):
    path = tmp_path / "record.jsonl"
    record = RecordFile(path)
    for number in range(BOUND + 7):  # nothing is written before the file is entered: a disk that is far behind
        record.sink({"t": number})
    with record:
        pass
    lines = path.read_text().splitlines()
    assert len(lines) == BOUND + 1
    assert json.loads(lines[-2]) == {"t": BOUND - 1}
    assert json.loads(lines[-1]) == {"dropped": 7}
    assert caplog.text.count("the record ends here") == 1


def test_nothing_is_written_behind_a_hole(tmp_path: Path):
    path = tmp_path / "record.jsonl"
    record = RecordFile(path)
    for number in range(BOUND + 1):
        record.sink({"t": number})
    with record:
        for _ in range(3):
            record.sink({"t": -1})
    assert json.loads(path.read_text().splitlines()[-1]) == {"dropped": 4}


def on_a_full_disk(entries: int) -> None:
    with RecordFile(Path("/dev/full")) as record:
        for number in range(entries):
            record.sink({"t": number, "text": "x" * 100})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("entries", [1, 1_000, 2 * BOUND])
def test_a_full_disk_ends_the_record_and_not_the_server(entries: int, caplog):
    ended: list[BaseException | None] = []

    def serve() -> None:
        try:
            on_a_full_disk(entries)
        except BaseException as exc:
            ended.append(exc)
        else:
            ended.append(None)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    server.join(5)
    assert not server.is_alive(), "the end of the record waits for a writer that has died"
    assert ended == [None]
    assert "No space left" in caplog.text


# a session


async def busy_session(rig: Rig) -> int:
    """Calls of both models that run, wait, fail, expire and go. Returns how many got an answer."""
    loop = rig.loop
    tasks: list[asyncio.Task] = []
    for number in range(120):
        served = rig.models[number % 2]
        values = [100.0 + number + row for row in range(1 + number % 5)]
        if number % 11 == 3:
            values[-1] = POISON
        options = {"priority": number % 4, "timeout_us": [None, 2_000, 9_000][number % 3]}
        tasks.append(loop.create_task(ask(served, rows_of(*values), **options)))
        if number % 4 == 0:
            await loop.passes((number * 37 % 900) * MS // 1_000)
        if number % 13 == 7:
            tasks[number // 2].cancel()
    given = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in given:
        assert not isinstance(outcome, Exception) or isinstance(outcome, StarlingError), outcome
    await loop.passes(50 * MS)
    return sum(not isinstance(outcome, BaseException) for outcome in given)


@pytest.mark.parametrize("policy", ["no_wait", "window", "static"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_session_replays_equal(tmp_path: Path, policy: str, dies: bool):
    path = tmp_path / "record.jsonl"

    def fate(pushed: Pushed) -> Fate:
        count = len(pushed.job.slots) + pushed.job.unit_id
        if dies and pushed.job.unit_id == 40:
            return Fate(MS, Fault.DEVICE)
        if count % 17 == 5:
            return Fate(MS // 2, Fault.OOM)
        return Fate((1 + count % 3) * MS // 3, Fault.MODEL if count % 29 == 8 else None)

    @virtual
    async def session() -> None:
        device = FakeDevice(virtual_loop(), 4, 2, fate=fate)
        options = {"policy": policy, "max_delay_ms": 1.5, "max_queue": 64}
        other = make_model(lambda x: -x, name="other", max_batch=2, **options)
        with RecordFile(path) as record:
            scheduler = RecordingScheduler(device.spec, sink=record.sink)
            async with serving(make_model(**options), other, device=device, scheduler=scheduler, window_s=0.01) as rig:
                answered = await busy_session(rig)
                if dies:
                    assert rig.engine.driver.lost
                else:
                    assert answered > 20
                    rig.assert_settled()
                    await rig.engine.stop(rig.models[1])

    session()
    lines = path.read_text().splitlines()
    replayed = replay(lines)
    assert replayed.same, replayed
    assert replayed.hole == 0
    entries = [json.loads(line) for line in lines]
    assert replayed.equal == sum("step" in entry for entry in entries) > 50
    kinds = {entry["in"] for entry in entries if "in" in entry}
    assert kinds >= {"add_program", "submit", "cancel", "finished", "tick"}
    reasons = {drop[1] for entry in entries if "step" in entry for drop in entry["step"]["drop"]}
    assert reasons >= ({"device"} if dies else {"model", "deadline"})
    if not dies:
        assert "remove_program" in kinds
