"""Make what `docs/` holds that comes from the code.

python -m docs.generate            write docs/reference/ and docs/schemas/
python -m docs.generate --check    change nothing; exit 1 and name the files that are not current
"""

from __future__ import annotations

import argparse
import sys

from docs.generate import DOCS, stale, write


def main() -> None:
    """Write all files, or check them."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.generate", description="Make docs/reference/ and docs/schemas/."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is not current")
    check = parser.parse_args().check
    try:
        if not check:
            write(DOCS)
        elif differing := stale(DOCS):
            sys.exit(f"not current, run `make pages`: {', '.join(str(path) for path in differing)}")
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
