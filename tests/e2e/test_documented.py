"""How a page is read: where a command ends, which answer is whose, and when two answers are one."""

from __future__ import annotations

import pytest

from .documented import Block, alike, commands, labels, same_lines

SCRIPT = """mkdir -p mine/a   # a comment with one ' quote
cat > mine/a/model.py <<'END'
x = 1  # stays
END
curl localhost:8000/x -d '[1,
  2]'
curl localhost:8000/y        # {"y":[1.0]}
starling bench localhost:8000 --model a \\
    --rate 2
"""


def shell(text: str, answer: str | None = None, language: str = "sh") -> Block:
    behind = None if answer is None else Block("docs/a.md", 20, "A", "", answer)
    return Block("docs/a.md", 3, "A", language, text, behind)


def test_commands_of_several_lines() -> None:
    found = commands(shell(SCRIPT, "printed\n"))
    assert [(one.line, one.text.split()[0], one.answer) for one in found] == [
        (3, "mkdir", None), (4, "cat", None), (7, "curl", None), (9, "curl", '{"y":[1.0]}'),
        (10, "starling", "printed\n"),
    ]  # fmt: skip
    assert found[0].words == ["mkdir", "-p", "mine/a"]
    assert found[1].text.splitlines()[1:] == ["x = 1  # stays", "END"]
    assert found[4].words[-2:] == ["--rate", "2"]


def test_commands_with_what_they_print() -> None:
    found = commands(shell("$ starling a\none\ntwo\n$ starling b\n", language=""))
    assert [(one.line, one.text, one.answer) for one in found] == [
        (3, "starling a", "one\ntwo\n"), (6, "starling b", None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "got", "one"),
    [
        ('{"p":[0.25]}', '{"p": [0.25002]}', True),
        ('{"p":[0.25]}', '{"p":[0.26]}', False),
        ('{"p":[3]}', '{"p":[3.0]}', False),
        ('{"p":[3]}', '{"p":[3,4]}', False),
        ('{"a":1, ...}', '{"a":1, "b":2,"c":{"d":3}}', True),
        ('{"a":1, ..., "c":3}', '{"a":1,"b":2,"c":4}', False),
        ('{"a":1, ...}', '{"b":1}', False),
    ],
)
def test_answers_that_are_one(told: str, got: str, one: bool) -> None:
    assert alike(told, got) == one


def test_printed_lines() -> None:
    assert same_lines("a  1\nb\n", "a  1 \nb\n\n")
    assert not same_lines("a  1\n", "a 1\n")
    assert not same_lines("a\n", "a\nb\n")
    assert same_lines("a\n...\n", "a\nb\n")
    assert not same_lines("b\n...\n", "a\nb\n")
    assert labels("mean   28 ms\n99 %  3\nserver: total   1\n\n5 x 2\n") == ["mean", "server: total"]
