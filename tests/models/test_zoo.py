"""The models that ship: each loads, and digits reads any image."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from app.errors import BadRequest, StarlingError, TooLarge
from app.models.demo.digits.preprocess import read_grid
from app.models.loading import load
from app.models.repository import SETS, Repository

from .folders import try_out
from .task_models import texts

# Invariant: the benchmark models are the same in every process, leave the random state alone, and know no padding.


def shipped(name):
    state = torch.get_rng_state()
    (source,) = Repository("bench").sources(name)
    model = load(source)
    assert torch.equal(torch.get_rng_state(), state)
    return model


@pytest.mark.parametrize("name", ["echo", "mlp", "encoder", "resnet18"])
def test_they_pass_the_check(name):
    assert try_out(shipped(name)) == []


def test_lstm_is_the_one_declared_and_answers_as_the_plain_module():
    model = shipped("lstm")
    lstm = model.call.cell.layer
    assert (lstm.input_size, lstm.hidden_size, lstm.num_layers) == (512, 512, 2)
    assert model.info.inputs[0].bounds == (330,)
    ids = torch.randint(0, 10_000, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = [9, 1, 4]
    with torch.inference_mode():
        (logits,) = model.call(ids, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            torch.testing.assert_close(logits[row], model.call.cell.module(ids[row : row + 1, :length])[0])


def test_writer_knows_its_lines():
    model = shipped("writer")
    (read,) = model.front.reader.read([[texts(["A flock of", "The ferry"])]])
    mask = torch.arange(read.lengths["tokens"]) < torch.tensor(read.own_lengths["tokens"])[:, None]
    with torch.inference_mode():
        text, reason, *_ = model.call(*map(torch.from_numpy, read.arrays), mask, parameters=[{}, {}])
    assert [one.decode() for one in text] == [
        " starlings in the evening is called a murmuration.",
        " would be quicker if it did not wait, and cheaper if it waited longer.",
    ]
    assert reason.tolist() == [b"stop", b"stop"]


# Invariant: any body decodes to a grid of the training data's kind or raises a leaf a caller can see; the samples come
# out right.


FOLDER = SETS["demo"]["digits"]
SAMPLES = sorted((FOLDER / "samples").iterdir())
BOUND = 50_000_000


@pytest.fixture(scope="module")
def digits():
    (source,) = Repository("demo").sources("digits")
    return load(source)


def ask(model, body, content_type="image/png"):
    image = model.decode(content_type, body)["image"]
    assert image.shape == (8, 8)
    assert image.dtype == np.float32
    with torch.inference_mode():
        outputs = model.call(torch.from_numpy(image)[None])
    return model.present({name: value.numpy() for name, value in outputs.items()})


def encode(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def printed(digit):
    image = Image.new("RGB", (200, 280), "white")
    ImageDraw.Draw(image).text((100, 140), str(digit), fill="black", font=ImageFont.load_default(168), anchor="mm")
    return image


# images


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_comes_out_right(digits, path):
    answer = ask(digits, path.read_bytes(), "image/png" if path.suffix == ".png" else "image/jpeg")
    assert answer["label"] == int(path.stem)
    assert answer["probability"] == answer["scores"][path.stem] > 0.5
    assert list(answer["scores"]) == [str(digit) for digit in range(10)]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_every_mode_of_png_and_jpeg(digits, mode):
    image = printed(3)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    assert ask(digits, encode(image, "JPEG" if mode == "CMYK" else "PNG"))["label"] == 3


# what is no digit


@pytest.mark.parametrize(("side", "colour"), [(50, 0), (50, 128), (50, 255), (1, 7)])
def test_a_blank_image_is_named(digits, side, colour):
    with pytest.raises(BadRequest, match="image: expected a digit, got a blank image"):
        ask(digits, encode(Image.new("L", (side, side), colour)))


PNG = SAMPLES[0].read_bytes()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not an image",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"GIF89a" + b"\0" * 50,
        PNG[:10],
        PNG[:100],
        PNG[: len(PNG) // 2],
    ],
)
def test_garbage_and_files_cut_short_are_bad_requests(digits, body):
    with pytest.raises(BadRequest, match="image: expected a readable PNG or JPEG"):
        ask(digits, body)


def png_header(width, height):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [7100, 10_000, 20_000, 2**31 - 1])
def test_a_bomb_is_too_large_by_its_header(digits, side):
    with pytest.raises(TooLarge, match="image: expected at most 50000000 pixels"):
        ask(digits, png_header(side, side))


@settings(max_examples=60, database=None)
@given(data=st.data())
def test_damaged_files_raise_only_what_a_caller_may_see(data):
    body = bytearray(data.draw(st.sampled_from([path.read_bytes() for path in SAMPLES[:6]])))
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        grid = read_grid(bytes(body), BOUND)
    except StarlingError:
        return
    assert grid.shape == (8, 8)
    assert np.isfinite(grid).all()
    assert grid.min() >= 0
    assert grid.max() <= 16
