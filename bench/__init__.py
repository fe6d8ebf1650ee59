"""What Clew costs, as ratios against something that runs beside it.

With `--write` a bench keeps its results in `bench/results/`; `make pages` makes docs/reference/benches.md of them.
"""

from __future__ import annotations

import os

# With it, every process of Clew's that a bench starts would compile Clew anew, and those beside it would not.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
