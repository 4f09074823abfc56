"""Decoders step by step against whole batches, over HTTP and simulated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from app.contract import ModelSource
from app.models.loading import load
from experiments.writing import live, streams
from experiments.writing.simulated import SERVED, SHAPES, simulate
from loadtest.common.servers import MeasurementError
from tests import tiny_decoders

# Decoders step by step against whole batches: the models, and how streams are timed.


def test_the_folders_are_models(tmp_path: Path) -> None:
    tiny_decoders.save(tmp_path / "tiny", "t5")
    names = live.write_models(tmp_path, tmp_path / "tiny" / "weights", "t5")
    assert names[0] == live.CELLS
    assert len(names) == 1 + 1 + 2 * (len(live.SIZES) - 1)
    model = load(ModelSource(live.CELLS, 1, tmp_path / live.CELLS))
    assert model.info.batching.max_batch == live.LARGEST
    model = load(ModelSource("whole16w32", 1, tmp_path / "whole16w32"))
    assert model.info.batching.length_buckets == (32, 64, 96, 128)


async def test_streams_are_timed_to_their_first_piece(tmp_path: Path) -> None:
    asked: list[dict[str, object]] = []
    piece, last = b'data: {"text_output":"a"}\n\n', b'data: {"text_output":"b","finish_reason":"length"}\n\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        asked.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + piece + (last if len(asked) < 4 else b""))
        writer.close()

    paths = live.write_requests(tmp_path, 3)
    bodies = streams.bodies_of(paths[live.CELLS])
    assert len(bodies) == live.BODIES
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        waits = await streams.first_pieces(port, "steps", bodies, 300.0, 0.01, 0)
        assert len(waits) == len(asked) == 3
        assert min(waits) > 0
        assert {json.dumps(one).encode() for one in asked} <= set(bodies)
        with pytest.raises(MeasurementError, match="expected a text"):
            await streams.first_pieces(port, "steps", bodies, 300.0, 0.01, 0)


# The worker of a decoder in virtual time: how long rows may read, and when they join.


REQUESTS = 150


def test_the_longer_rows_may_read_the_sooner_texts_end_and_the_longer_steps_wait() -> None:
    found = [simulate(SHAPES["gpt2"], 1.8, reading, REQUESTS) for reading in ("50 ms", SERVED, "all")]
    assert [one.mean for one in found] == sorted((one.mean for one in found), reverse=True)
    assert [one.held_p99 for one in found] == sorted(one.held_p99 for one in found)
    assert found[0].held_p99 <= 35 + 16 * 2.8 < found[1].held_p99 <= 3 * 205


def test_first_tokens_come_sooner_where_rows_join_at_once() -> None:
    at_once, when_it_pays = (simulate(SHAPES["t5"], 8, SERVED, REQUESTS, joins=joins) for joins in (True, False))
    assert at_once.first < when_it_pays.first
