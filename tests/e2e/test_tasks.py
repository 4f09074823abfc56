"""Texts and images over HTTP: every protocol, one answer, as documented."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_transformers as tiny
import torch
import transformers
import tritonclient.http as triton

from .conftest import Keeper
from .server import Server
from .wire import Wire, post

TASKS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "mood": ("text-classification", tiny.save_bert),
    "names": ("token-classification", lambda folder: tiny.save_bert(folder, "TokenClassification", id2label=tiny.TAGS)),
    "vectors": ("feature-extraction", lambda folder: tiny.save_bert(folder, "")),
    "objects": ("image-classification", tiny.save_vit),
}


@pytest.fixture(scope="module")
def tasks(keeper: Keeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tasks")
    flags: list[str] = []
    for name, (task, save) in TASKS.items():
        save(folder / name / "weights")
        batching = "[batching]\nlength_buckets = [8, 32]\n" if name == "mood" else ""
        (folder / name / "model.toml").write_text(f'source = "hf:weights"\ntask = "{task}"\n{batching}')
        flags += ["--model", f"{name}={folder / name}"]
    yield keeper.start(flags=tuple(flags))
    keeper.end_own()


def predicted(server: Server, name: str, body: bytes, kind: str = "text/plain") -> Any:
    reply = server.post(f"/predict/{name}", body, {"Content-Type": kind})
    assert reply.status == 200, reply.body
    return reply.json()


def alike(found: dict[str, Any], one: dict[str, Any]) -> bool:
    """Whether two answers are one: batches of different sizes round differently."""
    first, second = ([each["score"] for each in answer["top"]] for answer in (found, one))
    labels = [[each["label"] for each in answer["top"]] for answer in (found, one)]
    return labels[0] == labels[1] and found["label"] == labels[0][0] and first == pytest.approx(second, abs=1e-5)


def test_every_protocol_gives_one_answer(tasks: Server) -> None:
    text = "the unhappy cat sat"
    one = predicted(tasks, "mood", text.encode())
    assert list(one) == ["label", "score", "top"]
    assert one["label"] in ("NEGATIVE", "NEUTRAL", "POSITIVE")
    assert sum(each["score"] for each in one["top"]) == pytest.approx(1)
    packed = {"b64": base64.b64encode(text.encode()).decode()}
    for value in (text, {"text": packed}, packed):
        assert alike(predicted(tasks, "mood", json.dumps(value).encode(), "application/json"), one)
    several = predicted(tasks, "mood", json.dumps([text, text]).encode(), "application/json")
    v1 = tasks.post("/v1/models/mood:predict", {"instances": [text, packed, text]}).json()
    assert list(v1) == ["predictions"]
    assert (len(several), len(v1["predictions"])) == (2, 3)
    assert all(alike(found, one) for found in (*several, *v1["predictions"]))
    for shape in ([1], [1, 1]):
        tensor = {"name": "text", "shape": shape, "datatype": "BYTES", "data": [text]}
        labels, scores = tasks.post("/v2/models/mood/infer", {"inputs": [tensor]}).json()["outputs"]
        top = [{"label": each, "score": score} for each, score in zip(labels["data"], scores["data"], strict=True)]
        assert alike({**top[0], "top": top}, one)
        assert [(output["name"], output["shape"]) for output in (labels, scores)] == [
            ("labels", [1, 3]), ("scores", [1, 3]),
        ]  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_documented_examples_work(tasks: Server, name: str) -> None:
    """They are those of the face: text, or a file as base64."""
    document = tasks.get("/openapi.json").json()
    for path in (f"/v2/models/{name}/infer", f"/v1/models/{name}:predict", f"/predict/{name}"):
        operation = document["paths"][path]["post"]
        asked = operation["requestBody"]["content"]["application/json"]
        assert len(asked["examples"]) >= 2
        for example in asked["examples"].values():
            reply = tasks.post(path, example["value"])
            assert reply.status == 200, reply.body


def test_tritonclient_finds_a_text_model(tasks: Server) -> None:
    client = triton.InferenceServerClient(tasks.host)
    try:
        assert client.get_model_metadata("names")["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        rows = ["the cat sat in paris", "anna", ""]
        tensor = triton.InferInput("text", [3], "BYTES")
        tensor.set_data_from_numpy(np.array([row.encode() for row in rows], object))
        result = client.infer("names", [tensor])
        pieces = result.as_numpy("pieces")
        assert pieces.tolist() == [
            [b"the", b"cat", b"sat", b"in", b"paris"], [b"anna", b"", b"", b"", b""], [b"", b"", b"", b"", b""],
        ]  # fmt: skip
        assert result.get_output("pieces")["parameters"]["lengths"] == "5,1,0"
        assert result.as_numpy("ends")[0].tolist() == [3, 7, 11, 14, 20]
    finally:
        client.close()
    found = predicted(tasks, "names", json.dumps(rows).encode(), "application/json")
    assert [[token["piece"] for token in row["tokens"]] for row in found][1:] == [["anna"], []]


def test_images_as_files_and_as_base64(tasks: Server) -> None:
    photo = tiny.photo(3)
    one = predicted(tasks, "objects", photo, "image/jpeg")
    assert one["label"].startswith("class ")
    assert len(one["top"]) == 5
    assert alike(predicted(tasks, "objects", photo, "application/octet-stream"), one)
    packed = {"b64": base64.b64encode(photo).decode()}
    assert alike(predicted(tasks, "objects", json.dumps(packed).encode(), "application/json"), one)
    v1 = tasks.post("/v1/models/objects:predict", {"instances": [packed, packed]}).json()
    assert [alike(found, one) for found in v1["predictions"]] == [True, True]
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [packed]}
    found = tasks.post("/v2/models/objects/infer", {"inputs": [tensor]}).json()["outputs"]
    assert found[0]["data"] == [each["label"] for each in one["top"]]


async def test_texts_of_many_callers_at_once_are_each_answered_as_alone(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    """Those that are too long are refused by themselves; told to stop, the server answers what it has."""
    model = tiny.save_bert(tmp_path / "mood" / "weights")
    (tmp_path / "mood" / "model.toml").write_text('source = "hf:weights"\ntask = "text-classification"\n')
    flags = ("--model", f"mood={tmp_path / 'mood'}", "--drain-grace-s", "1")
    server = await asyncio.to_thread(start, flags=flags)
    choose = np.random.default_rng(7)
    words = [word for word in tiny.WORDS if word.isalpha()]
    texts = [" ".join(choose.choice(words, length)) for length in choose.integers(1, tiny.MOST - 1, 60)]
    texts += [text + " the cat" * tiny.MOST for text in texts[:4]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "mood" / "weights")
    with torch.inference_mode():
        scores = [model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0] for text in texts[:-4]]
    wires = [await Wire.open(server.host) for _ in texts]
    for last in (False, False, True):
        asked = choose.permutation(len(texts))
        for wire, which in zip(wires, asked, strict=True):
            wire.send(post("/predict/mood", texts[which].encode(), {"Content-Type": "text/plain"}))
        if last:
            server.tell()
        for wire, which in zip(wires, asked, strict=True):
            answer = await wire.answer()
            if which >= len(scores):
                assert (answer.status, answer.json()["error"][:28]) == (400, "text: expected at most 32 to")
                continue
            assert answer.status == 200, answer
            found = {one["label"]: one["score"] for one in answer.json()["top"]}
            names = [model.config.id2label[number] for number in range(3)]
            assert [found[name] for name in names] == pytest.approx(scores[which].tolist(), abs=1e-5)
    for wire in wires:
        wire.close()
    assert await asyncio.to_thread(server.ended) == 0
