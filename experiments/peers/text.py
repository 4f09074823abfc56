"""A BERT by its text against a hand-written endpoint: `python -m experiments.peers.text`. Writes docs/bench/text.md.

Sentences of 5 to 30 words are classified, one a request, by a BERT of 2 layers with random weights: here as a task of
transformers, there by tokenizer, model and softmax on a thread of a FastAPI route. One compute thread each, the same
JSON over the same connections: 64 requests always in flight, then Poisson arrivals. All servers run, and
have the load in turns; their answers are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from experiments.common.loads import CONNECTIONS, Answers, post, run_once
from experiments.peers import bert
from experiments.peers.contenders import APPS, PeerServer
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.servers import MeasurementError, Server, starling
from loadtest.generator.run import in_loop

SENTENCES = 512
OURS = "Starling"
#: Where each is asked. FastAPI's own pool has 40 threads, which compete for the interpreter lock.
PATHS = {OURS: "/predict/mood", "FastAPI, its pool of threads": "/predict", "FastAPI, one thread": "/predict/one"}
_PROFILED_S = 4  # for which it measures itself, before the others have their turn
_SAME = 1e-4  # what scores of one text may differ by: batches of another size sum up in another order


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Server]:
    """The server of this name, ready."""
    if name == OURS:
        flags = ["--model", f"mood={folder}", "--threads", "1", "--profile-dir", str(folder / "profiles")]
        flags += ["--profile-budget-s", str(_PROFILED_S)]
        with starling(flags) as ours:
            ours.wait_ready()
            yield ours
        return
    environment = {"PEER_WAIT_MS": "0", "PEER_MODEL": str(folder / "weights")}
    with PeerServer([sys.executable, str(APPS / "text_app.py")], environment) as theirs:
        theirs.wait_ready("/health")
        yield theirs


def scores_of(name: str, body: bytes) -> dict[str, float]:
    answer = json.loads(body)
    return {one["label"]: one["score"] for one in (answer["top"] if name == OURS else answer)}


class Contender:
    """A server that runs, and what is asked of it."""

    def __init__(self, name: str, server: Server, texts: list[str]) -> None:
        self.name, self.server = name, server
        self.payloads = [post(PATHS[name], server.port, json.dumps({"text": text}).encode()) for text in texts]
        self.answers = Answers()

    def run(self, seconds: float, rate: float | None, seed: int) -> Data:
        before = self.server.cpu_seconds()
        got = in_loop(run_once(self.payloads, self.server.port, self.answers, seconds, rate, seed)).figures(seconds)
        after = self.server.cpu_seconds()
        if before is not None and after is not None:
            got["cpu_ms"] = 1e3 * (after - before) / got["requests"]
        return got

    def check(self, wanted: dict[int, dict[str, float]]) -> None:
        """Raises MeasurementError if an answer is not that of the servers before it."""
        for pick, body in self.answers.first.items():
            scores = scores_of(self.name, body)
            for label, score in wanted.setdefault(pick, scores).items():
                if abs(scores[label] - score) > _SAME:
                    raise MeasurementError(f"{self.name}: its scores of sentence {pick} are not the other servers'")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    runs: dict[str, dict[str, list[Data]]] = {name: {} for name in PATHS}
    wanted: dict[int, dict[str, float]] = {}
    figures: Data = {}
    texts = bert.sentences(SENTENCES, chosen.seed)
    with tempfile.TemporaryDirectory(prefix="starling-text-") as name, ExitStack() as servers:
        folder = Path(name)
        bert.save(folder / "weights")
        (folder / "model.toml").write_text('source = "hf:weights"\ntask = "text-classification"\n', encoding="utf-8")
        contenders = [Contender(one, servers.enter_context(serving(one, folder)), texts) for one in PATHS]
        for contender in contenders:
            contender.run(chosen.idle, 1.0, 0)
            contender.run(chosen.seconds, None, 0)
        for number in range(chosen.rounds):
            for contender in contenders:
                for rate in (None, *chosen.rates):
                    load = "closed" if rate is None else f"{rate:g}"
                    runs[contender.name].setdefault(load, []).append(contender.run(chosen.seconds, rate, number))
                contender.check(wanted)
                run.say(f"{contender.name}: {runs[contender.name]['closed'][-1]['per_s']:.0f}/s")
            settings = {"seconds": chosen.seconds, "rounds": number + 1, "connections": CONNECTIONS}
            figures = {"settings": settings, "rates": chosen.rates, "runs": runs}
            run.keep(figures)
    return figures


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run [3]")
    parser.add_argument("--rounds", type=int, default=9, help="[9]")
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 200.0], help="requests a second [100, 200]")
    parser.add_argument("--idle", type=float, default=6.0, help="seconds with hardly a request before the load [6]")
    parser.add_argument("--seed", type=int, default=0)


def times_as_many(data: Data, name: str) -> float:
    """Requests a second over those of another server in the same round: the median."""
    ours, theirs = ([run["per_s"] for run in data["runs"][one]["closed"]] for one in (OURS, name))
    return median(mine / its for mine, its in zip(ours, theirs, strict=True))


def failures(data: Data) -> int:
    return sum(run["failed"] for loads in data["runs"].values() for each in loads.values() for run in each)


PAGE = Page("text", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.peers.text", __doc__, measure, options)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
