"""Decoders in the engine: calls of any length, cancelled ones among them, get their own texts, and places come back."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contract import GeneratedText, ModelCall, ModelSource, awaited
from app.engine.cpu.decoding import TextRows
from app.engine.served_model import ServedModel
from app.errors import BadRequest
from app.models.decoders.parameters import Parameters
from app.models.loading import load
from app.values.text_fields import FIELDS
from tests import tiny_decoders

from .places import on_cpu

MOST = 12


async def ask(served: ServedModel, ids: list[int], on_piece: Any = None, **parameters: Any) -> str:
    lengths = {"tokens": len(ids)}
    with served.lease(ModelCall(1, [np.array([ids], np.int64)], lengths=lengths, parameters=parameters)) as lease:
        lease.on_piece = on_piece
        text: bytes = (await awaited(lease)).outputs[0].item()
        return text.decode()


def reader(into: list[str]) -> Callable[[int, GeneratedText], None]:
    return lambda row, piece: into.append(piece.text)


@pytest.mark.parametrize(("kind", "capacities"), [("gpt2", (4,)), ("t5", (4, 4))])
async def test_texts_under_load_with_calls_that_leave(kind, capacities, tmp_path) -> None:
    random.seed(1)
    made, words = tiny_decoders.save(tmp_path, kind, MOST), tiny_decoders.tokenizer()
    running: set[int] = set()
    prompts = [[random.randrange(2, 200) for _ in range(random.randrange(1, 30))] for _ in range(40)]
    pieces: list[list[str]] = [[] for _ in prompts]
    async with on_cpu(load(ModelSource("writer", 1, tmp_path)), *capacities) as (engine, served):
        engine.watch(lambda unit, outcome, began, ended: running.add(len(unit.rows)))
        calls = [
            asyncio.create_task(ask(served, ids, reader(into), max_new_tokens=1 + number % MOST))
            for number, (ids, into) in enumerate(zip(prompts, pieces, strict=True))
        ]
        await calls[0]
        for call in calls[1::3]:
            call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        for number, (ids, into, text) in enumerate(zip(prompts, pieces, ended, strict=True)):
            if isinstance(text, str):
                wanted = tiny_decoders.generated(made, ids, 1 + number % MOST)
                assert text == words.decode(wanted, skip_special_tokens=True)
                assert text.startswith("".join(into))
        assert sum(isinstance(text, str) for text in ended) >= 26
        assert max(running) > 1
        assert await ask(served, [5, 6]) == words.decode(tiny_decoders.generated(made, [5, 6], MOST), True)
        assert isinstance(served.activations, TextRows)
        assert not served.activations


async def test_parameters_are_looked_at_before_a_call_is_taken(tmp_path: Path) -> None:
    tiny_decoders.save(tmp_path, "gpt2", MOST)
    async with on_cpu(load(ModelSource("writer", 1, tmp_path))) as (_, served):
        for wrong, message in (
            ({"max_new_tokens": 0}, r"parameters.max_new_tokens: expected at least 1, got 0"),
            ({"temperature": "hot"}, r"parameters.temperature: expected a number, got 'hot'"),
            ({"max_tokens": "3"}, r"parameters.max_tokens: expected an integer, got '3'"),
            ({"maximum": 3}, r"parameters.maximum: unknown key; expected one of max_new_tokens, "),
            ({"temperature": -1}, r"parameters.temperature: expected at least 0, got -1"),
            ({"temperature": math.nan}, r"parameters.temperature: expected a finite number, got nan"),
            ({"temperature": math.inf}, r"parameters.temperature: expected a finite number, got inf"),
            ({"top_k": -2}, r"parameters.top_k: expected at least -1, got -2"),
            ({"num_beams": 4}, r"parameters.num_beams: expected 1: beam search is not offered"),
            ({"stop": [3]}, r"parameters.stop: expected a text, or at most 16"),
            ({"stop_token_ids": ["a"]}, r"parameters.stop_token_ids: expected a list of ids of tokens, got \['a'\]"),
            ({"bad_words": ["a"]}, r"parameters.bad_words: expected '' or .*: a request can ban no words"),
            ({"response_format": {}}, r"parameters.response_format: expected \{'type': 'text'\}, got \{\}: the model"),
            ({"tools": "auto"}, r"parameters.tools: expected \[\], got 'auto': the model calls no tools"),
            ({"top_p": 1.5}, r"parameters.top_p: expected at most 1, got 1.5"),
        ):
            with pytest.raises(BadRequest, match=message):
                await ask(served, [5, 6], **wrong)
        assert not served.pool.used
        for neutral in ({field: value} for one in FIELDS for field in one.names.split() for value in one.neutral):
            assert Parameters.read(neutral) == Parameters.read({})
        assert Parameters.read({"seed": -1}) == Parameters.read({})  # as vLLM and llama.cpp have it
        assert Parameters.read({"top_k": -1, "top_p": 1.0}).samples is None
        assert Parameters.read({"random_seed": 3, "min_length": 2, "stop_words": [["a", "b"]], "end_id": 7}) == (
            Parameters.read({"seed": 3, "min_new_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [7]})
        )
