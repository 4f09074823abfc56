"""Several workers, several models, deadlines, and fifty models in one server: `python -m experiments.many`.

Writes the pages docs/bench/many-*.md one after another, each with its module's own defaults; hours in all.
"""

from __future__ import annotations

import sys

from experiments.many import deadlines, deadlines_live, fifty, models, several, workers

if __name__ == "__main__":
    sys.exit(max(one.EXPERIMENT.main([]) for one in (workers, several, models, deadlines, deadlines_live, fifty)))
