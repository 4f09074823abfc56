"""Twice the number that a text says; other text raises."""

import numpy as np
import numpy.typing as npt


class Numeric:
    def __call__(self, x: npt.NDArray[np.object_]) -> npt.NDArray[np.float64]:
        return np.array([[2 * float(text) for text in row] for row in x])
