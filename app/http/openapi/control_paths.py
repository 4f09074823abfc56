"""The paths that do not infer, as /openapi.json has them: models, the repository, the server, probes."""

from __future__ import annotations

from app.http.openapi.words import ANY, TEXT, Node, asked, json_body, list_of, of_fields, operation, said, schema

_HEAD = " HEAD is answered alike, without a body."
_NAMES = of_fields(("models",), models=list_of(TEXT))
_CARD = {"id": "name", "object": "model", "created": 0, "owned_by": "starling"}
_READY = {"name": "name", "ready": True}

GET: dict[str, Node] = {
    "/v2/models": operation(
        "models", "models", "List models", "Names of the models that have a version ready.", json_body(_NAMES)
    ),
    "/v2/models/stats": operation(
        "models", "statistics", "Statistics of all models",
        "Triton's statistics extension, one element per ready version. A model that is named stats has its metadata "
        "under /v2/models/stats/versions/1.",
        json_body(schema("Statistics")),
    ),
    "/v2/models/{model}": operation(
        "models", "metadata", "Model metadata", "Inputs and outputs with datatypes and shapes.",
        json_body(schema("Metadata")),
    ),
    "/v2/models/{model}/ready": operation(
        "models", "ready", "Is the model ready?", f"Without a version: whether one of its versions is.{_HEAD}",
        json_body(schema("ModelReady"), _READY), failing=json_body(schema("ModelReady"), {**_READY, "ready": False}),
    ),
    "/v2/models/{model}/config": operation(
        "models", "config", "Model configuration",
        "Triton's model configuration, as far as it means something here. A request with more rows than the parameter "
        "`max_request_rows` is a 400.",
        json_body(ANY),
    ),
    "/v2/models/{model}/stats": operation(
        "models", "model_statistics", "Statistics of a model",
        "Triton's statistics extension, one element per ready version.", json_body(schema("Statistics")),
    ),
    "/v1/models": operation(
        "models", "models_v1", "List models (KServe V1, and OpenAI's clients)",
        "Names of the models that have a version ready.",
        json_body(_NAMES, {"models": ["name"], "object": "list", "data": [_CARD]}),
    ),
    "/v1/models/{model}": operation(
        "models", "model_v1", "Model status (KServe V1, and OpenAI's clients)", f"Ready or an error.{_HEAD}",
        json_body(schema("ModelReady"), {**_READY, **_CARD}),
    ),
    "/v2": operation(
        "server", "server_metadata", "Server metadata", "Name, version and Triton's extensions that work here.",
        json_body(of_fields(("name", "version", "extensions"), name=TEXT, version=TEXT, extensions=list_of(TEXT))),
    ),
    "/metrics": operation(
        "server", "metrics", "Metrics", "Prometheus text: our own names, and Triton's for its dashboards.",
        {"text/plain": {"schema": TEXT, "example": "starling_live 1.0\n"}},
    ),
}  # fmt: skip

REPOSITORY = "/v2/repository/models/{model}"
POST: dict[str, Node] = {
    "/v2/repository/index": operation(
        "repository", "index", "Repository index",
        "Every model and version known, with its state and, where it failed or was not tried, the reason.",
        json_body(list_of(schema("IndexLine"))),
        body=asked(of_fields((), ready=said("boolean", "Only what is ready to serve.")),
                   all={}, only_what_is_ready={"ready": True}),
        body_required=False,
    ),
    f"{REPOSITORY}/load": operation(
        "repository", "load", "Load a model, or load it again",
        "Answers when the model serves. What the repository now holds replaces what served before, without a gap. "
        "Overriding the configuration or files by parameters (`config`, `file:...`) is not supported. Off, unless the "
        "server was started with `--model-control` or an admin key, which is then the key that is asked for.",
        json_body(ANY, {"name": "name", "load": True}), body=asked(ANY, load={}), body_required=False,
    ),
    f"{REPOSITORY}/unload": operation(
        "repository", "unload", "Unload a model",
        "All its versions: no new calls from now on; answers when those accepted have finished. `unload_dependents` is "
        "accepted; no model depends on another here. Off, and its key, as of `load`.",
        json_body(ANY, {"name": "name", "unload": True}),
        body=asked(ANY, unload={}, Triton={"parameters": {"unload_dependents": False}}), body_required=False,
    ),
}  # fmt: skip

PROBES: dict[str, Node] = {}
for _question, _paths, _about, _reason in (
    (
        "live", ("/v2/health/live", "/livez", "/healthz"),
        "503 where the engine is stuck or dead: restart it. Computed when asked, from the oldest batch in flight.",
        "worker 0 has died",
    ),
    (
        "ready", ("/v2/health/ready", "/readyz", "/ping"),
        "503 at the start, where a required model is not ready, and right after SIGTERM, while requests are still "
        "taken. With `?verbose` the body has the state of every model.",
        "one: loading; two: failed: model.toml: inputs: expected a list",
    ),
):  # fmt: skip
    for _path in _paths:
        PROBES[_path] = operation(
            "health", _path.strip("/").replace("/", "_"), f"{_question.title()}?", _about + _HEAD,
            json_body(schema("Probe"), {_question: True}),
            failing=json_body(schema("Probe"), {_question: False, "reason": _reason}),
        ) | {"security": []}  # fmt: skip
