"""The documentation of the routes of texts and steps that are streamed. They are served in front of FastAPI."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute

from app.http.routes.bodies import (
    ChatRequest,
    ChatResponse,
    CompletionRequest,
    CompletionResponse,
    GenerateRequest,
    GenerateResponse,
    InferRequest,
    InferResponse,
)
from app.http.routes.openapi import (
    CALLS,
    Responses,
    asked_in_query,
    document,
    json_media,
    of_calls,
    request_body,
    unreachable,
)

_ASKED: dict[str, Any] = {
    "one text": {"text_input": "The ferry"},
    "a sample of ten tokens": {
        "text_input": "The ferry",
        "parameters": {"max_new_tokens": 10, "temperature": 0.8, "seed": 1},
    },
}
_FIRST = {"model_name": "writer", "model_version": "1", "text_output": " was late"}
_WRITTEN = {**_FIRST, "finish_reason": "stop", "prompt_tokens": 2, "generated_tokens": 5}


def as_stream(documented: Responses, example: str) -> Responses:
    """The same answers, whose 200 is a stream. It begins before the times of the call are known."""
    good: dict[str, Any] = {name: value for name, value in documented[200].items() if name != "model"}
    timed = ("Server-Timing", "X-Batch-Size")
    headers = {name: value for name, value in good["headers"].items() if name not in timed}
    content = {"text/event-stream": {"schema": {"type": "string"}, "example": example}}
    return {**documented, 200: {**good, "headers": headers, "content": content}}


router = APIRouter(tags=["inference"], dependencies=CALLS)
document(
    router, "/v2/models/{of}/generate", "generate", "Write a text",
    "Triton's generate extension, for models that write texts. Fields beside text_input count as parameters.",
    responses=of_calls(GenerateResponse, "The whole text.", example=_WRITTEN),
    openapi_extra=request_body({"application/json": json_media(GenerateRequest, _ASKED)}),
)  # fmt: skip
document(
    router, "/v2/models/{of}/generate_stream", "generate_stream", "Write a text, piece by piece",
    "As generate, with an event for each piece of the text. The last one has the reason and the counts as well. An "
    "error before the first event is an ordinary answer, one behind it the last event: `{\"error\": ...}`.",
    responses=as_stream(
        of_calls(GenerateResponse, "Events with pieces of the text."), f"data: {_FIRST}\n\n".replace("'", '"')
    ),
    openapi_extra=request_body({"application/json": json_media(GenerateRequest, _ASKED)}),
)  # fmt: skip

_HEAD = {"id": "cmpl-1f0c", "object": "text_completion", "created": 1763000000, "model": "writer"}
_ENDED = {"index": 0, "logprobs": None, "finish_reason": "stop"}
_USAGE = {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
_TEXT = " was late again."
_MESSAGE = {"role": "assistant", "content": _TEXT, "refusal": None}
_TALK = [{"role": "user", "content": "Was the ferry late?"}]
_OPENAI = (
    "Errors have the body that OpenAI's clients read. Fields that OpenAI does not know are the model's parameters. "
)
for path, name, summary, about, asked, request, answer, choice in (
    (
        "/v1/completions", "completions", "Continue texts, OpenAI's way", "One row for each prompt.",
        {"prompt": "The ferry"}, CompletionRequest, CompletionResponse, {"text": _TEXT},
    ),
    (
        "/v1/chat/completions", "chat_completions", "Answer in a conversation, OpenAI's way",
        "For models whose tokenizer has a chat template.",
        {"messages": _TALK}, ChatRequest, ChatResponse, {"message": _MESSAGE},
    ),
):  # fmt: skip
    example = {**_HEAD, "choices": [{**choice, **_ENDED}], "usage": _USAGE}
    told = of_calls(answer, "The whole text, or its chunks as events.", example=example, openai=True)
    named = {"the likeliest text": {"model": "writer", **asked, "temperature": 0}}
    router.post(
        path, name=name, summary=summary, description=_OPENAI + about, responses=told,
        dependencies=[Depends(asked_in_query)],
        openapi_extra=request_body({"application/json": json_media(request, named)}),
    )(unreachable)  # fmt: skip

#: The paths of models that write texts: documented where one serves.
WRITING = tuple(route.path for route in router.routes if isinstance(route, APIRoute))

_STEP = (
    '{"model_name":"tagger","model_version":"1","outputs":[{"name":"tags","shape":[1,1],"datatype":"INT64","data":[3]}],'
    '"parameters":{"row":0}}'
)
document(
    router, "/v2/models/{of}/infer_stream", "infer_stream", "Infer, step by step",
    "As infer, for recurrent models with an output for each step. Each event is a response about one row, whose index "
    "is its parameter `row`: the steps since its last event. At the end one for each row, with the parameter `final`, "
    "has the rest and all other outputs. Outputs are JSON. Errors are as of generate_stream.",
    responses=as_stream(of_calls(InferResponse, "Events with what rows give out."), f"data: {_STEP}\n\n"),
    openapi_extra=request_body({"application/json": json_media(InferRequest)}),
)  # fmt: skip
#: Those of models that stream steps.
STEPPING = tuple(route.path for route in router.routes[len(WRITING) :] if isinstance(route, APIRoute))
