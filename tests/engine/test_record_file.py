"""Invariant: a record is complete up to where it says that it is not, and replays to the same Steps."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from app.engine.record_file import RecordFile

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


def test_a_file_that_takes_nothing_more_is_not_waited_for(tmp_path, caplog, monkeypatch):
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
    def serve() -> None:
        with RecordFile(Path("/dev/full")) as record:
            for number in range(entries):
                record.sink({"t": number, "text": "x" * 100})

    server = threading.Thread(target=serve, daemon=True)  # which may hang: nobody waits for it
    server.start()
    server.join(5)
    assert not server.is_alive(), "the end of the record waits for a writer that has died"
    assert "No space left" in caplog.text
