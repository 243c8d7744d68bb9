"""What a candidate adds to a system, counted: packages, compiled functions, engines, platforms."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterable

# What a converted or trained folder loads in, after `import termwise.models`; its card says the same.
ENGINES = ("transformers",)
PACKAGE, KNOWN = "termwise", ("torch", "transformers")
TAIL = frozenset({"fill_monomials", "weigh_block", "add_mass"})


def kernels_of(names: Iterable[str]) -> frozenset[str] | None:
    """The compiled functions that reading with these attentions runs through, by their short names; None for an unknown one.

    Exponentials are left to torch. Whatever is folded into a state needs `fill_monomials`, `weigh_block` and `add_mass`; a decoded
    token is one `step`, or a `grouped_step` where keys leave exact slots at fixed positions. Clamped features fold into nothing.

    >>> sorted(kernels_of(["exp", "drop+w64s4"]))
    ['step']
    >>> sorted(kernels_of(["taylor:0..2@mean+w64s4h32"]))
    ['add_mass', 'fill_monomials', 'grouped_step', 'weigh_block']
    """
    found: frozenset[str] = frozenset()
    for name in names:
        kernel, *_ = re.split(r"[!@+|]", name)
        if not re.fullmatch(r"[a-z][a-z0-9:.,^/<()\-]*", kernel):
            return None
        if kernel.startswith("exp") or "<" in kernel:
            continue
        is_evicting = re.search(r"\+w\d+(?:s\d+)?(?:h\d+|e\d+)", name) is not None
        found |= {"grouped_step" if is_evicting else "step"}
        found |= frozenset() if kernel == "drop" else TAIL
    return found


@functools.cache
def new_dependencies() -> tuple[str, ...] | None:
    """Packages that this one brings to a machine which has transformers and torch; None where their metadata is not there."""
    own = _required(PACKAGE)
    have: set[str] = set()
    for name in KNOWN:
        if (found := _closure(name)) is None:
            return None
        have |= found
    return None if own is None else tuple(sorted({PACKAGE} | (own - have)))


def _closure(name: str) -> set[str] | None:
    """A package with all that it requires, as far as metadata is installed."""
    first = _required(name)
    if first is None:
        return None
    found, waiting = {name}, set(first)
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting |= (_required(one) or set()) - found
    return found


def _required(name: str) -> set[str] | None:
    """What a package requires without extras, by normalized names."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines if "extra ==" not in line.replace("'", '"'))
    return {re.sub(r"[-_.]+", "-", found[0]).lower() for found in names if found}
