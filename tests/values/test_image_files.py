"""Image files as 8-bit RGB. Invariant: a picture is the same whatever its depth, mode, or format."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.errors import BadRequest
from app.values.image_files import as_rgb, opened_image

GRAY = np.arange(0, 240, dtype=np.uint8).reshape(12, 20)
COLOURS = np.stack([GRAY, GRAY[::-1], GRAY[:, ::-1]], axis=-1)
DEEP = GRAY.astype(np.uint16) * 257
ORIENTATION = 0x0112


def read(image: Image.Image, kind: str, **options: Any) -> Any:
    file = io.BytesIO()
    image.save(file, kind, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opened_image(file.getvalue(), 1000) as opened:
            return np.asarray(as_rgb(opened, "image"))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (GRAY, "PNG"), (GRAY, "TIFF"), (GRAY, "PPM"), (GRAY, "BMP"), (GRAY, "JPEG2000"),
        (DEEP, "PNG"), (DEEP, "TIFF"), (DEEP, "PPM"), (DEEP, "JPEG2000"), (DEEP.astype(">u2"), "TIFF"),
        (GRAY.astype(np.uint16) << 8, "PNG"),
        (GRAY.astype(np.int32), "TIFF"), (DEEP.astype(np.int32), "TIFF"),
        (GRAY.astype(np.float32), "TIFF"), (DEEP.astype(np.float32), "TIFF"), (GRAY / np.float32(255), "TIFF"),
    ],
)  # fmt: skip
def test_gray_values_of_any_depth(values: Any, kind: str) -> None:
    found = read(Image.fromarray(values), kind)
    assert (found.shape, found.dtype) == ((12, 20, 3), np.uint8)
    assert (found == GRAY[..., None]).all()


def test_deep_values_are_rotated_and_inverted_as_their_file_says() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    for values in (GRAY, DEEP):
        for kind in ("PNG", "TIFF"):
            assert (read(Image.fromarray(values), kind, exif=exif)[..., 0] == np.rot90(GRAY, -1)).all()
    white_is_zero = {262: 0}
    assert (read(Image.fromarray(255 - GRAY), "TIFF", tiffinfo=white_is_zero)[..., 0] == 255 - GRAY).all()
    file = io.BytesIO()
    Image.fromarray(DEEP).save(file, "TIFF", tiffinfo=white_is_zero)
    with opened_image(file.getvalue(), 1000) as opened:
        inverted = opened.tag_v2[262] == 0
        assert (np.asarray(as_rgb(opened, "image"))[..., 0] == (255 - GRAY if inverted else GRAY)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    made = Image.fromarray(COLOURS).convert(mode) if mode not in ("PA", "LAB") else Image.new(mode, (20, 12))
    kind = "PNG" if mode in ("1", "L", "LA", "P", "RGB", "RGBA") else "TIFF"
    found = np.asarray(as_rgb(made, "image")) if mode in ("PA", "HSV") else read(made, kind)
    assert (found == np.asarray(made.convert("RGB"))).all()


def test_transparency_is_left_out_without_a_warning() -> None:
    palette = Image.fromarray(COLOURS).convert("P", palette=Image.Palette.ADAPTIVE)
    assert (read(palette, "PNG", transparency=bytes(range(256))) == np.asarray(palette.convert("RGB"))).all()
    alpha = Image.fromarray(np.dstack([COLOURS, GRAY]))
    assert (read(alpha, "PNG") == COLOURS).all()


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_the_first_of_several_frames_counts(kind: str) -> None:
    frames = [Image.fromarray(np.full((4, 4), level, np.uint8)) for level in (20, 200)]
    options = {"lossless": True} if kind == "WEBP" else {}
    assert (read(frames[0], kind, save_all=True, append_images=frames[1:], **options) == 20).all()


@pytest.mark.parametrize("values", [[[-1.0, 2.0]], [[0.0, 70000.0]], [[np.nan, 1.0]], [[0.0, np.inf]]])
def test_an_unknown_range_is_refused(values: Any) -> None:
    with pytest.raises(BadRequest, match=r"^image: expected gray values from 0 to 1, 255 or 65535, got "):
        read(Image.fromarray(np.array(values, np.float32)), "TIFF")
