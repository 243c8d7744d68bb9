"""What a spec keeps in a state: which orders have moments, which keys stay exact, how many are folded at a time."""

from __future__ import annotations

from termwise.attention.spec import AttentionSpec

FOLD = 64  # keys are folded in groups of this many, in one product: 3e-7 against 2e-6 token by token
RESERVE = 64  # tokens that can always be rolled back


def num_recent(spec: AttentionSpec) -> int:
    """Real keys that are never folded: the window, self included; with a running gate also the key before, whose sum rollback reads."""
    window = spec.local.window if spec.local else 1
    return max(window, 2) if spec.needs_running_gate else window


def stored_orders(spec: AttentionSpec) -> tuple[int, ...]:
    """Orders whose moments a state keeps; around the mean orders 0 and 1 always, since they give the mean itself."""
    dense = spec.kernel.dense
    if not dense:
        return ()
    if spec.kernel.is_centered:
        return tuple(range(max(len(dense), 2)))
    return tuple(n for n, b in enumerate(dense) if b != 0)
