"""Opens image files from clients with Pillow, within limits, and converts them to 8-bit RGB."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from app.contract import Array
from app.errors import BadRequest, StarlingError, TooLarge, text_of

#: Formats that Pillow reads without starting another program.
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")
_LONGEST_REASON = 200
_BITS, _MEANING_OF_ZERO = 258, 262  # TIFF tags: bits of a value; 0 if zero is white


@contextmanager
def opened_image(
    data: bytes, max_pixels: int, formats: tuple[str, ...] = _FORMATS, what: str = "image"
) -> Iterator[Image.Image]:
    """Open an image file. Messages name it `what`.

    Raises TooLarge if its header declares more than `max_pixels`, before any pixel is decoded. Any other error, also
    one raised in the `with` block while the image is read, becomes BadRequest.
    """
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise TooLarge(f"{what}: expected at most {max_pixels} pixels, got {width} x {height}")
            yield image
    except StarlingError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise TooLarge(f"{what}: expected at most {max_pixels} pixels, got more than can be opened safely") from None
    except Exception as error:  # Pillow's parsers raise many types of exceptions for broken files
        first = text_of(error).splitlines()[0][:_LONGEST_REASON]
        why = "no image header" if isinstance(error, UnidentifiedImageError) else first
        raise BadRequest(f"{what}: expected a readable {' or '.join(formats)} file: {why}") from None


def as_rgb(image: Image.Image, what: str) -> Image.Image:
    """The first frame as 8-bit RGB: rotated as its EXIF data says, without its alpha channel.

    Of values with more than 8 bits the highest 8 count, as in Pillow's own decoders of RGB with 16 bits. A file of
    32-bit gray values does not say their range. Values up to 1 (only floats), 255 or 65535 are taken to have that
    range; for others BadRequest is raised.
    """
    tags: dict[int, Any] = getattr(image, "tag_v2", {})
    gray, wide = image.mode[:1] in "IF", image.mode in ("I", "F") and image.format not in ("PPM", "PNG")
    image = ImageOps.exif_transpose(image)
    if gray:
        values = np.asarray(image)
        bits = tags.get(_BITS, (16,))[0]
        eight = _by_range(values, what) if wide else (values >> (bits - 8)).astype(np.uint8)
        image = Image.fromarray(255 - eight if tags.get(_MEANING_OF_ZERO) == 0 else eight)
    elif image.mode == "P":
        image = image.convert("RGBA")  # to RGB at once, a palette with transparency makes Pillow warn
    return image.convert("RGB")


def _by_range(values: Array, what: str) -> Array:
    least, most = values.min(), values.max()
    if least >= 0 and most <= 1 and values.dtype.kind == "f":
        values = values * 255
    elif least >= 0 and 255 < most <= 65535:
        values = values // 256
    if not (least >= 0 and values.max() <= 255):  # NaN is neither
        raise BadRequest(f"{what}: expected gray values from 0 to 1, 255 or 65535, got {least} to {most}")
    return np.rint(values).astype(np.uint8)
