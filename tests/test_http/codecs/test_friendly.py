"""The friendly route's functions: what a body means as rows, and who is told what is wrong."""

from __future__ import annotations

import base64
import gc
import io
import json
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.errors import BadRequest, TooLarge, UnsupportedMedia
from app.http.codecs import uploads
from app.http.codecs.base import DecodedCall
from app.http.codecs.rows import Friendly

from ..catalog import FakeServed, served, spec
from ..echo import LIMITS
from .models import IMAGE, SCALAR, SEQUENCES, STRING, VECTOR, Y, refused

TABLE = served("table", (spec("city", "BYTES"), spec("area", "FP64")), Y)
HALF = served("half", (spec("x", "FP16", 2),), Y)
BARE = served("bare", (spec("text", "BYTES"),), Y)
JSON = "application/json"
NPY = "application/x-npy"


def decode(model: FakeServed, content_type: str | None, body: bytes, max_json: int = 1 << 20) -> DecodedCall:
    headers = {} if content_type is None else {b"content-type": content_type.encode()}
    return Friendly().decode(model, headers, body, replace(LIMITS, json=max_json))


@pytest.fixture
def at_most_19_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_PIXELS", 19)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(array), allow_pickle=False)
    return out.getvalue()


def picture(kind: str = "PNG", size: tuple[int, int] = (5, 4)) -> bytes:
    out = io.BytesIO()
    Image.new("L", size, 7).save(out, kind)
    return out.getvalue()


def multipart(*parts: tuple[str, str | None, bytes]) -> tuple[str, bytes]:
    """(disposition parameters, content type, data) of each part, as curl -F sends them."""
    lines = []
    for disposition, kind, data in parts:
        header = f"Content-Disposition: form-data; {disposition}\r\n" + (f"Content-Type: {kind}\r\n" if kind else "")
        lines.append(b"--frontier\r\n" + header.encode() + b"\r\n" + data + b"\r\n")
    return "multipart/form-data; boundary=frontier", b"".join(lines) + b"--frontier--\r\n"


def sees_pixels(content_type: str, body: bytes) -> dict[str, Any]:
    """A decoder that takes images and text, and fails as decoders do."""
    if content_type == "text/plain":
        return {"x": np.full((2, 3), len(body), np.int64)}
    with Image.open(io.BytesIO(body)) as image:
        return {"x": np.full((2, 3), image.size[0])}


SEEING = served("seeing", (spec("x", "UINT8", 2, 3),), Y, decode=sees_pixels)


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + 1) + text.encode() + b"\n"


@pytest.mark.parametrize(
    ("model", "kind", "body", "single", "arrays"),
    [
        (VECTOR, JSON, b"[1, 2, 3, 4]", True, [[[1, 2, 3, 4]]]),
        (IMAGE, JSON, b"[[1, 2, 3], [4, 5, 6]]", True, [[[[1, 2, 3], [4, 5, 6]]]]),
        (IMAGE, JSON, b"[1, 2, 3, 4, 5, 6]", True, [[[[1, 2, 3], [4, 5, 6]]]]),
        (IMAGE, JSON, b"[[[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]]", False, [[[[1, 2, 3], [4, 5, 6]]] * 2]),
        (SCALAR, JSON, b"5", True, [[5]]),
        (SCALAR, JSON, b"[5, 6]", False, [[5, 6]]),
        (STRING, JSON, b'"hello"', True, [[[b"hello"]]]),
        (SEQUENCES, JSON, b'{"mask": [1, 1, 1], "ids": [5, 6, 7]}', True, [[[5, 6, 7]], [[1, 1, 1]]]),
        (SEQUENCES, JSON, b'{"ids": [[5, 6], [7, 8]], "mask": [[1, 1], [1, 0]]}', False,
         [[[5, 6], [7, 8]], [[1, 1], [1, 0]]]),
        (TABLE, JSON, b'[{"city": "Bonn", "area": 70.5}, {"area": 9, "city": "Ulm"}]', False,
         [[b"Bonn", b"Ulm"], [70.5, 9.0]]),
        (TABLE, JSON, b'{"city": ["Bonn", "Ulm"], "area": [70.5, 9]}', False, [[b"Bonn", b"Ulm"], [70.5, 9.0]]),
        (BARE, JSON, b'{"b64": "/wA="}', True, [[b"\xff\0"]]),
        (BARE, JSON, b'{"text": {"b64": "/wA="}}', True, [[b"\xff\0"]]),
        (BARE, JSON, b'["a", {"b64": "/wA="}]', False, [[b"a", b"\xff\0"]]),
        (VECTOR, NPY, npy(np.arange(4, dtype=np.float64)), True, [[[0, 1, 2, 3]]]),
        (VECTOR, NPY, npy(np.arange(8, dtype=">f4").reshape(2, 4)), False, [[[0, 1, 2, 3], [4, 5, 6, 7]]]),
        (VECTOR, NPY, npy([True, False, True, True]), True, [[[1, 0, 1, 1]]]),
        (IMAGE, NPY, npy(np.asfortranarray(np.arange(6).reshape(2, 3))), True, [[[[0, 1, 2], [3, 4, 5]]]]),
        (SCALAR, NPY, npy(np.int64(3)), True, [[3]]),
        *((model, kind, b"the \xff cat", True, [array])  # a file where nothing decodes it
          for model, array in ((STRING, [[b"the \xff cat"]]), (BARE, [b"the \xff cat"]))
          for kind in ("text/plain; charset=utf-8", None)),
    ],
)  # fmt: skip
def test_rows(model: FakeServed, kind: str | None, body: bytes, single: bool, arrays: list[Any]) -> None:
    call = decode(model, kind, body)
    assert (call.rows, call.single) == (len(arrays[0]), single)
    assert [array.tolist() for array in call.arrays] == arrays
    assert [array.dtype for array in call.arrays] == [tensor.dtype for tensor in model.info.inputs]


def test_parameters_are_beside_the_inputs() -> None:
    for given, taken in ((b'{"gain": 2, "mode": null}', {"gain": 2}), (b"{}", None), (b"null", None)):
        call = decode(VECTOR, JSON, b'{"x": [1, 2, 3, 4], "parameters": %s}' % given)
        assert (call.rows, call.single, call.parameters) == (1, True, taken)
    own = served("m", (spec("parameters", "FP32", 2),), Y)
    assert decode(own, JSON, b'{"parameters": [1, 2]}').parameters is None
    own = served("m", (spec("parameters", "BYTES"),), Y)
    assert decode(own, JSON, b'{"parameters": {"b64": "YQ=="}}').arrays[0].tolist() == [b"a"]


@pytest.mark.parametrize(
    ("model", "kind", "body", "words"),
    [
        (VECTOR, JSON, b"[1, 2, 3]", ["body:", "[4] for one row", "[3]"]),
        (VECTOR, JSON, b"[1, 2, 3, true]", ["body:", "boolean"]),
        (TABLE, JSON, b'[{"city": "Bonn", "area": NaN}]',
         ["body[0].area:", "NaN is not JSON; send a number, or the tensor as binary"]),
        (TABLE, JSON, b'[{"city": "Bonn", "area": 1}, {"city": "Bonn"}]', ["body[1]:", "got one with ['city']"]),
        (TABLE, JSON, b'[{"city": 5, "area": 1}]', ["body[].city:", "expected strings, got the number 5"]),
        (TABLE, JSON, b'[{"city": "Bonn", "area": true}]', ["body[].area:", "got a boolean"]),
        (TABLE, JSON, b'[{"city": "Bonn", "area": null}]', ["body[].area:", "got null"]),
        (VECTOR, JSON, b"[" * 3000 + b"]" * 3000, ["body:", "nested too deeply"]),
        (VECTOR, JSON, b"[[1,2,3,4],[1,2,3],[1,2,3,4,5]]", ["body[1]:", "got 3"]),
        (VECTOR, JSON, b'{"x": [1, 2, 3, 4], "z": 1}', ["body:", "got one with ['x', 'z']"]),
        (SCALAR, JSON, b"[]", ["body:", "at least 1 row"]),
        (SEQUENCES, JSON, b"[1, 2]", ["body:", "'ids', 'mask'"]),
        (SEQUENCES, JSON, b'{"ids": [1, 2], "mask": [1]}',
         ["body:", "axis 'tokens' of row 0 has length 1 in input 'mask', but 2"]),
        (SEQUENCES, JSON, b'{"ids": [1, 2], "mask": [[1, 1], [1, 1]]}', ["body:", "{'ids': 1, 'mask': 2}"]),
        (SEQUENCES, JSON, b'{"ids": [1,2,3,4,5,6,7,8,9], "mask": [1]}', ["body.ids:", "tokens <= 8"]),
        (BARE, JSON, b'{"b64": 7}', ["body: b64: expected a base64 string"]),
        (VECTOR, NPY, b"\x93NUMPY", ["not a valid .npy"]),
        (VECTOR, NPY, header("(4,)") + b"\0" * 15, ["16 bytes", "got 15"]),
        (VECTOR, NPY, header("(1000000000000, 4)"), ["got 0"]),
        (VECTOR, NPY, header("(-1, -4)") + b"\0" * 16, ["at least 0"]),
        (VECTOR, NPY, header("(4,)", "'|O'") + b"\0" * 32, ["dtype object"]),
        (VECTOR, NPY, header("(4,)", "'|S0'"), ["dtype"]),
        (VECTOR, NPY, header("-" * 9000 + "1"), ["not a valid .npy"]),
        (VECTOR, NPY, npy(["1", "2", "3", "4"]), ["FP32"]),
        (IMAGE, NPY, npy(np.full((2, 3), 256)), ["range", "UINT8"]),
        (IMAGE, NPY, npy(np.full((2, 3), 1.0)), ["UINT8", "float64"]),
        (HALF, NPY, npy([1e6, 0.0]), ["range", "FP16"]),
        (SEQUENCES, NPY, npy([1, 2]), ["'ids', 'mask'"]),
        (BARE, "image/png", b"the cat", ["expected a readable"]),
    ],
)  # fmt: skip
def test_what_does_not_fit(model: FakeServed, kind: str, body: bytes, words: list[str]) -> None:
    refused(["body", *words], decode, model, kind, body)


UNSPECIFIC = pytest.mark.parametrize("unspecific", [None, "application/x-www-form-urlencoded"])


@UNSPECIFIC
@pytest.mark.parametrize(
    ("model", "body", "first"),
    [
        (SEEING, picture("PNG"), 5), (SEEING, picture("JPEG"), 5), (SEEING, npy(np.ones((2, 3), np.uint8)), 1),
        (SEEING, b" \n[[1,2,3],[4,5,6]]", 1), (STRING, b'"hello"', b"hello"), (SCALAR, b"-5", -5),
    ],
    ids=["png", "jpeg", "npy", "a list", "a text", "a number"],
)  # fmt: skip
def test_an_unspecific_type_is_sniffed(unspecific: str | None, model: FakeServed, body: bytes, first: object) -> None:
    call = decode(model, unspecific, body)
    assert (call.rows, call.arrays[0].ravel()[0]) == (1, first)


@UNSPECIFIC
def test_what_no_type_fits(unspecific: str | None) -> None:
    with pytest.raises(BadRequest, match="body: cannot identify image"):
        decode(SEEING, unspecific, b"the cat")
    with pytest.raises(UnsupportedMedia, match=r"application/json, .* for model vector, which"):
        decode(VECTOR, unspecific, b"the cat")
    with pytest.raises(UnsupportedMedia, match="which decodes no files, got nothing"):
        decode(VECTOR, unspecific, b"")
    with pytest.raises(UnsupportedMedia, match=r"expected application/json.* for .*, got content type 'text/plain'"):
        decode(SEQUENCES, "text/plain", b"x")
    with pytest.raises(UnsupportedMedia):
        decode(served("pair", (spec("text", "BYTES", 2),), Y), unspecific, b"the cat")


def test_a_form_is_no_text() -> None:
    """As `requests.post(url, data={"text": ...})` sends it; `curl -d` says the same of any text."""
    form = "application/x-www-form-urlencoded"
    for body in (b"text=the+cat", b"input_ids=%C3%A9&x=1"):
        with pytest.raises(UnsupportedMedia, match="body: expected JSON, a file or text/plain, got a form"):
            decode(BARE, form, body)
        assert decode(BARE, "text/plain", body).arrays[0].tolist() == [body]
    for body in (b"the cat", b"a cat = x", b"=", b"BM=\0\0\0"):
        assert decode(BARE, form, body).arrays[0].tolist() == [body]


def test_json_may_be_called_plain_text_where_no_text_is_read() -> None:
    """As `fetch(url, {method: "POST", body: JSON.stringify(value)})` calls it."""
    kind = "text/plain;charset=UTF-8"
    assert decode(VECTOR, kind, b"[1, 2, 3, 4]").rows == 1
    with pytest.raises(BadRequest, match="not valid JSON"):
        decode(VECTOR, kind, b"[1, 2")
    with pytest.raises(TooLarge, match="expected at most 9 bytes of JSON"):
        decode(VECTOR, kind, b"[1, 2, 3, 4]", max_json=9)
    assert decode(STRING, kind, b"[1]").arrays[0].tolist() == [[b"[1]"]]


def test_a_decoder_is_told_what_is_known_of_a_file() -> None:
    kinds: list[str] = []

    def note(content_type: str, body: bytes) -> dict[str, Any]:
        kinds.append(content_type)
        return {"x": np.zeros(4)}

    model = served("m", VECTOR.info.inputs, Y, decode=note)
    octets = "application/octet-stream"
    decode(model, None, b"the cat")
    decode(model, octets, b"the cat")
    decode(model, *multipart((FILE.format("a.csv"), octets, b"the cat"), (FILE.format("a"), octets, b"the cat")))
    assert kinds == ["", octets, "text/csv", octets]


@pytest.mark.usefixtures("at_most_19_pixels")
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    "encode", [base64.b64encode, base64.encodebytes, lambda file: base64.b64encode(file).strip(b"=")]
)
def test_files_as_base64_are_decoded(encode: Callable[[bytes], bytes], listed: bool) -> None:
    """In lines, as MIME has it, and without padding, too: TensorFlow Serving takes both."""

    def sent(file: bytes) -> bytes:
        one = {"b64": encode(file + b" " * (-len(file) % 3 + 1)).decode()}
        return json.dumps([one] if listed else one).encode()

    call = decode(SEEING, JSON, sent(picture(size=(5, 3))))
    assert (call.rows, call.single, call.arrays[0][0, 0, 0]) == (1, not listed, 5)
    with pytest.raises(TooLarge, match=r"body(\[0\])?: expected at most 19 pixels"):
        decode(SEEING, JSON, sent(picture()))
    with pytest.raises(BadRequest, match="body: expected shape"):
        decode(VECTOR, JSON, sent(picture()))


@pytest.mark.usefixtures("at_most_19_pixels")
@pytest.mark.parametrize("kind", ["image/png", "text/plain", None])
def test_pixels_are_counted_before_decoding(kind: str | None) -> None:
    model = served("m", IMAGE.info.inputs, Y, decode=lambda *_: pytest.fail("decoded"))
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    bomb += struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    for file, found in ((bomb, "more than can be opened safely"), (picture(), "5 x 4")):
        with pytest.raises(TooLarge, match=f"at most 19 pixels, got {found}"):
            decode(model, kind, file)
    with pytest.raises(BadRequest, match="expected a readable"):
        decode(model, "image/png", b"\x89PNG\r\n\x1a\nrubbish")


FILE = 'name="file"; filename="{}"'


def test_the_files_of_an_upload_are_rows() -> None:
    kind, body = multipart(
        (FILE.format("a.png"), "image/png", picture()),
        (FILE.format("b.txt"), "text/plain", b"seven c"),
        (FILE.format("c.json"), JSON, b"[[[1,2,3],[4,5,6]], [[7,7,7],[8,8,8]]]"),
        (FILE.format("d.npy"), None, npy(np.full((2, 3), 9))),
    )
    call = decode(SEEING, kind, body)
    assert (call.rows, call.single, call.arrays[0].dtype) == (5, False, np.uint8)
    assert call.arrays[0][:, 1, 2].tolist() == [5, 7, 6, 8, 9]


def test_a_file_may_be_named_as_old_clients_name_it() -> None:
    """urllib3 1.x, which requests used, so names files whose names are not ASCII."""
    held = b"\r\nContent-Disposition: form-data; filename*=utf-8''x\r\n"  # of a file, and stays as it is
    kind, body = multipart(
        ("name=\"file\"; filename*=utf-8''b%C3%BC.txt", None, b"seven" + held),
        ("filename*=utf-8''a; name=b", None, b""),
    )
    first, second = uploads.open_uploads(kind, body)
    assert (first.media, first.data, first.field) == ("text/plain", b"seven" + held, "part 'file' (file 1 of 2)")
    assert second.field == "part 'b' (file 2 of 2)"


CROP, NOTE = ('name="crop"', None, "7 ü".encode()), ('name="note"', "text/plain", b"")


def test_fields_of_a_form_reach_the_decode_that_takes_them() -> None:
    def look(media: str, data: bytes, fields: dict[str, str]) -> dict[str, Any]:
        seen.append((data, fields))
        return {"x": np.zeros((2, 3), np.uint8)}

    seen: list[tuple[bytes, dict[str, str]]] = []
    model = replace(SEEING, model=replace(SEEING.model, decode=look, takes_fields=True))
    files = [(FILE.format(name), "text/plain", name.encode()) for name in "ab"]
    decode(model, *multipart(CROP, *files, NOTE))
    assert seen == [(name.encode(), {"crop": "7 ü", "note": ""}) for name in "ab"]
    seen.clear()
    decode(model, "text/plain", b"c")
    assert seen == [(b"c", {})]
    with pytest.raises(BadRequest, match="part 'crop': expected files alone, since no"):
        decode(model, *multipart(CROP, *files, (FILE.format("x"), JSON, b"[1]")))


@pytest.mark.parametrize("cut", [3, 16, 60])
def test_an_upload_that_is_cut_short_is_refused_whole(cut: int) -> None:
    """A second file that did not arrive in full must not be dropped beside a first that did."""
    kind, body = multipart(*[(FILE.format(name), NPY, npy(np.zeros(4))) for name in "ab"])
    assert decode(VECTOR, kind, body).rows == 2
    with pytest.raises(BadRequest, match="multipart/form-data"):
        decode(VECTOR, kind, body[:-cut])


def test_multipart_parts_are_sniffed_too() -> None:
    kind, body = multipart(('name="file"; filename="x.npy"', "application/octet-stream", npy(np.ones((2, 3), int))))
    assert decode(IMAGE, kind, body).rows == 1
    kind, body = multipart(('name="file"; filename="x.json"', None, b"[1,2,3,4,5]"))
    with pytest.raises(TooLarge, match=r"part 'file': expected at most 5 bytes of JSON "):
        decode(IMAGE, kind, body, max_json=5)
    texts = (b'{"ids": [1, 2], "mask": [1, 0]}', b'{"ids": [1], "mask": [1]}')
    kind, body = multipart(*[(FILE.format("a"), JSON, text) for text in texts])
    call = decode(SEQUENCES, kind, body)
    assert (call.lengths, call.own_lengths) == ({"tokens": 2}, {"tokens": [2, 1]})
    kind, body = multipart(*[(FILE.format(n), JSON, b"[1,2,3,4]") for n in "ab"])
    assert decode(VECTOR, kind, body, max_json=18).rows == 2
    with pytest.raises(TooLarge, match=r"body: expected at most 17 bytes of JSON .*, got 18"):
        decode(VECTOR, kind, body, max_json=17)


FRONTIER = "multipart/form-data; boundary=frontier"
PNG_PART = (FILE.format("a.png"), "image/png", b"x" * 99)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("multipart/form-data", b"--frontier\r\n", "multipart/form-data needs a boundary"),
        (f"multipart/form-data; boundary={'x' * 300}", b"--frontier\r\n", "malformed .*: Boundary length"),
        ("multipart/form-data" + "; a=b" * 300, b"", "Content-Type: expected at most 1024 characters, got 1519"),
        (FRONTIER, b"", "multipart|upload"),
        (FRONTIER, multipart(CROP)[1], "expected a multipart/form-data upload with a file part"),
        (FRONTIER, multipart(PNG_PART)[1][:80], "ends before its closing boundary|malformed"),
        (FRONTIER, multipart(*[CROP] * 100)[1], "expected at most 64 parts"),
        (*multipart(CROP, PNG_PART),
         "part 'crop': expected files alone, since no decode of"),
        (*multipart(CROP, CROP, PNG_PART), "part 'crop': expected one field of that name, got several"),
        (*multipart(('name="crop"', None, b"\xff"), PNG_PART),
         "part 'crop': expected a file name, or a field of UTF-8"),
    ],
)  # fmt: skip
def test_uploads_that_are_refused(kind: str, body: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        decode(SEEING, kind, body)


def test_a_file_of_a_form_may_be_base64() -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\nContent-Transfer-Encoding: base64\r\n\r\n'
    kind, end = "multipart/form-data; boundary=x", b"\r\n--x--\r\n"
    (file,) = uploads.open_uploads(kind, head + b"iVBORw==" + end)
    assert file.data == b"\x89PNG"
    with pytest.raises(BadRequest, match="malformed multipart"):
        uploads.open_uploads(kind, head + b"iVBORw" + end)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("end", [b"\r\n--x--\r\n", b"\r\n--y--\r\n"], ids=["read", "refused"])
def test_the_files_of_a_form_go_with_its_request(end: bytes) -> None:
    """Not with the next garbage collection, up to which many large bodies may come."""
    head = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
    gc.collect()
    with suppress(BadRequest):
        uploads.open_uploads("multipart/form-data; boundary=x", head + b"data" + end)
    assert not [one for one in gc.get_objects() if isinstance(one, uploads.File)]
