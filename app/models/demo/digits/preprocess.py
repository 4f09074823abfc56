"""From an image file to the 8 x 8 grid that the network reads, made to look like its training data.

Those are digits written on paper, cut out, scaled to the full height and counted per cell: 0 is blank, 16 all ink, and
about a third of the area is ink whatever the pen. So: find the ink, cut it out, pad to a square, thicken thin strokes,
reduce by area. Training passes its augmented images through `to_grid`, so that both see the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter, ImageOps

from app.errors import BadRequest
from app.values.image_files import opened_image

Grid = npt.NDArray[np.float32]

SIDE = 8
INK_MAX = 16.0
_WORK_SIDE = 512  # larger images are reduced to this first: no digit has finer strokes than that shows
_SQUARE_SIDE = 64  # where strokes are thickened: 8 pixels a cell
_LEAST_CONTRAST = 16 / 255  # less than this between paper and ink is noise of a camera, not writing
_LEAST_COVERAGE = 0.22  # the thinnest tenth of the training digits cover this much of their square
_MOST_THICKENING = 10  # rounds of one pixel each side; the pen is then a third of the square


def read_grid(body: bytes, max_pixels: int) -> Grid:
    """The digit in a PNG or JPEG file as float32 [8, 8] with values 0..16, ink high.

    Raises TooLarge when the image's header tells more than `max_pixels`, before any pixel is decoded, and BadRequest
    when the body is not such an image, is cut short, or shows nothing.
    """
    return to_grid(find_ink(read_gray(body, max_pixels)))


def read_gray(body: bytes, max_pixels: int) -> Grid:
    """The image as brightness 0..1, on white where it is transparent, its longer side at most 512 pixels."""
    with opened_image(body, max_pixels, ("PNG", "JPEG")) as file:
        # A JPEG can be decoded at a fraction of its size, at a fraction of the memory.
        file.draft("L", (_WORK_SIDE, _WORK_SIDE))
        return _flatten(ImageOps.exif_transpose(_reduce(file)))


def find_ink(gray: Grid) -> Grid:
    """Brightness 0..1 to ink 0..1: dark on light and light on dark come out alike, noise and shading as 0.

    The paper is what most of the rim shows. Raises BadRequest when nothing stands out from it.
    """
    rim = np.concatenate([gray[0], gray[-1], gray[:, 0], gray[:, -1]])
    paper = float(np.median(rim))
    darker, lighter = paper - float(gray.min()), float(gray.max()) - paper
    contrast = max(darker, lighter)
    if contrast < _LEAST_CONTRAST:
        raise BadRequest("image: expected a digit, got a blank image")
    ink = (paper - gray if darker >= lighter else gray - paper) / contrast
    return np.asarray(np.clip((ink - 0.3) / 0.4, 0, 1), np.float32)


def to_grid(ink: Grid) -> Grid:
    """Ink 0..1 of any size to the network's grid: cut out, squared, thickened if thin, reduced by area."""
    top, bottom = _span(ink.sum(axis=1))
    left, right = _span(ink.sum(axis=0))
    digit = ink[top:bottom, left:right]
    side = max(digit.shape)
    square = np.pad(digit, [((side - length) // 2, (side - length + 1) // 2) for length in digit.shape])
    image = Image.fromarray(np.rint(square * 255).astype(np.uint8)).resize(
        (_SQUARE_SIDE, _SQUARE_SIDE), Image.Resampling.BOX
    )
    for _ in range(_MOST_THICKENING):
        if np.asarray(image).mean() / 255 >= _LEAST_COVERAGE:
            break
        image = image.filter(ImageFilter.MaxFilter(3))
    grid = np.asarray(image, np.float32).reshape(SIDE, SIDE, SIDE, SIDE).mean(axis=(1, 3))
    return np.asarray(grid * (INK_MAX / max(float(grid.max()), 1.0)), np.float32)


def _span(profile: Grid) -> tuple[int, int]:
    """Where a row or column profile has ink. A fiftieth of the fullest line is a speck of dust, not a stroke."""
    inked = np.flatnonzero(profile > profile.max() / 50)
    return int(inked[0]), int(inked[-1]) + 1


def _reduce(image: Image.Image) -> Image.Image:
    """Average blocks until the longer side fits. Colours are weighted by their opacity on the way."""
    info: dict[Any, Any] = dict(image.info)  # the EXIF data, which not every step below hands on
    if image.mode.startswith("I"):  # 16 bits of gray
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.has_transparency_data:
        # a conversion copies even where the mode is the same already, and this may be a large image
        image = (image if image.mode == "RGBA" else image.convert("RGBA")).convert("RGBa")
    else:
        image = image.convert("L")
    factor = -(-max(image.size) // _WORK_SIDE)
    if factor > 1:
        image = image.reduce(factor)
    image.info = info
    return image


def _flatten(image: Image.Image) -> Grid:
    """A small image of mode L or RGBa (colours already multiplied by opacity) as brightness on white paper."""
    pixels = np.asarray(image, np.float32) / 255
    if pixels.ndim == 3:
        pixels = pixels[..., :3] @ np.array([0.299, 0.587, 0.114], np.float32) + (1 - pixels[..., 3])
    return np.asarray(pixels, np.float32)
