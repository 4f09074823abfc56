"""The operations of one served model in /openapi.json: its paths, its inputs and outputs, examples that work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.contract import ModelInfo, Served
from app.http import examples
from app.http.codecs.base import client_inputs
from app.http.codecs.files import takes_files
from app.http.openapi import schemas

Node = dict[str, Any]

_FEW = 512  # values of a row up to which examples have more than one
_BINARY = {"schema": {"type": "string", "format": "binary"}}
#: How the generic paths, which hold for any model, are written.
V2, V2_VERSION = "/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"
V1, V1_VERSION = "/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}:predict"
FRIENDLY = "/predict/{model}"
#: How ids of operations begin; a colon follows, which names of models do not hold.
KINDS = {V2: "infer", V2_VERSION: "infer", V1: "predict_v1", V1_VERSION: "predict_v1", FRIENDLY: "predict"}


class ModelDocs:
    """What is documented of one served version. `generic` has the paths that hold for any model, with their errors."""

    def __init__(self, served: Served, generic: Mapping[str, Node]) -> None:
        self.served = served
        self.info: ModelInfo = served.info
        self._generic = generic
        self._values = examples.example_values(served)
        #: By kind.
        self._nodes: dict[str, Node] = {"infer": self._v2(), "predict": self._friendly()}
        if examples.in_json(self.info):
            self._nodes["predict_v1"] = self._v1()

    def tag(self, version: str | None) -> str:
        return self.info.name if version is None else f"{self.info.name}, version {version}"

    def about(self) -> str:
        """The model in Markdown."""
        info, batching = self.info, self.info.batching
        inputs = ", ".join(f"`{spec.name}` {schemas.shape_text(spec)}" for spec in client_inputs(info))
        outputs = ", ".join(f"`{spec.name}` {schemas.shape_text(spec)}" for spec in info.outputs)
        return (
            f"Version {info.version} ({info.platform}). In: {inputs}. Out: {outputs}. "
            f"At most {batching.max_queue} rows in a request; batches of up to {batching.max_batch}."
        )

    def paths(self, version: str | None) -> dict[str, Node]:
        """Its paths; of one `version`, or None for those without one."""
        return {
            path.replace("{model}", self.info.name).replace("{version}", self.info.version): {
                "post": self._made(path, self._nodes[kind], version)
            }
            for path, kind in KINDS.items()
            if kind in self._nodes and ("{version}" in path) == (version is not None)
        }

    # the same for the generic paths, in place of what they say of models that may not be served

    def bodies(self, path: str) -> dict[str, Node]:
        """Named examples for a generic path, each in the form `{"value": ...}`."""
        if self._values is None:
            return {}
        named = self._nodes[KINDS[path]]["requestBody"]["content"]["application/json"]["examples"]
        return {f"{self.info.name}, {name}": example for name, example in named.items()}

    # inside

    def _made(self, path: str, node: Node, version: str | None) -> Node:
        """An operation: of the generic one everything that `node` does not say, but for the parts of the path."""
        generic = self._generic[path]["post"]
        good = generic["responses"]["200"]  # with its headers
        return {
            **generic,
            "tags": [self.tag(version)],
            "summary": f"{generic['summary']}: {self.info.name}" + (f", version {version}" if version else ""),
            "operationId": ":".join((KINDS[path], self.info.name, *((version,) if version else ()))),
            "parameters": [one for one in generic.get("parameters", []) if one["in"] != "path"],
            **{**node, "responses": {**generic["responses"], "200": {**good, **node["responses"]["200"]}}},
        }

    def _v2(self) -> Node:
        generic = self._generic[V2]["post"]
        content: dict[str, Any] = {}
        if examples.in_json(self.info):
            properties = generic["requestBody"]["content"]["application/json"]["schema"]["properties"]
            common = {name: properties[name] for name in ("id", "parameters")}
            content["application/json"] = self._json(schemas.v2_request(self.info, common), self._v2_examples())
        content["application/octet-stream"] = generic["requestBody"]["content"]["application/octet-stream"]
        return self._node(content, schemas.v2_answer(self.info), "The outputs, rows in order.")

    def _v1(self) -> Node:
        named = {}
        if self._values is not None:
            named = {
                f"{rows} row{'s' * (rows > 1)}": examples.v1_example(self._values, rows) for rows in self._counts()
            }
        content = {"application/json": self._json(schemas.v1_request(self.info), named)}
        return self._node(content, schemas.v1_answer(self.info, self._presented(V1)), "One prediction for each row.")

    def _friendly(self) -> Node:
        content: dict[str, Any] = {}
        if examples.in_json(self.info):
            named = {}
            if self._values is not None:
                named = {"one row": examples.friendly_example(self._values)}
                named |= {
                    f"a list of {rows}": examples.friendly_example(self._values, rows)
                    for rows in self._counts()
                    if rows > 1
                }
            content["application/json"] = self._json(schemas.friendly_request(self.info), named)
        generic = self._generic[FRIENDLY]["post"]["requestBody"]["content"]
        content |= self._files(generic)
        if len(client_inputs(self.info)) == 1:
            content["application/x-npy"] = _BINARY
        content["multipart/form-data"] = generic["multipart/form-data"]
        answer = schemas.friendly_answer(self.info, self._presented(FRIENDLY))
        return self._node(content, answer, "One value for each row.")

    def _presented(self, path: str) -> schemas.Schema | None:
        """The schema of what the model makes of its outputs on this path; None: they are as they are."""
        model = self.served.model
        if model.present is None or (model.front is None and path == V1):
            return None
        return {} if model.front is None else dict(model.front.presented or {})

    def _files(self, generic: Node) -> Node:
        """The types of files that may be a row: of a model whose input is bytes, those that its example is like."""
        if not takes_files(self.served):
            return {}
        images = {media: generic[media] for media in ("image/png", "image/jpeg")}
        if self.served.model.decode is not None or self._values is None:
            return {**images, "text/plain": generic["text/plain"]}
        (value,) = self._values.values()
        while isinstance(value, list):
            value = value[0]
        if isinstance(value, str):
            return {"text/plain": {"schema": {"type": "string"}, "example": value}}
        return images

    def _v2_examples(self) -> Node:
        if self._values is None:
            return {}
        named = {
            f"{rows} row{'s' * (rows > 1)}": {"id": "1", **examples.v2_example(self.served, self._values, rows)}
            for rows in self._counts()
        }
        first = named["1 row"]
        more = {"class": "best_effort"}
        return {**named, "1 row of bulk work": {**first, "parameters": {**first.get("parameters", {}), **more}}}

    def _counts(self) -> tuple[int, ...]:
        """Numbers of rows to show."""
        row = self.served.example
        assert row is not None  # there are values
        few = sum(array.size for array in row.arrays) <= _FEW and self.info.batching.max_queue > 1
        return (1, 2) if few else (1,)

    def _json(self, schema: Node, named: Mapping[str, Any]) -> Node:
        return {"schema": schema, "examples": {name: {"value": value} for name, value in named.items()}}

    def _node(self, content: Node, answer: Node, description: str) -> Node:
        return {
            "requestBody": {"required": True, "content": content},
            "responses": {"200": {"description": description, "content": {"application/json": {"schema": answer}}}},
        }
