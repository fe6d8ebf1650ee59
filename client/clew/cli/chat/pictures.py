"""Pictures in a terminal that can show them: which it can, how they are read, and how they are drawn.

They are decoded in a child process within limits (`picture_process`), by the library of the extra `pictures`. Without
it, or in another terminal, a line names each picture.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from temporalio.exceptions import TemporalError

from clew.child_process import Limits, run_child
from clew.session.session import Session
from clew_workflows.contract.content import Blob, Part
from clew_workflows.contract.errors import ClewError

Protocol = Literal["kitty", "sixel"]
"""How a terminal takes pictures."""
SETTING = "CLEW_TERMINAL_IMAGES"
"""The variable that names the protocol, for terminals that are not known: `kitty`, `sixel` or `none`."""

MAX_BYTES = 5 * 1024 * 1024
"""Largest image that is read to be shown."""
MAX_WAITING = 4
"""Most pictures that wait to be read; of more the older ones have their line alone."""
READ_SECONDS = 10.0
"""Seconds within which an image must be read."""
MAX_COLUMNS, MAX_ROWS = 60, 15
"""Largest picture, in cells."""
_LIMITS = Limits(memory_bytes=1024 * 1024 * 1024, cpu_seconds=5, seconds=15, output_bytes=8 * 1024 * 1024)
"""Limits of the child process."""
KONSOLE_VERSION = 220_400
"""The first version of Konsole with sixel."""
USUAL_CELL = (10, 20)
"""Pixels of a cell where the terminal does not say them."""
_PROCESS = Path(__file__).with_name("picture_process.py")
# What a picture is made of. Nothing else reaches the terminal, also if an image has got hold of the child process.
_PICTURE = re.compile(
    r"(?:[ \n]|\x1b[78]|\x1b\[[0-9;]*[ABCDm]"
    r"|\x1bP[0-9;]*q[ -~]*\x1b\\"  # sixel
    r"|\x1b_G[ -~]*\x1b\\"  # kitty
    r"|\U0010eeee(?:[\u0300-\u1fff\u20d0-\u20ff\u2cef-\u2dff\ua66f-\uaaff\ufe20-\ufe2f\U0001d185-\U0001d244]){1,3})+"
)


def find_protocol(environment: Mapping[str, str]) -> Protocol | None:
    """Find how the terminal takes pictures, by its variables: a question to it would take keys that are typed.

    None: it takes none, or is not known, as within tmux and screen.
    """
    match environment.get(SETTING, "").lower():
        case "kitty":
            return "kitty"
        case "sixel":
            return "sixel"
        case "":
            pass
        case _:
            return None
    terminal = environment.get("TERM", "")
    if "TMUX" in environment or terminal.startswith(("screen", "tmux")) or terminal == "dumb":
        return None
    program = environment.get("TERM_PROGRAM") or environment.get("LC_TERMINAL") or ""
    if terminal in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "iTerm2", "WezTerm", "mintty", "contour") or terminal.startswith(("foot", "mlterm")):
        return "sixel"
    konsole = environment.get("KONSOLE_VERSION", "")
    return "sixel" if konsole.isdigit() and int(konsole) >= KONSOLE_VERSION else None


def can_draw() -> bool:
    """Whether the library that draws pictures is installed."""
    return find_spec("textual_image") is not None and find_spec("PIL") is not None


@dataclass(frozen=True, slots=True)
class Room:
    """The room for a picture.

    Attributes:
        columns: Most cells from left to right.
        rows: Most cells from top to bottom.
        cell: The pixels of a cell, from left to right and from top to bottom.
    """

    columns: int
    rows: int
    cell: tuple[int, int] = USUAL_CELL


def measure_room(columns: int, rows: int) -> Room:
    """Measure the room for a picture on a terminal of this size."""
    return Room(max(min(columns - 2, MAX_COLUMNS), 1), max(min(rows // 2, MAX_ROWS), 1), _find_cell())


def _find_cell() -> tuple[int, int]:
    """Find the pixels of a cell. The terminal's driver knows them, if the terminal has said them."""
    try:
        found = fcntl.ioctl(sys.__stdout__.fileno(), termios.TIOCGWINSZ, bytes(8)) if sys.__stdout__ else bytes(8)
    except (OSError, ValueError):
        return USUAL_CELL
    rows, columns, width, height = struct.unpack("HHHH", found)
    cell = (width // columns, height // rows) if rows and columns else (0, 0)
    return cell if min(cell) >= 1 else USUAL_CELL


async def draw(data: bytes, protocol: Protocol, room: Room) -> str:
    """Draw an image as a text that the terminal shows; empty: it cannot be drawn."""
    settings = {
        "protocol": protocol,
        "columns": room.columns,
        "rows": room.rows,
        "cell_width": room.cell[0],
        "cell_height": room.cell[1],
    }
    # The library reads the size of a cell where it has no terminal to ask.
    cell = {"TEXTUAL_CELL_WIDTH": str(room.cell[0]), "TEXTUAL_CELL_HEIGHT": str(room.cell[1])}
    output = await run_child(
        str(_PROCESS), json.dumps(settings).encode() + b"\n" + data, _LIMITS, cell | {"PYTHONIOENCODING": "utf-8"}
    )
    painted = output.decode("utf-8", "replace")
    return painted if _PICTURE.fullmatch(painted) else ""


class Pictures:
    """Reads the pictures of messages and shows them, one after another.

    Args:
        protocol: How the terminal takes them.
        room: Measures the room for a picture.
        show: Shows one: its description, what the terminal draws, and its place.
    """

    def __init__(self, protocol: Protocol, room: Callable[[], Room], show: Callable[[Blob, str, int], None]) -> None:
        self._protocol: Protocol = protocol
        self._room = room
        self._show = show
        self._wanted: deque[tuple[Session, Blob, int]] = deque(maxlen=MAX_WAITING)
        self._news = asyncio.Event()

    def want(self, session: Session, parts: Sequence[Part], place: int) -> None:
        """Show the images of a message when they are read. Too large ones are left out."""
        for part in parts:
            blob = part.get("blob") if part["type"] == "image" else None
            if blob and blob["bytes"] <= MAX_BYTES:
                self._wanted.append((session, blob, place))
                self._news.set()

    async def run(self) -> None:
        """Show what is wanted, until this is cancelled. A picture that cannot be read has its line alone."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted:
                session, blob, place = self._wanted.popleft()
                if painted := await self._paint(session, blob):
                    self._show(blob, painted, place)

    async def _paint(self, session: Session, blob: Blob) -> str:
        data = bytearray()
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for piece in session.stream_blob(blob):
                    data += piece
                    if len(data) > MAX_BYTES:  # it is larger than its description says
                        return ""
            return await draw(bytes(data), self._protocol, self._room())
        except (ClewError, TemporalError, TimeoutError, OSError):
            return ""
