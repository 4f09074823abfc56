"""Reads images to the tensor of a transformers model, by its image processor with Pillow and numpy alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from app.contract import MAX_PIXELS, Array, Reader, SampleRow, TensorSpec, TextCut, Translated
from app.errors import ConfigError
from app.models.tasks import task_specs
from app.values.image_files import as_rgb, opened_image

_SIZES = ((48, 32), (33, 65))  # of images that show the processor's output shape
_RAMP = 16  # pixels of each side of the example image


class ImageReader(Reader):
    """Image files, one a row, to `pixel_values`, as 8-bit RGB: see `as_rgb`."""

    sent = (task_specs.IMAGE,)
    reads_texts = False

    def __init__(self, processor: Any) -> None:
        """Raises ConfigError if the processor fails, or if its output shape depends on the image's size."""
        self._processor = processor
        shapes = [self._pixels(Image.new("RGB", size)).shape for size in _SIZES]
        if len(set(shapes)) != 1:
            raise ConfigError(f"expected an image processor whose images have one size, got {shapes[0]}, {shapes[1]}")
        shape = shapes[0]
        self.inputs = (TensorSpec("pixel_values", "FP32", shape, ("",) * len(shape), shape),)

    def read(self, calls: Sequence[Sequence[Array]], cut: TextCut | None = None) -> list[Translated]:
        """Raises BadRequest for a file that is no image, and TooLarge for too many pixels."""
        return [self._read(files.reshape(-1)) for (files,) in calls]

    def _read(self, values: Array) -> Translated:
        names = [f"image of row {row}" for row in range(len(values))] if len(values) > 1 else ["image"]
        return Translated([np.stack([self._row(bytes(file), name) for file, name in zip(values, names, strict=True)])])

    def example(self) -> SampleRow:
        """A grey ramp: a file small enough to be typed."""
        ramp = np.tile(np.arange(0, 256, 256 // _RAMP, dtype=np.uint8), (_RAMP, 1))
        file = io.BytesIO()
        Image.fromarray(ramp).save(file, "PNG", optimize=True)
        return SampleRow((np.array(file.getvalue(), object),))

    def _row(self, data: bytes, what: str) -> Array:
        with opened_image(data, MAX_PIXELS, what=what) as image:
            return self._pixels(as_rgb(image, what))

    def _pixels(self, image: Image.Image) -> Array:
        """[channels, height, width]."""
        return np.asarray(self._processor(image, return_tensors="np")["pixel_values"][0], np.float32)
