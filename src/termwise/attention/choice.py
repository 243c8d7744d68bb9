"""Which form runs, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from termwise.attention.cost import Work, chunked_terms, parallel_terms, predicted_seconds
from termwise.attention.machine import Machine, this_machine
from termwise.attention.spec import AttentionSpec

if TYPE_CHECKING:
    from termwise.attention.state import AttentionState

FORMS = ("auto", "parallel", "chunked", "recurrent", "fused", "reference")
SCORES_LIMIT = 2**28  # scores (1 GiB in fp32) above which the quadratic form is not chosen


def choose_form(
    spec: AttentionSpec, *, num_queries: int, num_keys: int, key_width: int, value_width: int,
    causal: bool = True, has_state: bool = False, has_decay: bool = False, heads: int = 1, kv_heads: int | None = None,
    output_final_state: bool = False, machine: Machine | None = None,
) -> tuple[str, str]:  # fmt: skip
    """The form `auto` takes, and the reason in words.

    Between the quadratic and the chunked form a cost model decides (`cost.parallel_terms`, `cost.chunked_terms`) with the
    constants of `machine`: those that `termwise bench --calibrate` measured, else usual ones. `heads` and `kv_heads` (default:
    as many) are counted over the batch. Calls with gradients take the same form.

    >>> choose_form(AttentionSpec(), num_queries=9, num_keys=9, key_width=64, value_width=64)[0]
    'fused'
    """
    if spec.is_softmax_shaped and not has_decay:
        return "fused", "every weight is an exponential: torch's fused attention gives the same"
    if not spec.is_constant_size:
        return "parallel", f"kernel {spec.kernel.formula} has no finite features; its state is the key/value cache"
    if spec.evicts and num_queries > 1:
        return "chunked", "keys leave the exact slots at fixed positions: block by block from one to the next"
    if num_queries == 1 and has_state:
        return "recurrent", "one token against a state: a single step"
    work = Work(
        num_queries, num_keys, heads, kv_heads or heads, key_width, value_width,
        causal=causal, has_state=has_state, hands_back=output_final_state,
    )  # fmt: skip
    constants = (machine or this_machine()).seconds
    quadratic = predicted_seconds(parallel_terms(spec, work), constants)
    linear = predicted_seconds(chunked_terms(spec, work), constants)
    told = f"{_in_words(quadratic)} by all scores at once, {_in_words(linear)} in chunks"
    if quadratic > linear:
        return "chunked", f"predicted for {num_keys} keys: {told}"
    if num_queries * num_keys * heads > SCORES_LIMIT:
        return (
            "chunked",
            f"predicted for {num_keys} keys: {told}; but so many scores would need more than {SCORES_LIMIT // 2**28} GiB",
        )
    return "parallel", f"predicted for {num_keys} keys: {told}"


def _in_words(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def check_form(
    spec: AttentionSpec,
    form: str,
    chunk_size: int | None,
    causal: bool,
    state: AttentionState | None,
    output_final_state: bool,
    has_decay: bool,
) -> None:
    if form not in FORMS:
        raise ValueError(f"form={form!r}; allowed are {', '.join(FORMS)}")
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size={chunk_size!r}; allowed are whole numbers from 1")
    if chunk_size is not None and form not in ("auto", "chunked"):
        raise ValueError(f"chunk_size={chunk_size} is for form='chunked' alone, not form={form!r}; leave it None")
    if form == "chunked" and not spec.is_constant_size:
        raise ValueError(
            f"kernel {spec.kernel.formula} has no finite features, so its state is the growing key/value cache; use form='parallel' "
            "(all scores), form='fused' where it applies, or form='recurrent' (token by token over the cache)"
        )
    has_decay = has_decay or (state is not None and state.age is not None)
    if form == "fused" and (not spec.is_softmax_shaped or has_decay):
        why = "a decay" if has_decay else f"{spec.short_name}"
        raise ValueError(
            f"form='fused' needs plain exponentials under a row sum or a scale-free norm, not {why}; use form='auto'"
        )
    if form == "reference" and state is not None:
        raise ValueError(
            "form='reference' takes whole sequences, no initial_state; use it to check the other forms on the whole"
        )
