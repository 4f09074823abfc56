"""What counts as a line of code."""

from __future__ import annotations

import pytest

from experiments.weight import code_lines

MODULE = '''"""A docstring
of two lines."""

# a comment
import os  # and code


class A:
    """Another."""

    text = """kept,
    because it is
    a value"""

    def b(self) -> str:
        """Of a method."""
        "a string that is no docstring"
        return f"{self.text}{os.sep}"
'''


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("\n# only words\n\n", 0),
        ('"""Only a docstring."""\n', 0),
        ("x = 1\n\n\ny = 2  # code\n", 2),
        ("x = (\n    1,\n    # why\n    2,\n)\n", 4),
        ('def f():\n    """Told."""\n', 1),
        ('async def f():\n    """Told\n    twice."""\n    return 1\n', 2),
        ("x = 1\\\n    + 2\n", 2),
        (MODULE, 8),
    ],
)
def test_lines_of_code(source: str, lines: int) -> None:
    assert code_lines(source) == lines
