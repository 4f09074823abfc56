"""What one GPU does, in one call of eight minutes: `python -m experiments.gpu`. Writes docs/bench/gpu.md and gpu.json.

Each block runs in a process of its own with a deadline, and appends its figures to gpu.jsonl as it ends, so that a run
which is cut off keeps all that had ended. A block that hangs, fails or loses the device does not stop the next. When
time runs out, the last blocks are left out, and named on the page. `--render FILE` makes the page from such lines and
measures nothing. `--device cpu --quick` tries everything in about a minute where there is no GPU.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from app.engine.streams import cuda
from experiments.gpu.blocks import BY_NAME, SPECS
from experiments.gpu.page import PAGE, RUN, read
from experiments.gpu.runner import append, run_blocks
from loadtest.common.experiment import clocked, command_of, facts, load, store
from loadtest.common.paths import DOCS

MODULE = "experiments.gpu"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models, runs of a moment")
    parser.add_argument("--seconds", type=float, default=480.0, help="of the whole run, at most [480]")
    parser.add_argument("--only", default=",".join(BY_NAME), help="blocks, separated by commas [all]")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the page and the figures [docs/bench]")
    parser.add_argument("--render", type=Path, metavar="FILE.jsonl", help="page of these lines; run nothing")
    chosen = parser.parse_args(list(arguments))
    chosen.names = [name for name in chosen.only.split(",") if name]
    unknown = [name for name in chosen.names if name not in BY_NAME]
    if unknown:
        parser.error(f"--only: expected some of {', '.join(BY_NAME)}, got {', '.join(unknown)}")
    into_docs = chosen.out.resolve() == DOCS.resolve()
    if chosen.render is None and into_docs and (chosen.device == "cpu" or chosen.quick):
        parser.error("--out: figures of a CPU or of a quick run must not enter docs/bench; give another folder")
    cuda.prepare()
    if chosen.render is None and chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: there is no CUDA device here; --device cpu --quick --out FOLDER tries the blocks")
    return chosen


def main(arguments: Sequence[str]) -> int:
    chosen = parse(arguments)
    if chosen.render is not None:
        return render(chosen.render, chosen.out)
    chosen.out.mkdir(parents=True, exist_ok=True)
    lines = chosen.out / "gpu.jsonl"
    say = clocked(Console(stderr=True, highlight=False))
    known = {"device": chosen.device, "quick": chosen.quick, "facts": facts(command_of(MODULE, arguments))}
    append(lines, {"block": RUN, **known})
    specs = [spec for spec in SPECS if spec.name in chosen.names]
    # SystemExit runs what ends the child processes; the default action of SIGTERM does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run_blocks(specs, chosen.device, chosen.quick, chosen.seconds, lines, say)
    return render(lines, chosen.out)


def render(lines: Path, out: Path) -> int:
    """Write the page. The status is 1 if a block did not end well, or the file cannot be read."""
    try:
        figures = read(lines)
        run = figures["run"]
        if out.resolve() == DOCS.resolve() and (run.get("device") != "cuda" or run.get("quick")):
            raise ValueError("figures of a CPU or of a quick run must not enter docs/bench")
        path = out / f"{PAGE.name}.json"
        store(figures, path)
        PAGE.write(load(path), out)  # from the JSON alone
    except (ValueError, OSError) as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return 1
    for line in PAGE.missed(load(path)):
        print(f"missed: {line}", file=sys.stderr)
    return int(any("failed" in of for of in figures["blocks"].values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
