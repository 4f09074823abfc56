"""The paths that infer, as /openapi.json has them; `document.py` adds those with a version, and those of each model."""

from __future__ import annotations

import json

from app.http.openapi.words import (
    ANY,
    BINARY,
    TEXT,
    Node,
    asked,
    events,
    json_body,
    list_of,
    of_fields,
    operation,
    said,
    schema,
)

#: Headers of an answer, and of a stream, which begins before the times are known.
_TIMED = ("X-Request-ID", "Server-Timing", "X-Batch-Size")
_STREAMED = ("X-Request-ID",)
#: V2 has the rest in its bodies.
_IN_QUERY = ("class", "timeout_ms", "total_timeout_ms", "priority")

_STEP = (
    'data: {"model_name":"tagger","model_version":"1","outputs":[{"name":"tags","shape":[1,1],"datatype":"INT64",'
    '"data":[3]}],"parameters":{"row":0}}\n\n'
)
_PIECE = {"model_name": "writer", "model_version": "1", "text_output": " was late"}
_WRITTEN = {**_PIECE, "finish_reason": "stop", "prompt_tokens": 2, "generated_tokens": 5}
_WRITE = asked(
    schema("GenerateRequest"),
    one_text={"text_input": "The ferry"},
    a_sample={"text_input": "The ferry", "parameters": {"max_new_tokens": 10, "temperature": 0.8, "seed": 1}},
)
_BINARY_V2 = "Inference-Header-Content-Length gives the bytes of JSON that lead; 0: all are the single input."
_INSTANCES = said("array", "One element per row; an object by input name where there are several.")
_PREDICTIONS = said("array", "One element per row; an object by output name where there are several.")
_FILES = of_fields(("file",), file=list_of(BINARY))
_DOCUMENTS = {"query": "a fine day", "documents": ["it rains", "the sun shines"]}
_RANKED = {
    "model": "ranker",
    "results": [{"index": 1, "relevance_score": 0.98}, {"index": 0, "relevance_score": 0.02}],
    "usage": {"total_tokens": 18},
}
_VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}],
    "model": "vectors",
    "usage": {"prompt_tokens": 6, "total_tokens": 6},
}
_USAGE = {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}


def _v2(name: str, summary: str, description: str, content: Node, body: Node, *, streams: bool = False) -> Node:
    headers = _STREAMED if streams else _TIMED
    return operation(
        "inference", name, summary, description, content, body=body, parameters=("class",), headers=headers
    )


def _other(name: str, summary: str, description: str, content: Node, body: Node, error: str = "error") -> Node:
    return operation(
        "inference", name, summary, description, content,
        body=body, parameters=_IN_QUERY, headers=_TIMED, error=error,
    )  # fmt: skip


def _openai(name: str, summary: str, description: str, content: Node, body: Node) -> Node:
    about = f"{description} Bodies and errors are as OpenAI's clients send and read them."
    return _other(name, summary, about, content, body, "openai_error")


def _rerank(name: str, error: str = "error") -> Node:
    return _other(
        name, "Rank texts for a query",
        "For models of the task rerank. A body with documents is Cohere's; one with texts is that of Text Embeddings "
        "Inference, whose answer is a list.",
        json_body({"type": ["object", "array"]}, _RANKED),
        asked(
            ANY, documents=_DOCUMENTS, the_best_with_its_text={**_DOCUMENTS, "top_n": 1, "return_documents": True},
            texts={"query": "a fine day", "texts": ["it rains", "the sun shines"]},
        ),
        error,
    )  # fmt: skip


def _completed(kind: str, prefix: str, **choice: object) -> Node:
    """An answer, or its chunks as events."""
    head = {"id": f"{prefix}-1f0c", "object": kind, "created": 1763000000, "model": "writer"}
    choices = [{**choice, "index": 0, "logprobs": None, "finish_reason": "stop"}]
    return json_body(ANY, {**head, "choices": choices, "usage": _USAGE}) | events("data: [DONE]\n\n")


V2 = "/v2/models/{model}/infer"
V1 = "/v1/models/{model}:predict"
FRIENDLY = "/predict/{model}"

INFERENCE: dict[str, Node] = {
    V2: _v2(
        "infer", "Infer",
        "The Open Inference Protocol's inference: several rows per request, JSON or binary tensors.",
        json_body(schema("InferResponse")),
        json_body(schema("InferRequest"))
        | {"application/octet-stream": {"schema": {**BINARY, "description": _BINARY_V2}}},
    ),
    "/v2/models/{model}/infer_stream": _v2(
        "infer_stream", "Infer, step by step",
        "As infer, for recurrent models with an output for each step. Each event is a response about one row, whose "
        "index is its parameter `row`: the steps since its last event. At the end one for each row, with the parameter "
        "`final`, has the rest and all other outputs. Outputs are JSON. Errors are as of generate_stream.",
        events(_STEP), json_body(schema("InferRequest")), streams=True,
    ),
    "/v2/models/{model}/generate": _v2(
        "generate", "Write a text",
        "Triton's generate extension, for models that write texts. Fields beside text_input count as parameters.",
        json_body(schema("GenerateResponse"), _WRITTEN), _WRITE,
    ),
    "/v2/models/{model}/generate_stream": _v2(
        "generate_stream", "Write a text, piece by piece",
        "As generate, with an event for each piece of the text. The last one has the reason and the counts as well. An "
        'error before the first event is an ordinary answer, one behind it the last event: `{"error": ...}`.',
        events(f"data: {json.dumps(_PIECE)}\n\n"), _WRITE, streams=True,
    ),
    V1: _other(
        "predict_v1", "Predict, TensorFlow Serving's way",
        "The row format of TensorFlow Serving and KServe V1. Other parameters in the query are a 400.",
        json_body(of_fields(("predictions",), predictions=_PREDICTIONS)),
        json_body(of_fields(("instances",), instances=_INSTANCES)),
    ),
    FRIENDLY: _other(
        "predict", "Predict from a file or a value",
        "One JSON value, an image file, plain text or an .npy file as the body, by Content-Type, or the same as a "
        "multipart upload (`curl -F file=@three.png`), whose files are rows; its other fields are for a model whose "
        "`decode` takes them. Without a content type the body's first bytes decide. Images and text need a model that "
        "decodes them. One row in, one value out; a list of rows in, a list out. Other parameters in the query are a "
        "400.",
        json_body({"description": "What the model makes of its outputs, or an object by output name."}),
        json_body({"description": "One row's data, a list of rows, or an object by input name."})
        | {media: {"schema": BINARY} for media in ("image/png", "image/jpeg", "application/x-npy")}
        | {"text/plain": {"schema": TEXT}, "multipart/form-data": {"schema": _FILES}},
    ),
    "/v1/completions": _openai(
        "completions", "Continue texts",
        "One row for each prompt. Fields that OpenAI does not know are the model's parameters.",
        _completed("text_completion", "cmpl", text=" was late again."),
        asked(ANY, the_likeliest_text={"prompt": "The ferry", "temperature": 0}),
    ),
    "/v1/chat/completions": _openai(
        "chat_completions", "Answer in a conversation",
        "For models whose tokenizer has a chat template. Fields that OpenAI does not know are the model's parameters.",
        _completed("chat.completion", "chatcmpl",
                   message={"role": "assistant", "content": " was late again.", "refusal": None}),
        asked(ANY, one_question={"messages": [{"role": "user", "content": "Was the ferry late?"}]}),
    ),
    "/v1/embeddings": _openai(
        "embeddings", "Vectors of texts",
        "For models of the tasks feature-extraction and sentence-similarity, and any other that makes one vector of "
        "one input of bytes.",
        json_body(ANY, _VECTORS),
        asked(ANY, one_text={"input": "what a fine day"},
              as_base64={"input": ["what a fine day", "it rains"], "encoding_format": "base64"}),
    ),
    "/v1/rerank": _rerank("rerank_v1", "openai_error"),
    "/v2/rerank": _rerank("rerank_v2"),
    "/rerank": _rerank("rerank"),
}  # fmt: skip
