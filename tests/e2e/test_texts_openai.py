"""Models of texts through the clients of their users: OpenAI's package, and bodies as other clients send them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openai
import pytest

from .server import Server
from .texts import TASKS

VECTORS = ["vectors", "similar"]


@pytest.fixture
def client(texts: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{texts.host}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == sorted((*TASKS, "objects", "writer", "generate"))


def test_vectors_are_those_of_v2(texts: Server, client: openai.OpenAI) -> None:
    rows = ["the cat sat on the mat", "unhappy"]
    tensor = {"name": "text", "shape": [2], "datatype": "BYTES", "data": rows}
    (expected,) = texts.post("/v2/models/vectors/infer", {"inputs": [tensor]}).json()["outputs"]
    wanted = np.reshape(expected["data"], expected["shape"])
    for model in VECTORS:  # a model whose task is to compare gives its vectors, too
        as_base64 = client.embeddings.create(model=model, input=rows)  # the client's own choice
        as_floats = client.embeddings.create(model=model, input=rows, encoding_format="float")
        for found in (as_base64, as_floats):
            assert np.allclose([one.embedding for one in found.data], wanted, atol=1e-5)
            assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == (model, 8 + 4, 12)
    (one,) = client.embeddings.create(model="vectors", input=rows[0], dimensions=4).data
    assert np.allclose(one.embedding, wanted[0, :4] / np.linalg.norm(wanted[0, :4]), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "given", "kind", "param", "message"),
    [
        ("vectors", ["a", "a " * 40], openai.BadRequestError, "input[1]", "input[1]: expected at most 32 tokens, got"),
        ("vektors", ["a"], openai.NotFoundError, "model", "model 'vektors' is not known; models: generate, mood, "),
    ],
)
def test_errors_are_read_by_the_client(
    client: openai.OpenAI, model: str, given: list[str], kind: type[openai.APIStatusError], param: str, message: str
) -> None:
    with pytest.raises(kind) as raised:
        client.embeddings.create(model=model, input=given)
    body = raised.value.body
    assert isinstance(body, dict)
    assert (raised.value.type, raised.value.param) == ("invalid_request_error", param)
    assert body["message"].startswith(message)


def test_texts_are_ranked_as_v2_scores_them(texts: Server) -> None:
    """The formats of Cohere's clients and AIPerf, and of Text Embeddings Inference."""
    query, documents = "the cat sat", ["a dog ran in paris", "the cat", "bad"]
    inputs = [
        {"name": name, "shape": [3], "datatype": "BYTES", "data": data}
        for name, data in (("query", [query] * 3), ("document", documents))
    ]
    score, raw = texts.post("/v2/models/ranker/infer", {"inputs": inputs}).json()["outputs"]
    order = np.argsort(score["data"])[::-1].tolist()
    asked = {"model": "ranker", "query": query, "documents": documents}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        found = texts.post(path, {**asked, "top_n": 2, "return_documents": True}).json()
        assert [one["index"] for one in found["results"]] == order[:2]
        assert [one["document"]["text"] for one in found["results"]] == [documents[index] for index in order[:2]]
        assert [one["relevance_score"] for one in found["results"]] == pytest.approx(
            [score["data"][index] for index in order[:2]], abs=1e-5
        )
        assert found["usage"] == {"total_tokens": 3 * 6 + 5 + 2 + 1}
    found = texts.post("/rerank", {"query": query, "texts": documents, "raw_scores": True}).json()
    assert [one["index"] for one in found] == order
    assert [one["score"] for one in found] == pytest.approx([raw["data"][index] for index in order], abs=1e-5)
