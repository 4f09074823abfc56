"""What reads the inputs of a task's calls: from what clients send, to the tensors of a model."""

from __future__ import annotations

from collections.abc import Sequence

from app.contract import Array, SampleRow, TensorSpec, Translated


class Reader:
    """From what clients send, `sent`, to the model's own `inputs`. Any number of threads may use it at once."""

    sent: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    reads_texts = True

    def read(self, calls: Sequence[Sequence[Array]]) -> list[Translated]:
        """See contract.Front."""
        raise NotImplementedError

    def example(self) -> SampleRow | None:
        """A made-up row that `read` takes, if there is one."""
        return None
