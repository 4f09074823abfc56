"""Encodes V2 answers: JSON, followed by binary tensors if the request asks for them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from app.contract import Answer, Array, ModelInfo
from app.http.codecs.base import DecodedCall
from app.http.codecs.tensors import to_json
from app.http.codecs.v2_binary import join_bytes

_SMALL_ROW = 256  # values of a row up to which a batch is encoded at once: beyond, a row's own values are the cost
_ONE_BINARY = [(0, True)]  # what a request asks for that wants the one output as bytes


def encode_v2(call: DecodedCall, answer: Answer, info: ModelInfo) -> tuple[bytes, int | None]:
    """The body of the V2 answer to `call`, and the length of its JSON part if binary tensors follow.

    Raises OutputNotJson if an output asked for as JSON holds NaN or infinity.
    """
    if call.id is None and info.plain_output:
        if call.outputs is None:
            return _encode_plain(answer, info), None
        if call.outputs == _ONE_BINARY:
            return _encode_binary(answer, info)
    tensors: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    asked = call.outputs or [(index, spec.datatype == "BF16") for index, spec in enumerate(info.outputs)]
    for index, binary in asked:
        spec = info.outputs[index]
        values = answer.outputs[index]
        tensor: dict[str, Any] = {"name": spec.name, "shape": values.shape, "datatype": spec.datatype}
        parameters: dict[str, Any] = {}
        if answer.lengths is not None and len(answer.lengths) > 1 and info.has_own_length(spec):
            # a text, because values of V2's parameters are texts, numbers and booleans
            parameters["lengths"] = ",".join(map(str, answer.lengths))
        if binary:
            chunk = join_bytes(values) if spec.datatype == "BYTES" else values.tobytes()
            parameters["binary_data_size"] = len(chunk)
            chunks.append(chunk)
        if parameters:
            tensor["parameters"] = parameters
        if not binary:
            tensor["data"] = values.ravel() if values.dtype != object else to_json(values.ravel(), spec.name)
        tensors.append(tensor)
    head: dict[str, Any] = {"model_name": info.name, "model_version": info.version, "outputs": tensors}
    if call.id is not None:
        head["id"] = call.id
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:  # orjson writes NaN as null; to search the text costs less than to check all values
        for index, binary in asked:
            if not binary:
                to_json(answer.outputs[index], info.outputs[index].name)
    if chunks:
        return b"".join([text, *chunks]), len(text)
    return text, None


def _encode_plain(answer: Answer, info: ModelInfo) -> bytes:
    """The answer with one output as JSON and no options. Its constant parts are written once per model and shape."""
    spec = info.outputs[0]
    batch = answer.finished
    if batch is not None and spec.bounded and spec.count <= _SMALL_ROW:
        texts = batch.texts
        if texts is None:
            texts = batch.texts = _texts(batch.arrays[0])
        if texts:
            shape = (1, *batch.arrays[0].shape[1:])
            return b"%s%s]}]}" % (_head(info.name, info.version, spec.name, spec.datatype, shape), texts[answer.row])
    values = answer.outputs[0]
    data = orjson.dumps(values.ravel(), option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in data:  # see `encode_v2`
        to_json(values, spec.name)
    return b"%s%s}]}" % (_head(info.name, info.version, spec.name, spec.datatype, values.shape), data[1:])


def _texts(values: Array) -> list[bytes]:
    """The numbers of each row of a batch as JSON without brackets; nothing where one of them is none.

    To encode all rows at once takes a third of the time, and all answers of a batch are encoded now anyway.
    """
    text = orjson.dumps(values.reshape(len(values), -1), option=orjson.OPT_SERIALIZE_NUMPY)
    return [] if b"null" in text else text[2:-2].split(b"],[")


def _encode_binary(answer: Answer, info: ModelInfo) -> tuple[bytes, int]:
    """The answer with one output as bytes and no other options."""
    spec = info.outputs[0]
    values = answer.outputs[0]
    head = _binary_head(info.name, info.version, spec.name, spec.datatype, values.shape, values.nbytes)
    return head + values.tobytes(), len(head)


@lru_cache(maxsize=1024)
def _head(model: str, version: str, output: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """The text of an answer with one output, up to its first number."""
    tensor = {"name": output, "shape": shape, "datatype": datatype}
    text = orjson.dumps({"model_name": model, "model_version": version, "outputs": [tensor]})
    return text.removesuffix(b"}]}") + b',"data":['


@lru_cache(maxsize=1024)
def _binary_head(model: str, version: str, output: str, datatype: str, shape: tuple[int, ...], size: int) -> bytes:
    """The JSON of an answer with one output, as `size` bytes behind it."""
    parameters = {"binary_data_size": size}
    tensor = {"name": output, "shape": shape, "datatype": datatype, "parameters": parameters}
    return orjson.dumps({"model_name": model, "model_version": version, "outputs": [tensor]})
