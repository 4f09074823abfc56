"""Decoders step by step against whole batches: what is asked of both, and the page."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from app.bench.stats import Repeat
from app.contract import ModelSource
from app.models.loading import load
from experiments.writing import live, models, nginx, streaming, streams
from loadtest.common.servers import MeasurementError
from tests import tiny_decoders


def test_requests_are_the_same_for_a_seed_and_for_both(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    paths, again = live.write_requests(tmp_path, 3), live.write_requests(tmp_path / "again", 3)
    for name, path in paths.items():
        assert path.read_text() == again[name].read_text()
    ours, whole = (json.loads(path.read_text()) for path in paths.values())
    assert len(ours) == len(whole) == live.BODIES
    for one, other in zip(ours, whole, strict=True):
        ids, most = other["inputs"]
        assert one["inputs"][0]["data"] == [bytes(ids["data"]).decode()]
        assert one["parameters"]["max_new_tokens"] == most["data"][0] <= models.WRITTEN


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_whole_batch_writes_what_each_row_does_alone(kind: str, tmp_path: Path) -> None:
    made = tiny_decoders.model(kind)
    made.generation_config.eos_token_id = None
    whole = models.Whole(made)
    rows = [[5, 6, 7, 8], [9, 10]]
    ids = torch.tensor([rows[0], [*rows[1], 0, 0]])
    with torch.inference_mode():
        last = whole(ids, torch.tensor([4, 2]), torch.tensor([3, 6]))
    assert last.tolist() == [
        tiny_decoders.generated(made, row, most)[-1] for row, most in zip(rows, (3, 6), strict=True)
    ]


def test_the_folders_are_models(tmp_path: Path) -> None:
    tiny_decoders.save(tmp_path / "tiny", "t5")
    names = live.write_models(tmp_path, tmp_path / "tiny" / "weights", "t5")
    assert names[0] == live.CELLS
    assert len(names) == 1 + 1 + 2 * (len(live.SIZES) - 1)
    model = load(ModelSource(live.CELLS, 1, tmp_path / live.CELLS))
    assert model.info.batching.max_batch == live.LARGEST
    model = load(ModelSource("whole16w32", 1, tmp_path / "whole16w32"))
    assert model.info.batching.length_buckets == (32, 64, 96, 128)


def test_rows_a_second_are_counted_from_batch_to_batch() -> None:
    """Batches of 4, one a second, of 3 s each; a batch is answered within some milliseconds."""
    ends = np.repeat(np.arange(1, 13), 4) * 1_000_000_000
    for apart_ns in (0, 2_000_000):
        latency = 3_000_000_000 + apart_ns * np.tile(np.arange(4), 12)
        run = SimpleNamespace(intended_ns=ends - 3_000_000_000, latency_ns=latency, duration_s=12.5)
        assert live.rows_per_second(cast("Repeat", run)) == pytest.approx(4)
    run.duration_s = 1.5
    assert live.rows_per_second(cast("Repeat", run)) == 0.0


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


async def test_events_are_compared_one_by_one_between_two_ports() -> None:
    """Of texts whose tokens now and then share an event, as many events as all of them have."""
    events, asked = itertools.cycle([3, 3, 2, 3]), []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        last = b'{"finish_reason":"stop"}' if len(asked) < 9 else b'{"error":"no"}'
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"data: {}\n\n" * next(events) + b"data: %s\n\n" % last)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert len(await nginx.compare(port, port, 3)) == 3
        assert all(head.startswith(b"POST /v2/models/writer/generate_stream HTTP/1.1\r\n") for head in asked)
        with pytest.raises(MeasurementError, match="expected a text"):
            await nginx.compare(port, port, 3)


def test_whatever_is_written_has_a_text() -> None:
    words = models.tokenizer_of(300)
    assert len(words) == 300
    assert max(words("w298")["input_ids"]) < 258  # texts are read byte by byte
    assert all(words.decode([token], skip_special_tokens=True) for token in (0, 66, 258, 298))


def test_what_streams_cost_is_the_median_of_the_rounds() -> None:
    whole = [{"rows_per_s": rate, "cpu_s_per_row": 0.5, "events_per_row": 0.0} for rate in (10.0, 20.0, 10.0)]
    stream = [{"rows_per_s": rate, "cpu_s_per_row": 0.52, "events_per_row": 21.5} for rate in (9.0, 18.0, 30.0)]
    data = {"kinds": {"t5": {"generate": whole, "generate_stream": stream}}}
    assert streaming.missed(data) == ["t5: streams cost 10.0% of the rows a second, target 5%"]
    settings = {"threads": 1, "closed_s": 9, "rounds": 3, "in_flight": 4, "largest": 8, "lengths": "x"}
    assert "| t5 | 10.00, 20.00, 10.00 | 9.00, 18.00, 30.00 | 21.5 | +10.0% | 0.500, 0.520 |" in streaming.PAGE.text(
        {**data, "settings": settings}
    )


async def test_answers_are_read_to_their_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    assert await streaming.read_answer(reader) == 0
    reader.feed_data(b"8\r\ndata: 1\n\r\n8\r\ndata: 2\n\r\n0\r\n\r\n")
    assert await streaming.read_answer(reader) == 2
    reader.feed_data(b"HTTP/1.1 429 Too Many Requests\r\n\r\n")
    with pytest.raises(MeasurementError, match="429"):
        await streaming.read_answer(reader)
