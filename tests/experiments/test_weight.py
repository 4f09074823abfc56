"""What counts as a line of code, and how the calls of a request are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.weight import Call, Weight, by_file, code_lines, counts, weights

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


def test_folders_add_up(tmp_path: Path) -> None:
    for name, count in {"a.py": 1, "b/c.py": 2, "b/d/e.py": 3, "f/g.py": 4}.items():
        path = tmp_path / "top" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * count)
    (tmp_path / "top" / "readme.md").write_text("x = 1\n")
    found = weights(tmp_path / "top", 2)
    assert found == [Weight("top", 1, 1), Weight("top, all", 10, 4), Weight("top/b", 5, 2), Weight("top/f", 4, 1)]
    assert weights(tmp_path / "top", 1) == [Weight("top, all", 10, 4)]


def test_calls_of_a_request() -> None:
    calls = [Call("a.py", "f"), Call("b.py", "g"), Call("b.py", "g"), Call("a.py", "f"), Call("a.py", "h")]
    assert counts(calls) == {"files": 2, "functions": 3, "calls": 5, "changes of file": 2}
    assert by_file(calls) == "   3 a.py: f, h\n   2 b.py: g"
