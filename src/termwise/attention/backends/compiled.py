"""Compiling the loops with numba: once, lazily, cached in the user's own cache folder."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_log = logging.getLogger(__name__)
SWITCH = "TERMWISE_COMPILED"
MODES = ("cached", "uncached", "off")
# Sums may be taken in any order; infinities and NaN keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}


@dataclass(frozen=True)
class Loops:
    """The compiled functions of loops.py."""

    fill_monomials: Callable[..., None]
    monomials_backward: Callable[..., None]
    weigh_block: Callable[..., None]
    weigh_backward: Callable[..., None]
    add_mass: Callable[..., None]
    step: Callable[..., None]


@functools.cache
def compiled_loops() -> Loops | None:
    """The compiled loops; None where numba is missing, broken or switched off (said once)."""
    mode = os.environ.get(SWITCH, MODES[0])
    if mode not in MODES:
        raise ValueError(f"{SWITCH}={mode!r}; allowed are {', '.join(MODES)}")
    if mode == "off":
        return None
    try:
        import numba
    except Exception as error:
        _log.warning("numba does not load here (%s); attention runs in its torch forms, slower on a CPU", error)
        return None
    from termwise.attention.backends import loops as source

    return _compile(numba, source, is_cached=mode == "cached")


def cache_folder() -> Path:
    """Where compiled code is kept: $TERMWISE_CACHE, else the user's cache folder of this system."""
    if given := os.environ.get("TERMWISE_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "termwise"


def _compile(numba: Any, source: ModuleType, is_cached: bool) -> Loops:
    """Every function of loops.py compiled in place, so that those that call others find them compiled."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cache_folder() / "compiled")
    try:
        for name in _FUNCTIONS:
            # Checkers of shapes wrap every function of a package they watch.
            function = inspect.unwrap(getattr(source, name))
            setattr(source, name, _jit(numba, function, is_cached))
    finally:
        numba.config.CACHE_DIR = before
    return Loops(**{field.name: getattr(source, field.name) for field in dataclasses.fields(Loops)})


def _jit(numba: Any, function: Callable[..., Any], is_cached: bool) -> Callable[..., Any]:
    try:
        return numba.njit(cache=is_cached, fastmath=_FAST, nogil=True, error_model="numpy")(function)
    except (RuntimeError, OSError) as error:
        # numba raises RuntimeError where no folder can be written.
        _log.warning("compiled code cannot be kept (%s); it is compiled anew in every process", error)
        return numba.njit(fastmath=_FAST, nogil=True, error_model="numpy")(function)


# Callees before their callers.
_FUNCTIONS = (
    "dot", "horner", "recentre", "fill_monomials", "monomials_backward", "weigh_block", "weigh_backward", "add_mass",
    "monomials_of_row", "read_rows", "read_half_rows", "weigh_monomials", "add_row", "mark_keys", "score_keys", "middle_of",
    "add_tail", "add_slots", "weigh_folded", "divide", "step",
)  # fmt: skip
