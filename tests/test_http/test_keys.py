"""Keys of a setting and of a file: any will do, a broken file changes nothing, and no message holds one."""

from __future__ import annotations

from hmac import compare_digest
from pathlib import Path

import pytest

from app.errors import ConfigError
from app.http import keys as module
from app.http.keys import Key, Keys

SECRETS = ("alpha-1", "beta-2", "gamma-3")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# of the team\nalpha-1\n\n  beta-2  \r\n")
    return path


def held(keys: Keys) -> list[str]:
    return [key for key in SECRETS if keys.find(key.encode())]


def test_a_key_a_line(file: Path) -> None:
    keys = Keys("api_key", "gamma-3", file)
    assert held(keys) == list(SECRETS)
    for wrong in (b"", b"alpha-", b"alpha-1 ", b"# of the team", b"of", b"\xff"):
        assert not keys.find(wrong)
    assert held(Keys("api_key", None, file)) == ["alpha-1", "beta-2"]


def test_every_key_is_compared(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only those up to the right one: how many there are before it would show in the time."""
    keys, compared = Keys("api_key", None, file), []

    def counted(given: bytes, key: bytes) -> bool:
        compared.append(key)
        return compare_digest(given, key)

    monkeypatch.setattr(module.hmac, "compare_digest", counted)
    assert keys.find(b"alpha-1")
    assert len(compared) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# nothing\n\n", "expected a key, found none"),
        (b"alpha-1\nbeta 2\n", "line 2: behind the key: expected priority"),
        (b"alpha-1\n\xff\n", "UTF-8"),
        (b"a" * (65 << 10), "at most 65536 bytes"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        Keys("admin_key", None, path)
    message = str(caught.value)
    assert message.startswith(f"admin_key_file {path}: ")
    told = message.replace(str(path), "")  # which is named after the test
    assert not any(part in told for part in ("alpha", "beta", "bêta", "aaa"))


def test_what_a_key_may_ask_for_stands_behind_it(file: Path) -> None:
    file.write_text("alpha-1 priority=2  class=best_effort\nbeta-2\nbeta-2 class=realtime\n")
    keys = Keys("api_key", "gamma-3", file)
    assert keys.find(b"alpha-1") == Key(b"alpha-1", 2, "best_effort")
    assert keys.find(b"beta-2") == Key(b"beta-2", 0, "realtime")
    assert keys.find(b"gamma-3") == Key(b"gamma-3")
    assert keys.find(b"alpha-1 priority=2") is None


@pytest.mark.parametrize("option", ["priority=0", "priority=", "class=bulk", "rate=3", "more"])
def test_an_option_that_is_none(file: Path, option: str) -> None:
    file.write_text(f"secret {option}\n")
    with pytest.raises(ConfigError, match=r"line 1: behind the key: expected priority=1 or more, or class=") as caught:
        Keys("api_key", None, file)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "two words", "schlüssel"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^api_key: expected a key") as caught:
        Keys("api_key", key, None)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("content", [None, "gamma-3\nbroken line\n"])
def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_old_keys(
    file: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    """Which is told once."""
    caplog.set_level("INFO")
    keys = Keys("api_key", None, file)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    for _ in range(3):
        keys.reread()
    assert held(keys) == ["alpha-1", "beta-2"]
    (line,) = caplog.records
    assert (line.levelname, "the keys read before still hold" in line.getMessage()) == ("ERROR", True)
    told = line.getMessage().replace(str(file), "")  # which is named after the test
    assert not any(key in told for key in (*SECRETS, "broken"))
    file.write_text("gamma-3")
    keys.reread()
    assert held(keys) == ["gamma-3"]
    assert caplog.records[-1].getMessage() == "api_key_file: read again: keys: 1"


def test_a_secret_of_kubernetes(tmp_path: Path) -> None:
    """Its files are links into a folder that is a link, too, and is swapped as a whole."""
    for number, key in enumerate(SECRETS[:2]):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "keys").write_text(key)
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "keys").symlink_to("..data/keys")
    keys = Keys("api_key", None, tmp_path / "keys")
    assert held(keys) == ["alpha-1"]
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    keys.reread()
    assert held(keys) == ["beta-2"]
