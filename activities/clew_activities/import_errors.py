"""Describe in one line why a module of the user cannot be imported."""

from __future__ import annotations

import os
import sysconfig
import traceback

import clew


def describe_import_error(error: BaseException) -> str:
    """Describe why a module cannot be imported, with the line that failed if it is in the current folder."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_in_current_folder(frame.filename)]
    # A SyntaxError says itself where it is.
    if not frames or isinstance(error, SyntaxError):
        return message
    return f"{message} ({os.path.relpath(frames[-1].filename)}, line {frames[-1].lineno})"


def _is_in_current_folder(file: str) -> bool:
    own = (os.path.dirname(__file__), os.path.dirname(clew.__file__))
    libraries = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    return file.startswith(os.path.join(os.getcwd(), "")) and not file.startswith((*own, *libraries))
