"""Compiling the loops with numba: once, lazily, cached in the user's own cache folder."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_log = logging.getLogger(__name__)
SWITCH = "TERMWISE_COMPILED"
MODES = ("cached", "uncached", "off")


@dataclass(frozen=True)
class Loops:
    """The compiled functions that others call."""

    fill_monomials: Callable[..., None]
    monomials_backward: Callable[..., None]
    weigh_block: Callable[..., None]
    weigh_backward: Callable[..., None]
    add_mass: Callable[..., None]
    step: Callable[..., None]
    grouped_step: Callable[..., None]


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
    from termwise.attention.backends import block_loops, group_loops, step_loops

    return _compile(numba, (block_loops, step_loops, group_loops), is_cached=mode == "cached")


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


def _compile(numba: Any, sources: tuple[ModuleType, ...], is_cached: bool) -> Loops:
    """Every function compiled in place, wherever its name stands, so that those that call others find them compiled."""
    before, folder = numba.config.CACHE_DIR, cache_folder() / "compiled"
    is_cached = is_cached and _is_writable(folder)
    if is_cached and next(folder.rglob("*.nbi"), None) is None:
        _log.warning("compiling attention for this machine, once: some 10 s, kept in %s", folder)
    found: dict[str, Callable[..., None]] = {}
    numba.config.CACHE_DIR = str(folder)
    try:
        for name in _FUNCTIONS:
            homes = [source for source in sources if hasattr(source, name)]
            # Checkers of shapes wrap every function of a package they watch.
            function = inspect.unwrap(getattr(homes[0], name))
            # Sums may be taken in any order; infinities and NaN keep their meaning.
            fast = {"reassoc", "contract", "arcp", "nsz"}
            found[name] = numba.njit(cache=is_cached, fastmath=fast, nogil=True, error_model="numpy")(function)
            for home in homes:
                setattr(home, name, found[name])
    finally:
        numba.config.CACHE_DIR = before
    return Loops(**{field.name: found[field.name] for field in dataclasses.fields(Loops)})


def _is_writable(folder: Path) -> bool:
    """Whether compiled code can be kept there; numba would otherwise put it beside the source."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        _log.warning("compiled code cannot be kept (%s); it is compiled anew in every process", error)
        return False


# Callees before their callers.
_FUNCTIONS = (
    "dot", "horner", "recentre", "fill_monomials", "monomials_backward", "weigh_block", "weigh_backward", "add_mass",
    "add_row", "monomials_of_row", "read_rows", "weigh_monomials", "mark_keys", "score_keys", "middle_of",
    "add_values", "add_tail", "add_slots", "weigh_folded", "divide", "scale_free", "step", "score_slots", "score_groups",
    "weigh_group", "add_slots_of_group", "grouped_step",
)  # fmt: skip
