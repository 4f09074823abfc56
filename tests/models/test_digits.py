"""Invariant: any body decodes to a grid of the training data's kind or raises a leaf a caller can see; the samples
come out right.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from app.errors import BadRequest, StarlingError, TooLarge, UnsupportedMedia
from app.models.demo.digits import draw
from app.models.demo.digits.preprocess import read_grid, to_grid
from app.models.repository import SETS, Repository
from app.models.sources.loaders import load

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


def drawn(digit, size=(100, 140), paper=(255, 255, 255), ink=(0, 0, 0), pen=0.1):
    look = draw.Look(size, (0.2, 0.15, 0.75, 0.85), pen, paper, ink, "")
    return draw.draw(draw.STROKES[digit], look, np.random.default_rng(1))


# the network


def test_outputs_are_labels_and_probabilities(digits):
    grids = torch.rand(5, 8, 8) * 16
    with torch.inference_mode():
        outputs = digits.call(grids)
        alone = digits.call(grids[2:3])
    assert outputs["label"].dtype == torch.int64
    assert outputs["label"].shape == (5,)
    assert torch.allclose(outputs["scores"].sum(1), torch.ones(5))
    assert torch.equal(outputs["scores"].argmax(1), outputs["label"])
    assert torch.allclose(alone["scores"][0], outputs["scores"][2], atol=1e-5)


def test_the_held_out_fifth_is_read(digits):
    pytest.importorskip("sklearn")
    from app.models.demo.digits.train import split

    _, _, images, labels = split()
    with torch.inference_mode():
        right = (digits.call(torch.from_numpy(images))["label"].numpy() == labels).mean()
    assert len(labels) == 360
    assert right >= 0.97
    assert f"{right:.2%}".replace("%", " %") in (FOLDER / "README.md").read_text()


def test_what_is_committed_is_small():
    assert (FOLDER / "weights.safetensors").stat().st_size < 300_000
    assert sum(path.stat().st_size for path in SAMPLES) < 200_000


# images


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_comes_out_right(digits, path):
    answer = ask(digits, path.read_bytes(), "image/png" if path.suffix == ".png" else "image/jpeg")
    assert answer["label"] == int(path.stem)
    assert answer["probability"] == answer["scores"][path.stem] > 0.5
    assert list(answer["scores"]) == [str(digit) for digit in range(10)]


def test_the_samples_are_one_per_digit_and_varied():
    assert sorted(int(path.stem) for path in SAMPLES) == list(range(10))
    assert {path.suffix for path in SAMPLES} == {".png", ".jpg"}


def test_strokes_with_other_pens_and_hands(digits):
    random = np.random.default_rng(7)
    right = total = 0
    for digit, strokes in draw.STROKES.items():
        for _ in range(8):
            box = (0.1, 0.1, random.uniform(0.5, 0.9), 0.9)
            look = draw.Look((90, 110), box, random.uniform(0.04, 0.15), (240, 240, 230), (50, 40, 90), "", 0.1, 4)
            image = draw.draw(strokes, look, random, shake=0.025)
            right += ask(digits, encode(image, "JPEG"))["label"] == digit
            total += 1
    assert right / total > 0.93


@pytest.mark.parametrize("digit", [2, 3, 4, 5, 8, 9])
def test_a_printed_digit(digits, digit):
    image = Image.new("L", (200, 200), 255)
    ImageDraw.Draw(image).text((60, 40), str(digit), fill=0, font=ImageFont.load_default(100))
    assert ask(digits, encode(image))["label"] == digit


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
@pytest.mark.parametrize("digit", [3, 7])
def test_every_mode_of_png_and_jpeg(digits, mode, digit):
    image = drawn(digit)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    assert ask(digits, encode(image, "JPEG" if mode == "CMYK" else "PNG"))["label"] == digit


def test_a_transparent_image_lies_on_white(digits):
    ink = drawn(4).convert("L").point(lambda value: 255 - value)
    image = Image.new("RGBA", ink.size, (0, 0, 0, 0))
    image.putalpha(ink)
    assert ask(digits, encode(image))["label"] == 4
    white = Image.new("RGBA", ink.size, (255, 255, 255, 0))
    white.putalpha(ink)
    with pytest.raises(BadRequest, match="blank image"):
        ask(digits, encode(white))


def test_a_photo_lying_on_its_side_is_turned(digits):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    image = drawn(7, (300, 400)).transpose(Image.Transpose.ROTATE_90)
    for kind in ("JPEG", "PNG"):
        assert ask(digits, encode(image, kind, exif=exif))["label"] == 7


def test_size_and_place_hardly_matter():
    grids = [read_grid(encode(drawn(5, size)), BOUND) for size in ((60, 84), (400, 560), (2000, 2800))]
    for grid in grids[1:]:
        assert np.abs(grid - grids[1]).max() < 2.5


def test_light_on_dark_is_dark_on_light():
    light = read_grid(encode(drawn(2, paper=(0, 0, 0), ink=(255, 255, 255))), BOUND)
    dark = read_grid(encode(drawn(2)), BOUND)
    assert np.abs(light - dark).max() < 0.5


def test_a_thin_pen_is_thickened_and_values_stay_in_range():
    thin = read_grid(encode(drawn(3, pen=0.01)), BOUND)
    assert thin.max() == 16
    assert thin.min() >= 0
    assert thin.mean() / 16 > 0.2


def test_a_speck_does_not_move_the_crop():
    ink = np.zeros((200, 200), np.float32)
    ink[60:140, 70:130] = 1
    clean = to_grid(ink.copy())
    ink[5, 5] = 1
    assert np.array_equal(to_grid(ink), clean)


# what is no digit


@pytest.mark.parametrize("colour", [0, 128, 255])
def test_a_blank_image_is_named(digits, colour):
    with pytest.raises(BadRequest, match="image: expected a digit, got a blank image"):
        ask(digits, encode(Image.new("L", (50, 50), colour)))


def test_a_single_pixel_is_blank(digits):
    with pytest.raises(BadRequest, match="blank"):
        ask(digits, encode(Image.new("L", (1, 1), 7)))


@pytest.mark.parametrize(
    "body", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a" + b"\0" * 50]
)
def test_garbage_is_a_bad_request(digits, body):
    with pytest.raises(BadRequest, match="image: expected a readable PNG or JPEG"):
        ask(digits, body)


@pytest.mark.parametrize("path", SAMPLES[:4], ids=lambda path: path.name)
def test_a_file_cut_short_is_a_bad_request(digits, path):
    body = path.read_bytes()
    for length in (10, 100, len(body) // 2):
        with pytest.raises(BadRequest, match="image: expected a readable PNG or JPEG"):
            ask(digits, body[:length])


def test_another_format_is_a_bad_request_and_another_type_unsupported(digits):
    with pytest.raises(BadRequest):
        ask(digits, encode(drawn(1), "BMP"))
    for kind in ("image/gif", "text/plain", "application/json"):
        with pytest.raises(UnsupportedMedia, match="expected image/png or image/jpeg"):
            ask(digits, encode(drawn(1)), kind)
    for kind in ("IMAGE/PNG; q=1", "application/octet-stream", ""):
        assert ask(digits, encode(drawn(1)), kind)["label"] == 1


def png_header(width, height):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [7100, 10_000, 20_000, 2**31 - 1])
def test_a_bomb_is_too_large_by_its_header(digits, side):
    with pytest.raises(TooLarge, match="image: expected at most 50000000 pixels"):
        ask(digits, png_header(side, side))


def test_the_bound_is_an_attribute(digits):
    (source,) = Repository("demo").sources("digits")
    small = load(source, limits={"max_pixels": 99})
    with pytest.raises(TooLarge, match="expected at most 99 pixels, got 100 x 140"):
        ask(small, encode(drawn(1)))
    assert ask(digits, encode(drawn(1)))["label"] == 1


@settings(max_examples=60, deadline=None, database=None)
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


def test_present_takes_a_row_with_or_without_its_dimension(digits):
    scores = np.full(10, 0.05, np.float32)
    scores[3] = 0.55
    bare = digits.present({"label": np.array(3), "scores": scores})
    assert bare == digits.present({"label": np.array([3]), "scores": scores[None]})
    assert bare["label"] == 3
    assert bare["probability"] == pytest.approx(0.55)


def test_the_samples_are_what_the_script_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["draw", "--out", str(tmp_path)])
    draw.main()
    for path in SAMPLES:
        # JPEG coders differ a little between releases
        one, two = (np.asarray(Image.open(file).convert("L"), np.float32) for file in (path, tmp_path / path.name))
        assert one.shape == two.shape
        assert np.abs(one - two).mean() < 2, Path(path).name
