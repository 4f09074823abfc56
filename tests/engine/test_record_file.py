"""Invariant: a record is complete up to where it says that it is not, and replays to the same Steps."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from fakes import MS, Fate, Pushed, virtual

from app.engine.record_file import RecordFile
from app.errors import StarlingError
from app.scheduler.record import RecordingScheduler
from app.scheduler.types import Fault
from planner.replay import replay

from .rig import POISON, Rig, ask, device, make_model, rows_of, serving

BOUND = 65_536  # entries that may wait for the disk


def entries_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("entries", [[], [{"t": 1}], [{"in": "tick", "t": n, "text": "ä\n"} for n in range(5_000)]])
def test_every_entry_is_a_line_and_an_earlier_record_is_replaced(entries: list[Any], tmp_path: Path):
    path = tmp_path / "record.jsonl"
    path.write_text("old\n")
    with RecordFile(path) as record:
        for entry in entries:
            record.sink(entry)
    assert entries_of(path) == entries


def test_a_file_that_cannot_be_opened(tmp_path: Path):
    with pytest.raises(OSError, match="nowhere"):
        RecordFile(tmp_path / "nowhere" / "record.jsonl")


def test_what_is_too_much_is_dropped_and_nothing_is_written_behind_the_hole(tmp_path: Path, caplog):
    path = tmp_path / "record.jsonl"
    record = RecordFile(path)
    for number in range(BOUND + 7):  # nothing is written before the file is entered: a disk that is far behind
        record.sink({"t": number})
    with record:
        for _ in range(3):
            record.sink({"t": -1})
    entries = entries_of(path)
    assert (len(entries), entries[-2:]) == (BOUND + 1, [{"t": BOUND - 1}, {"dropped": 10}])
    assert caplog.text.count("the record ends here") == 1


def test_a_file_that_takes_nothing_more_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Such as a pipe that nobody reads."""
    monkeypatch.setattr("app.engine.record_file._END_S", 0.01)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with RecordFile(tmp_path / "pipe") as record:
        for number in range(50_000):
            record.sink({"n": number})
    os.close(reader)
    assert "not complete" in caplog.text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("entries", [1, 1_000, 2 * BOUND])
def test_a_full_disk_ends_the_record_and_not_the_server(entries: int, caplog):
    ends: list[BaseException | None] = []

    def serve() -> None:
        try:
            with RecordFile(Path("/dev/full")) as record:
                for number in range(entries):
                    record.sink({"t": number, "text": "x" * 100})
        except BaseException as exc:
            ends.append(exc)
        else:
            ends.append(None)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    server.join(5)
    assert not server.is_alive(), "the end of the record waits for a writer that has died"
    assert ends == [None]
    assert "No space left" in caplog.text


# a session


async def busy_session(rig: Rig) -> int:
    """Calls of both models that run, wait, fail, expire and go. Returns how many got an answer."""
    loop = rig.loop
    tasks: list[asyncio.Task] = []
    for number in range(120):
        values = [100.0 + number + row for row in range(1 + number % 5)]
        if number % 11 == 3:
            values[-1] = POISON
        options = {"priority": number % 4, "timeout_us": [None, 2_000, 9_000][number % 3]}
        tasks.append(loop.create_task(ask(rig.models[number % 2], rows_of(*values), **options)))
        if number % 4 == 0:
            await loop.passes((number * 37 % 900) * MS // 1_000)
        if number % 13 == 7:
            tasks[number // 2].cancel()
    given = await asyncio.gather(*tasks, return_exceptions=True)
    for end in given:
        assert not isinstance(end, Exception) or isinstance(end, StarlingError), end
    await loop.passes(50 * MS)
    return sum(not isinstance(end, BaseException) for end in given)


@pytest.mark.parametrize("policy", ["no_wait", "window", "static"])
@pytest.mark.parametrize("dies", [False, True])
@virtual
async def test_a_session_replays_equal(tmp_path: Path, policy: str, dies: bool):
    path = tmp_path / "record.jsonl"

    def fate(pushed: Pushed) -> Fate:
        count = len(pushed.job.slots) + pushed.job.unit_id
        if dies and pushed.job.unit_id == 40:
            return Fate(MS, Fault.DEVICE)
        if count % 17 == 5:
            return Fate(MS // 2, Fault.OOM)
        return Fate((1 + count % 3) * MS // 3, Fault.MODEL if count % 29 == 8 else None)

    two = device(4, 2, fate=fate)
    options = {"policy": policy, "max_delay_ms": 1.5, "max_queue": 64}
    other = make_model(lambda x: -x, name="other", max_batch=2, **options)
    with RecordFile(path) as record:
        scheduler = RecordingScheduler(two.spec, sink=record.sink)
        async with serving(make_model(**options), other, device=two, scheduler=scheduler, window_s=0.01) as rig:
            answered = await busy_session(rig)
            if dies:
                assert rig.engine.driver.lost
            else:
                assert answered > 20
                rig.assert_settled()
                await rig.engine.stop(rig.models[1])
    replayed = replay(path.read_text().splitlines())
    assert replayed.same, replayed
    assert replayed.hole == 0
    entries = entries_of(path)
    assert replayed.equal == sum("step" in entry for entry in entries) > 50
    kinds = {entry["in"] for entry in entries if "in" in entry}
    assert kinds >= {"add_program", "submit", "cancel", "finished", "tick"} | (set() if dies else {"remove_program"})
    reasons = {drop[1] for entry in entries if "step" in entry for drop in entry["step"]["drop"]}
    assert reasons >= ({"device"} if dies else {"model", "deadline"})
