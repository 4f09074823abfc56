"""The simulator's figures, into docs/bench/simulation.md: `python -m experiments.simulation [SECTION ...]`.

About 15 minutes in full, most of it for `fleet`. A section that is made again replaces the earlier one.
"""

from __future__ import annotations

import sys

from experiments.simulation import page
from experiments.simulation.sections import SECTIONS
from loadtest.common.experiment import in_sections

EXPERIMENT = in_sections(page.PAGE, "experiments.simulation", __doc__, SECTIONS)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
