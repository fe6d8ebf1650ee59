"""Import the modules of the user: tools, agents, hooks, providers and extensions."""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TypeVar

import clew

T = TypeVar("T")
EXTENSIONS_VARIABLE = "CLEW_EXTENSIONS"


class NotImportable(Exception):
    """A module of the user cannot be imported. The message is one line that says why."""


def import_user_module(name: str) -> ModuleType:
    """Import a module of the user.

    Raises:
        NotImportable: The import raised an error, or exited.
    """
    try:
        return importlib.import_module(name)
    # A script that exits when imported would end the worker without a message.
    except (Exception, SystemExit) as error:
        raise NotImportable(_describe_error(error)) from error


def import_extensions(environ: Mapping[str, str]) -> None:
    """Import the modules that `CLEW_EXTENSIONS` names, separated by commas: they register projectors and encodings.

    Workers do so before anything else, and so does each program that builds contexts or replays histories offline.

    Raises:
        ValueError: A module cannot be imported. The message names it and says why.
    """
    for name in filter(None, map(str.strip, environ.get(EXTENSIONS_VARIABLE, "").split(","))):
        try:
            import_user_module(name)
        except NotImportable as error:
            raise ValueError(f"{EXTENSIONS_VARIABLE}: the module {name!r} cannot be imported: {error}") from error


def load_defined(modules: Iterable[str], kind: type[T], noun: str, hint: str, unusable: type[Exception]) -> list[T]:
    """Import modules of the user and list what they define of a kind.

    Args:
        modules: The modules' names.
        kind: The type of the values.
        noun: The word for one of them, in errors.
        hint: What to do in a module that defines none.
        unusable: The error to raise if a module cannot be imported or defines none.
    """
    defined: list[T] = []
    for name in modules:
        try:
            module = import_user_module(name)
        except NotImportable as error:
            raise unusable(f"the {noun}s module {name!r} cannot be imported: {error}") from error
        in_module = [value for value in vars(module).values() if isinstance(value, kind)]
        if not in_module:
            raise unusable(f"the {noun}s module {name!r} defines no {noun}: {hint}")
        defined += in_module
    return defined


def _describe_error(error: BaseException) -> str:
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
