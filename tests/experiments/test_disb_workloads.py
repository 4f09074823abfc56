"""The workloads that are shipped are what the script writes."""

from __future__ import annotations

from experiments.disb import generate
from experiments.disb.generate import FOLDER


def test_the_files_are_what_the_script_writes() -> None:
    written = generate.workloads()
    assert {path.stem for path in FOLDER.glob("*.json")} == set(written)
    for name, workload in written.items():
        assert (FOLDER / f"{name}.json").read_text("utf-8") == generate.text(workload)
