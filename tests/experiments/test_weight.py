"""What counts as a line of code."""

from __future__ import annotations

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
'''


def test_lines_of_code() -> None:
    assert code_lines(MODULE) == 5
