"""What Clew costs, as ratios against something that runs beside it."""

from __future__ import annotations

import os

# With it, every process of Clew's that a bench starts would compile Clew anew, and those beside it would not.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
