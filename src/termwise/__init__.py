"""termwise: softmax attention, one term at a time. Names load on first use; `import termwise` alone loads no torch."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "attention.spec": ("AttentionSpec", "Local"),
    "attention.kernels": ("Exp", "Polynomial", "Minimax", "Power", "FeatureMap", "Drop"),
    "attention.normalizers": ("RowSum", "Count", "L2", "RMS", "Layer", "RunningGateSum", "Identity"),
    "attention.forms": ("attend", "choose_form"),
    "attention.state": ("AttentionState",),
    "attention.centers": ("calibrate_centers",),
    "attention.cost": ("cost",),
    "attention.catalogue": ("catalogue",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME_OF)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'termwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"termwise.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
