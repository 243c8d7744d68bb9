"""Pairs that cannot be, each refused with what was given, why, and the way out (math: section 3)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from termwise.attention.kernels import Drop, Exp, FeatureMap, Kernel, Polynomial, Power
from termwise.attention.normalizers import Count, Identity, Normalizer, RowSum, RunningGateSum

if TYPE_CHECKING:
    from termwise.attention.spec import AttentionSpec, Local


def nearest(given: object, allowed: Iterable[str]) -> str:
    """' (did you mean ...?)' or nothing."""
    close = difflib.get_close_matches(str(given), list(allowed), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_fields(owner: str, data: Any, allowed: list[str]) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{owner}: {data!r} is no table of fields; allowed are {', '.join(allowed)}")
    for name in data:
        if name not in allowed:
            raise ValueError(
                f"{owner}: unknown field {name!r}{nearest(name, allowed)}; allowed are {', '.join(allowed)}"
            )


def check_spec(spec: AttentionSpec) -> None:
    _check_types(spec)
    _check_center(spec.kernel, spec.normalizer, spec.local)
    if isinstance(spec.normalizer, RowSum):
        _check_row_sum(spec.kernel, spec.normalizer, spec.local)
    if isinstance(spec.kernel, Exp) and spec.local is not None:
        raise ValueError(
            "kernel Exp with exact slots (local) is full softmax: every key has weight exp(x) anyway. To drop the far keys use "
            "kernel=Drop(); to approximate them use kernel=Polynomial((0, 1, 2), center='mean'); for softmax leave local=None"
        )
    if isinstance(spec.kernel, Drop) and spec.local is None:
        raise ValueError(
            "kernel Drop gives every key weight 0; it needs exact slots, e.g. local=Local(window=64, sinks=4)"
        )
    if not spec.kernel.is_finite and spec.local is not None:
        raise ValueError(
            f"kernel {spec.kernel.formula} has no finite state for the far keys of `local`; remove its clamp"
        )
    if spec.local is not None and spec.evicts:
        _check_evicting(spec, spec.local)
    if spec.kernel.centers > 1 and not spec.evicts:
        raise ValueError(
            f"centers={spec.kernel.centers} with local={spec.local!r}: keys join the group of their center when they leave exact slots at "
            "fixed positions; give local=Local(window=64, sinks=4, evict_every=64), with heavy=64 for more exact keys, or leave centers=1"
        )


def _check_types(spec: AttentionSpec) -> None:
    from termwise.attention.spec import Local

    for name, value, kind in (("kernel", spec.kernel, Kernel), ("normalizer", spec.normalizer, Normalizer)):
        if not isinstance(value, kind):
            raise ValueError(
                f"AttentionSpec: {name}={value!r} is no {kind.__name__}, e.g. {'Exp()' if kind is Kernel else 'RowSum()'}"
            )
    if not (isinstance(spec.input_gate, bool) or spec.input_gate == "count"):
        raise ValueError(f"AttentionSpec: input_gate={spec.input_gate!r}; allowed are False, True and 'count'")
    if spec.output_gate not in (None, "before", "after"):
        raise ValueError(
            f"AttentionSpec: output_gate={spec.output_gate!r}; allowed are None, 'before' and 'after' (the norm)"
        )
    if not isinstance(spec.log_decay, bool):
        raise ValueError(
            f"AttentionSpec: log_decay={spec.log_decay!r}; allowed are False and True (the tensor goes to attend)"
        )
    if spec.local is not None and not isinstance(spec.local, Local):
        raise ValueError(f"AttentionSpec: local={spec.local!r}; allowed is None or Local(window=64, sinks=4)")


def _check_center(kernel: Kernel, normalizer: Normalizer, local: Local | None) -> None:
    if not kernel.is_centered:
        return
    feels_factor = isinstance(normalizer, (Identity, Count, RunningGateSum)) or (
        isinstance(normalizer, RowSum) and not normalizer.is_pure
    )
    if feels_factor:
        raise ValueError(
            f"center='mean' leaves out a factor exp(m) that only a plain row sum or a scale-free norm cancels, not {normalizer.formula}; "
            "use normalizer=RowSum(), L2(), RMS() or Layer(), or center='zero'"
        )
    if (
        kernel.dense is not None
        and len(kernel.dense) == 2
        and kernel.dense[0] == 0
        and isinstance(normalizer, RowSum)
        and local is None
    ):
        raise ValueError(
            "order 1 alone around the mean sums to Z = 0 for every query; add order 0: Polynomial((0, 1), center='mean')"
        )


def _check_row_sum(kernel: Kernel, normalizer: RowSum, local: Local | None) -> None:
    if kernel.allow_negative or kernel.minimum >= 0 or isinstance(kernel, (Exp, Drop)):
        return
    assert isinstance(kernel, (Polynomial, Power, FeatureMap))
    if kernel.is_centered and kernel.dense is not None and len(kernel.dense) == 2 and min(kernel.dense) > 0:
        return  # orders {0, 1} around the mean: Z is the mass exactly
    low = "-inf" if math.isinf(kernel.minimum) else f"{kernel.minimum:.3g}"
    way_out = "an even top order with all orders below it"
    if isinstance(kernel, Polynomial) and kernel.orders == (0, 1):
        way_out = "orders (0, 1) around the mean (center='mean'), or orders (0, 1, 2)"
    raise ValueError(
        f"a row sum over {kernel.formula} can vanish or turn negative (its least weight is {low}); use {way_out}, a norm such as "
        "L2(), or allow_negative=True to force it (bad rows are then counted)"
    )


def _check_evicting(spec: AttentionSpec, local: Local) -> None:
    """What slots that keys leave at fixed positions do not go with."""
    given = (
        f"local=Local(window={local.window}, sinks={local.sinks}, heavy={local.heavy}, evict_every={local.evict_every})"
    )
    if not isinstance(spec.kernel, (Drop, Polynomial)):
        raise ValueError(
            f"{given} with kernel {spec.kernel.formula}: the tail behind such slots is Polynomial(...) or Drop(); "
            "or leave out heavy and evict_every"
        )
    if spec.log_decay:
        raise ValueError(
            f"{given} with log_decay: keys that left at other times would have decayed by other amounts; leave out log_decay, or "
            "heavy and evict_every"
        )
    if not (isinstance(spec.normalizer, RowSum) and spec.normalizer.is_pure):
        raise ValueError(
            f"{given} with {spec.normalizer.formula}: what a slot receives is w / Z; use normalizer=RowSum(), or leave out heavy "
            "and evict_every"
        )


def check_causality(spec: AttentionSpec, causal: bool, num_queries: int, num_keys: int, has_state: bool) -> None:
    """What depends on the call: bidirectional and cross attention."""
    if not causal and (spec.local is not None or spec.log_decay):
        part = "exact slots (local)" if spec.local is not None else "log_decay"
        raise ValueError(f"{part} needs causal=True: without the causal mask the far keys differ for every query")
    if causal and num_queries != num_keys:
        raise ValueError(
            f"causal=True with {num_queries} queries and {num_keys} keys: pass as many keys as queries"
            + ("" if has_state else ", with earlier keys in initial_state, or causal=False for cross attention")
        )
    if not causal and has_state and spec.input_gate == "count":
        raise ValueError(
            "input_gate='count' without the causal mask needs all keys in one call; leave initial_state=None"
        )


STATE_LIMIT = 2**33  # bytes of moments that one call may allocate


def check_size(spec: AttentionSpec, key_width: int, value_width: int, num_states: int) -> None:
    """A state too large to hold is refused before it is allocated."""
    from termwise.attention.cost import cost

    costs = cost(spec, key_width, value_width, length=1)
    if costs.moment_bytes * num_states > STATE_LIMIT:
        raise ValueError(
            f"the state of {spec.short_name} at key width {key_width} has {costs.features:.4g} features, "
            f"{costs.moment_bytes / 2**30:.3g} GiB for each of {num_states} kv heads and sequences (limit {STATE_LIMIT / 2**30:g} GiB "
            f"in all); it is smaller than a key/value cache only beyond {costs.break_even:.4g} tokens. Use fewer orders or a smaller "
            "key width, or form='parallel' without a state"
        )
