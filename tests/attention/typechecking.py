"""The type checker behind the import hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype for modules' own functions and classes; a helper inside a function would be compiled anew at every call."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
