"""The words of an OpenAPI document: schemas, bodies, operations. What several paths share is a component by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Node = dict[str, Any]

TEXT: Node = {"type": "string"}
INTEGER: Node = {"type": "integer"}
ANY: Node = {"type": "object"}
BINARY: Node = {"type": "string", "format": "binary"}


def ref(kind: str, name: str) -> Node:
    return {"$ref": f"#/components/{kind}/{name}"}


def schema(name: str) -> Node:
    return ref("schemas", name)


def said(kind: str | Sequence[str], description: str) -> Node:
    """A value of this type, or these, and what it means."""
    return {"type": kind, "description": description}


def of_fields(required: Sequence[str], **properties: Node) -> Node:
    return {"type": "object", "required": list(required), "properties": properties}


def list_of(items: Node) -> Node:
    return {"type": "array", "items": items}


def json_body(of: Node, example: Any = None) -> Node:
    return {"application/json": {"schema": of} | ({} if example is None else {"example": example})}


def asked(of: Node, **examples: Any) -> Node:
    """A JSON body with named examples."""
    return {"application/json": {"schema": of, "examples": named(examples)}}


def named(examples: Mapping[str, Any]) -> Node:
    return {name.replace("_", " "): {"value": value} for name, value in examples.items()}


def events(example: str) -> Node:
    return {"text/event-stream": {"schema": TEXT, "example": example}}


def operation(
    tag: str,
    name: str,
    summary: str,
    description: str,
    content: Node,
    *,
    body: Node | None = None,
    body_required: bool = True,
    parameters: Sequence[str] = (),
    headers: Sequence[str] = (),
    failing: Node | None = None,
    error: str = "error",
) -> Node:
    """One operation. `content`: of its 200; `failing`: of a 503 that has a body of its own; `error`: of all others."""
    good: Node = {"description": "Success.", "content": content}
    if headers:
        good["headers"] = {header: ref("headers", header) for header in headers}
    found: Node = {"tags": [tag], "operationId": name, "summary": summary, "description": description}
    if parameters:
        found["parameters"] = [ref("parameters", one) for one in parameters]
    if body is not None:
        found["requestBody"] = {"required": body_required, "content": body}
    found["responses"] = {"200": good, "default": ref("responses", error)}
    if failing is not None:
        found["responses"]["503"] = {"description": "Not now, and why.", "content": failing}
    return found
