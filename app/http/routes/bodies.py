"""The bodies of the control routes and of the documented inference routes, as pydantic models.

They describe; only the two repository bodies are also used to parse. The inference path has a codec of its own.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    # V2 fields are called model_*, which pydantic would otherwise warn of
    model_config = ConfigDict(protected_namespaces=())


class ErrorBody(Body):
    """Every error, the framework's included."""

    error: str = Field(description="What was wrong: the field, what was expected and what came.")


class OpenAIError(Body):
    message: str = Field(description="What was wrong: the field, what was expected and what came.")
    type: str = Field(description="invalid_request_error, rate_limit_error or server_error, by the status.")
    param: str | None = Field(description="The field of the request.")
    code: str = Field(description="Which error it is.")


class OpenAIErrorBody(Body):
    """Every error of the routes that OpenAI's clients call."""

    error: OpenAIError


class Live(Body):
    live: bool
    reason: str | None = Field(None, description="Why it is not live; absent where it is.")


class IndexLine(Body):
    name: str
    version: str
    state: str = Field(
        description="READY, LOADING, UNLOADING or UNAVAILABLE; UNTRIED serves, but has raised on every made-up row and "
        "has answered no request yet."
    )
    reason: str = Field(description="Why it is unavailable or untried, or why it could not be loaded again.")


class Ready(Body):
    ready: bool
    reason: str | None = Field(
        None, description="Why it is not ready, such as the models that are loading or failed; absent where it is."
    )
    models: list[IndexLine] | None = Field(None, description="With ?verbose: every model, as the index has it.")


class ServerMetadata(Body):
    name: str
    version: str
    extensions: list[str] = Field(description="Triton's names of the protocol extensions that work here.")


class ModelNames(Body):
    models: list[str]


class ListedModel(Body):
    id: str = Field(description="The model's name.")
    object: str
    created: int
    owned_by: str


class ModelList(ModelNames):
    object: str
    data: list[ListedModel]


class TensorMetadata(Body):
    name: str
    datatype: str = Field(description="BOOL, UINT8 ... UINT64, INT8 ... INT64, FP16, BF16, FP32, FP64 or BYTES.")
    shape: list[int] = Field(description="The batch dimension leads; -1 is variable.")


class ModelMetadata(Body):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(Body):
    name: str
    ready: bool


class ModelStatus(ModelReady):
    id: str = Field(description="The name again, as OpenAI's clients read it.")
    object: str
    created: int
    owned_by: str


class ConfigTensor(Body):
    name: str
    data_type: str = Field(description="TYPE_ and the V2 datatype; TYPE_STRING for BYTES.")
    dims: list[int] = Field(description="One row, without the batch dimension.")


class ConfigParameter(Body):
    string_value: str


class ModelConfiguration(Body):
    name: str
    platform: str
    max_batch_size: int = Field(description="Rows that run together at most; a request may have more.")
    input: list[ConfigTensor]
    output: list[ConfigTensor]
    dynamic_batching: dict[str, Any]
    parameters: dict[str, ConfigParameter] = Field(description="max_request_rows: a request with more is a 400.")


class Statistics(Body):
    model_stats: list[dict[str, Any]] = Field(description="One element per version, as Triton's extension has it.")


class IndexRequest(Body):
    ready: bool = Field(False, description="Only what is ready to serve.")


class RepositoryRequest(Body):
    parameters: dict[str, Any] | None = None


class LoadAnswer(Body):
    name: str
    load: bool


class UnloadAnswer(Body):
    name: str
    unload: bool


class InferInput(Body):
    name: str
    shape: list[int] = Field(description="Rows first.")
    datatype: str
    parameters: dict[str, Any] | None = Field(None, description="binary_data_size: the tensor follows the JSON.")
    data: list[Any] | None = Field(None, description="Row-major, nested or flat; absent where the tensor is binary.")


class RequestedOutput(Body):
    name: str
    parameters: dict[str, Any] | None = Field(None, description="binary_data: true asks for raw bytes.")


class InferRequest(Body):
    id: str | None = Field(None, description="Echoed in the answer.")
    parameters: dict[str, Any] | None = Field(
        None,
        description="class (realtime or best_effort; wins over X-Class), priority (0 is the model's default, 1 the "
        "highest), timeout (microseconds from arrival), binary_data_output; others reach the model.",
    )
    inputs: list[InferInput]
    outputs: list[RequestedOutput] | None = Field(None, description="All of the model's outputs where absent.")


class InferOutput(Body):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferResponse(Body):
    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[InferOutput]


class EmbeddingsRequest(Body):
    model: str | None = Field(None, description="May be absent where one model serves that makes vectors of texts.")
    input: str | list[str]
    encoding_format: str = Field("float", description="float, or base64: little-endian FP32.")
    dimensions: int | None = Field(None, description="Only the first so many values, to length 1 again.")


class Embedding(Body):
    object: str
    index: int
    embedding: list[float] | str


class Usage(Body):
    prompt_tokens: int = Field(description="Of all texts, special ones counted.")
    total_tokens: int


class EmbeddingsResponse(Body):
    object: str
    data: list[Embedding] = Field(description="One element per text, in order.")
    model: str
    usage: Usage


class RerankRequest(Body):
    model: str | None = Field(None, description="May be absent where one model serves that ranks texts.")
    query: str
    documents: list[str | dict[str, Any]] | None = Field(
        None, description="Texts, or objects with a text, as Cohere's."
    )
    texts: list[str] | None = Field(None, description="In place of documents: the answer is a list, as of TEI.")
    top_n: int | None = Field(None, description="Only the best so many.")
    return_documents: bool = False
    return_text: bool = Field(False, description="As return_documents, with texts.")
    raw_scores: bool = Field(False, description="Scores before the sigmoid, or what the model's files say instead.")


class RankedDocument(Body):
    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RankedText(Body):
    index: int
    score: float
    text: str | None = None


class RerankResponse(Body):
    model: str
    results: list[RankedDocument] = Field(description="The best first.")
    usage: dict[str, int]


class GenerateRequest(Body):
    text_input: str
    parameters: dict[str, Any] | None = Field(
        None,
        description="Of the model, such as max_new_tokens and temperature; class, priority and timeout as of V2's.",
    )
    id: str | None = Field(None, description="Echoed in the answer.")


class GenerateResponse(Body):
    id: str | None = None
    model_name: str
    model_version: str
    text_output: str
    finish_reason: str = Field(description="stop: the text has ended; length: it has as many tokens as it may.")
    prompt_tokens: int
    generated_tokens: int


class StreamOptions(Body):
    include_usage: bool = Field(False, description="The stream ends with the counts of tokens.")


class _Completing(Body):
    model: str | None = Field(None, description="May be absent where one model serves that writes texts.")
    max_tokens: int | None = Field(None, description="Of the text; absent: as many as the model may write.")
    temperature: float | None = Field(None, description="0 is the likeliest token; absent: the model's own, or 1.")
    top_p: float | None = None
    seed: int | None = Field(None, description="The same text again, whatever runs beside it.")
    stop: str | list[str] | None = Field(None, description="The text ends before any of these, at most 16.")
    stream: bool | None = Field(None, description="The answer is a stream of chunks.")
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, description="1 alone.")


class CompletionRequest(_Completing):
    prompt: str | list[str]


class Message(Body):
    role: str
    content: str | list[dict[str, Any]] = Field(description="A text, or a list of parts of type text.")


class ChatRequest(_Completing):
    messages: list[Message]
    max_completion_tokens: int | None = Field(None, description="Wins over max_tokens.")


class CompletionUsage(Body):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Choice(Body):
    index: int
    logprobs: None
    finish_reason: str = Field(description="stop or length.")


class CompletionChoice(_Choice):
    text: str


class ChatMessage(Body):
    role: str
    content: str
    refusal: None


class ChatChoice(_Choice):
    message: ChatMessage


class _Completed(Body):
    id: str
    object: str
    created: int
    model: str
    usage: CompletionUsage


class CompletionResponse(_Completed):
    choices: list[CompletionChoice] = Field(description="One element per prompt, in order.")


class ChatResponse(_Completed):
    choices: list[ChatChoice]


class PredictRequest(Body):
    instances: list[Any] = Field(description="One element per row; an object by input name where there are several.")
    signature_name: str | None = Field(None, description="Accepted and ignored.")


class PredictResponse(Body):
    predictions: list[Any] = Field(description="One element per row; an object by output name where there are several.")
