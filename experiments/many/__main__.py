"""Several workers, several models, deadlines, fifty models: `python -m experiments.many [SECTION ...]`.

Writes docs/bench/many.md, its figures and its plots; hours in all. A section that is made again replaces the earlier
one.
"""

from __future__ import annotations

import sys

from experiments.many import deadlines, deadlines_live, fifty, many_page, models, several, steps, workers
from loadtest.common.experiment import in_sections

SECTIONS = {
    "workers": workers.measure,
    "several": several.measure,
    "steps": steps.measure,
    "models": models.measure,
    "deadlines": deadlines.measure,
    "deadlines_live": deadlines_live.measure,
    "fifty": fifty.measure,
}
EXPERIMENT = in_sections(many_page.PAGE, "experiments.many", __doc__, SECTIONS)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
