"""The type checker behind the import hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

CONF = BeartypeConf(is_pep484_tower=True)  # an int is a float wherever one is asked for


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype for modules' own functions and classes; a helper inside a function would be compiled anew at every call."""
    return function if "<locals>" in function.__qualname__ else beartype(conf=CONF)(function)
