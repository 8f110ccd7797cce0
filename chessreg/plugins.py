"""Entry points of installed packages, and custom modules in chessreg's folders, loaded one by one so that an error
names the broken package or file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
import traceback
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires
from types import ModuleType
from typing import Any

from chessreg.errors import ChessregError, get_first_line


def list_entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, by name."""
    return sorted(entry_points(group=group), key=lambda point: point.name)


def describe_package(point: EntryPoint) -> str:
    """Return the package of an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def load_entry_point(point: EntryPoint, noun: str) -> Any:
    """Return the object of an entry point. `noun`: its expected type, for the message.

    Raises ChessregError, which names the package, if it cannot be loaded.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a third-party package may fail in any way
        package = describe_package(point)
        raise ChessregError(f"{noun} {point.name} of {package} cannot be loaded: {describe_import_error(error)}",
                            f"fix or remove {point.dist.name if point.dist else point.value}") from error  # fmt: skip


def load_custom_module(module: str) -> ModuleType:
    """Return a module in one of chessreg's folders. Raises ChessregError with file and line if its import fails."""
    try:
        return importlib.import_module(module)
    except (ChessregError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise make_broken_module_error(module, error) from error


def make_broken_module_error(module: str, error: BaseException) -> ChessregError:
    """Return the error for a module in one of chessreg's folders whose import raised this."""
    spec = importlib.util.find_spec(module)
    file = (spec and spec.origin) or module
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    reason = describe_import_error(error)
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, reason = [error.lineno], f"{type(error).__name__}: {error.msg}"
    place = f"{file} line {lines[-1]}" if lines else file
    return ChessregError(f"{place} cannot be loaded: {reason}", "fix or remove the file")


def install_command(package: str) -> str:
    """Return the command that adds an optional package, in the versions that chessreg accepts, to this environment.

    Environments that uv made have no pip.
    """
    try:
        requirements = [line.partition(";")[0].strip() for line in requires("chessreg") or ()]
    except PackageNotFoundError:  # chessreg runs from its source
        requirements = []
    matching_lines = [line for line in requirements if re.match(rf"{re.escape(package)}(?![\w.-])", line)]
    installer = [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        installer = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*installer, *(matching_lines[:1] or [package])])


def format_system_install_command(package: str) -> str:
    """Return the command that installs a system package on this machine, or an empty text without a known package
    manager.
    """
    if platform.system() == "Darwin":
        return f"brew install {package}"
    sudo = "" if os.geteuid() == 0 else "sudo "
    for program, verb in (("apt-get", "install"), ("dnf", "install"), ("zypper", "install"), ("pacman", "-S")):
        if shutil.which(program):
            return f"{sudo}{program} {verb} {package}"
    return ""


def describe_import_error(error: BaseException) -> str:
    """Return an error of a third-party module in one line; for a syntax error with file and line."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}, {error.filename} line {error.lineno}"
    return f"{type(error).__name__}: {get_first_line(error)}"
