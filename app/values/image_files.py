"""Opens image files from clients with Pillow, within limits."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from app.errors import BadRequest, StarlingError, TooLarge

#: Formats that Pillow reads without starting another program.
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
_LONGEST_REASON = 200


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
        first = (str(error) or type(error).__name__).splitlines()[0][:_LONGEST_REASON]
        why = "no image header" if isinstance(error, UnidentifiedImageError) else first
        raise BadRequest(f"{what}: expected a readable {' or '.join(formats)} file: {why}") from None
