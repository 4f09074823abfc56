"""Decoders step by step: each row writes what the model's own `generate` does for it alone, in whatever company."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.contract import GeneratedText, ModelSource
from app.engine.cpu.decoding import DecodingExecutor
from app.engine.executor import Job, Ran, Readers, Stop
from app.engine.pool import Pool
from app.models import packed_weights
from app.models.decoders import slabs
from app.models.loading import load
from app.scheduler import prefill as reading_module
from tests import tiny_decoders
from tests.tiny_decoders import KINDS, POSITIONS

MOST = 20
PLACES = 6


class Decoding:
    """An executor as the engine drives it: slots are taken, units run, rows that have ended are let go."""

    def __init__(self, folder: Path, places: int = PLACES) -> None:
        model = load(ModelSource("writer", 1, folder))
        self.call = model.call
        self.pool = Pool(model.info.client_inputs, 2 * places)
        self.executor = DecodingExecutor(model, self.pool)
        self.executor.activations.bound(places)
        self.texts: dict[int, str] = {}  # by slot, of rows that have ended

    @property
    def free(self) -> int:
        """Places that no row has."""
        self.executor.activations.arrange([])
        return self.executor.activations.places._at.count(None)

    def add(self, ids: Sequence[int], **parameters: Any) -> int:
        (slot,) = self.pool.take(1)
        self.pool.set_lengths([slot], {"tokens": len(ids)})
        self.pool.write([slot], 0, np.array([ids], np.int64), {"tokens": len(ids)})
        self.pool.parameters[slot] = parameters
        return slot

    def run(self, slots: Sequence[int], steps: int = 1) -> Ran:
        """A unit, which ends when a row does."""
        job = Job(0, self.executor, list(slots), len(slots), 0, steps)
        with torch.inference_mode():
            (ran,) = self.executor.run(job, Stop())
        ended = [slots[at] for at in ran.ended]
        for slot, text in zip(ended, ran.outputs[0] if ended else [], strict=True):
            self.texts[slot] = text.decode()
        self.release(ended)
        return ran

    def write(self, slots: Iterable[int], steps: int) -> int:
        """Units of so many steps of all of these rows, until each has its text; how many steps they made."""
        made = 0
        while left := [slot for slot in slots if slot not in self.texts]:
            made += self.run(left, steps).steps
        return made

    def release(self, slots: Sequence[int]) -> None:
        self.executor.activations.release(slots)
        self.pool.give_back(list(slots))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads for so small a model lose to one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    made: dict[str, tuple[Path, Any]] = {}

    def folder_of(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = folder, tiny_decoders.save(folder, kind, MOST)
        return made[kind]

    return folder_of


def prompt(length: int) -> list[int]:
    return [random.randrange(2, 200) for _ in range(length)]


def prompts(count: int) -> list[list[int]]:
    return [prompt(random.randrange(1, 40)) for _ in range(count)]


def text_of(model: Any, ids: list[int], most: int = MOST) -> str:
    return tiny_decoders.tokenizer().decode(tiny_decoders.generated(model, ids, most), skip_special_tokens=True)


@pytest.mark.parametrize(("kind", "packed"), [*((kind, False) for kind in KINDS), ("t5", True), ("gpt2", True)])
def test_every_text_is_that_of_generate_under_random_joins_and_leaves(kind, packed, folders, monkeypatch) -> None:
    monkeypatch.setattr(packed_weights, "LEAST_TO_PACK", 1 if packed else packed_weights.LEAST_TO_PACK)
    monkeypatch.setattr(slabs, "_CALL", slabs._CALL if packed else -1)  # then each row reads its own columns
    random.seed(3)
    folder, model = folders(kind)
    decoding = Decoding(folder)
    waiting, alive = prompts(12), dict[int, str]()  # by slot, the text of a row
    texts: set[str] = set()
    for _ in range(200):
        while waiting and len(alive) < PLACES and random.random() < 0.4:
            ids, most = waiting.pop(), random.randrange(1, MOST + 1)
            alive[decoding.add(ids, max_new_tokens=most)] = text_of(model, ids, most)
        unit = random.sample(list(alive), random.randint(min(1, len(alive)), len(alive)))  # the others are parked
        if unit:
            decoding.run(unit, random.randrange(1, 5))
        for slot in set(unit) & set(decoding.texts):
            assert decoding.texts.pop(slot) == alive[slot]
            texts.add(alive.pop(slot))
    assert waiting == []
    assert alive == {}
    assert len(texts) > 6  # they are not all alike
    assert decoding.free == PLACES


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_text_share_the_positions_of_a_row(kind: str, tmp_path: Path) -> None:
    """Rows of any proportion, asked for more than fits, beside each other; behind an encoder a text has its own."""
    random.seed(9)
    model = tiny_decoders.save(tmp_path, kind, None)
    decoding = Decoding(tmp_path, 3)
    alone = {"t5": 256, "marian": POSITIONS - 1}.get(kind)
    texts = {}
    for length in (3, POSITIONS - 1) if alone else (3, 60, POSITIONS - 1):
        ids = prompt(length)
        texts[decoding.add(ids, max_new_tokens=10_000)] = text_of(model, ids, alone or POSITIONS - length)
    decoding.write(texts, 7)
    assert decoding.texts == texts
    assert decoding.free == 3


def reads_for(monkeypatch: pytest.MonkeyPatch, ns: int) -> None:
    """Between two steps, however long these take."""
    monkeypatch.setattr(reading_module, "_NS", ns)
    monkeypatch.setattr(reading_module, "_STEPS", 0)


@pytest.mark.parametrize(("kind", "more"), [("t5", 1), ("marian", 1), ("gpt2", 12), ("llama", 12)])
def test_a_long_prompt_is_read_in_pieces_between_the_steps_of_others(kind, more, folders, monkeypatch) -> None:
    """Of two: steps are made between their pieces that are more than those of texts whose prompts are read at once."""
    random.seed(8)
    reads_for(monkeypatch, 1)
    monkeypatch.setattr(reading_module, "LEAST", 7)
    folder, model = folders(kind)
    decoding = Decoding(folder)
    texts = {decoding.add(ids): text_of(model, ids) for ids in ([5, 6], prompt(70), prompt(45))}
    first, *others = texts
    decoding.run([first], 2)
    steps = sum(decoding.run([first, others[0]], 2).steps for _ in range(2))  # the third comes while the second reads
    steps += decoding.write(texts, 2)
    assert decoding.texts == texts
    assert steps == MOST + 4 + more


@pytest.mark.parametrize("kind", ["marian", "gpt2"])
def test_a_step_that_fails_changes_nothing(kind: str, folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(5)
    folder, model = folders(kind)
    decoding = Decoding(folder)
    texts = {decoding.add(ids): text_of(model, ids) for ids in prompts(5)}
    first = list(texts)[:3]
    decoding.run(first, 2)
    real = decoding.call.decoder.step

    def step(*args: Any) -> Any:
        real(*args)
        raise RuntimeError("a faulty step")

    with monkeypatch.context() as patch:
        patch.setattr(decoding.call.decoder, "step", step)
        for unit in (list(texts), first):
            with pytest.raises(RuntimeError, match="a faulty step"):
                decoding.run(unit, 5)
    decoding.write(texts, 4)
    assert decoding.texts == texts


@pytest.mark.parametrize("seed", [11, -3, (1 << 64) - 2])
def test_a_seed_gives_the_same_text_alone_and_in_company(folders: Any, seed: int) -> None:
    random.seed(7)
    folder, _ = folders("gpt2")
    decoding = Decoding(folder)
    asked: dict[str, Any] = {"seed": seed, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.1}
    ids = [9, 8, 7]
    alone = decoding.add(ids, **asked)
    decoding.run([alone], MOST)
    others = [decoding.add(more, seed=n, temperature=1.0) for n, more in enumerate(prompts(4))]
    decoding.run(others, 2)
    beside = decoding.add(ids, **asked)
    other_seed = decoding.add(ids, **{**asked, "seed": seed + 1})
    decoding.write([*others, beside, other_seed], 1)
    assert decoding.texts[beside] == decoding.texts[alone] != decoding.texts[other_seed]


def test_pieces_are_whole_characters_and_make_the_text(folders: Any) -> None:
    folder, model = folders("gpt2")
    decoding = Decoding(folder)
    ids = [40, 41, 42]
    whole = text_of(model, ids)
    slot, stopped = decoding.add(ids), decoding.add(ids, stop=[whole[5:7], "never"])
    got: dict[int, list[GeneratedText]] = {slot: [], stopped: []}
    readers = Readers(frozenset(got), lambda pieces: [got[slot].append(piece) for slot, piece in pieces.items()])  # type: ignore[func-returns-value,misc]
    job = Job(0, decoding.executor, [slot, stopped], 2, 0, MOST, readers=readers)
    with torch.inference_mode():
        assert [ran.continues for ran in decoding.executor.run(job, Stop(at_next_row=False))] == [True, False]
    assert "".join(piece.text for piece in got[slot]) == whole
    assert "".join(piece.text for piece in got[stopped]) == whole[: whole.index(whole[5:7])]
    for pieces, reason in ((got[slot], "length"), (got[stopped], "stop")):  # each with its own text's end, and once
        assert [piece.reason for piece in pieces] == [*[""] * (len(pieces) - 1), reason]
    assert len(got[slot]) > MOST // 4
    assert [piece.written for piece in got[slot]] == sorted(piece.written for piece in got[slot])


def test_a_slot_that_is_taken_again_while_its_row_was_reading_reads_the_new_row(folders: Any, monkeypatch) -> None:
    """A call leaves in the middle of its prompt, and the next one gets its slot."""
    reads_for(monkeypatch, 1)
    folder, model = folders("gpt2")
    decoding = Decoding(folder, 2)
    first = decoding.add([7] * 70)
    decoding.run([first], 1)
    decoding.release([first])
    ids = [9, 10, 11] * 20
    while (slot := decoding.add(ids)) != first:
        pass
    decoding.write([slot], 5)
    assert decoding.texts[slot] == text_of(model, ids)
