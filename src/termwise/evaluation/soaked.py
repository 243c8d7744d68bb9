"""What a long stream must show: no drift from float64, bytes that stay, no bad rows."""

from __future__ import annotations

from typing import Any

import torch

from termwise.evaluation.judging import PROMISED, Outcome
from termwise.evaluation.soak import STEPS, Stream

CHOSEN = "heavy slots of layer {layer} chose between nearly equal weights otherwise than the float64 twin, and hold other keys since"


def drift(seen: Stream) -> Outcome:
    """The worst layer in the last part, beside its twin; the promise for one attention."""
    last = seen.parts[-1].errors
    limits = {layer: _limit(seen.dtype, rounding) for layer, (_, rounding) in last.items()}
    layer = max(last, key=lambda one: last[one][0] / limits[one])
    where: dict[str, Any] = {"layer": layer, "position": seen.parts[-1].stop - 1}
    bad = [
        (part.stop, one, error, _limit(seen.dtype, rounding))
        for part in seen.parts
        for one, (error, rounding) in part.errors.items()
        if not error <= _limit(seen.dtype, rounding)
    ]
    if not bad:
        return Outcome(last[layer][0], limits[layer], where=where)
    stop, one, error, limit = bad[0]
    reason = (
        f"the stream differs from its float64 twin: layer {one} by {error:.2g} in the part that ends at token {stop:,}, allowed is "
        f"{limit:.2g} ({last[layer][0]:.2g} in the last part)"
    )
    if one in seen.chosen:
        return Outcome(error, limit, "excluded", CHOSEN.format(layer=one), where={"layer": one})
    return Outcome(error, limit, "failed", reason, where={"layer": one, "position": stop - 1})


def _limit(dtype: torch.dtype, rounding: float) -> float:
    return PROMISED.get(dtype, 2 * rounding)


def far(seen: Stream, num_layers: int) -> Outcome:
    """Logits at the ends of pieces against a full pass; both may be off by what is promised."""
    if seen.far is None:
        return Outcome(None, status="excluded", reason="a full pass over the stream is compared in float32 alone")
    places, errors = seen.far
    limit = 2 * PROMISED[seen.dtype] * num_layers
    value, method = float(errors.square().mean().sqrt()), f"{len(places)} places up to token {places[-1] + 1:,}"
    bad = ~(errors <= limit)
    if not bool(bad.any()):
        return Outcome(value, limit, method=method, where={"layer": "logits"})
    first = places[int(bad.nonzero()[0])]
    reason = (
        f"the stream differs from one full pass by the parallel form: the logits first at position {first:,} "
        f"({float(errors[bad][0]):.2g}, allowed is {limit:.2g}; {int(bad.sum())} of {len(places)} places)"
    )
    return Outcome(value, limit, "failed", reason, where={"layer": "logits", "position": first})


def states(seen: Stream) -> Outcome:
    """The sums of every state against the twin's: kept in float32, whatever the inputs are."""
    limit = PROMISED[torch.float32]
    layer, (value, name) = max(seen.apart.items(), key=lambda item: item[1][0])
    where = {"layer": layer}
    if value <= limit:
        return Outcome(value, limit, where=where, method=name or None)
    reason = (
        f"{name} of layer {layer} differs from the float64 twin by {value:.2g} at some time, allowed is {limit:.2g}"
    )
    return Outcome(None if value == float("inf") else value, limit, "failed", reason, where=where)


def memory(seen: Stream) -> Outcome:
    """Live bytes: the same at every stop where no head is exact, and as the formula says."""
    sizes = [part.nbytes for part in seen.parts]
    told: dict[str, Any] = {"metric": "live_bytes", "unit": "B"}
    if not seen.is_constant:
        reason = f"some heads are exact, so their cache grows: {sizes[0]:,} B after {seen.parts[0].stop:,} tokens, {sizes[-1]:,} B at the end"
        return Outcome(None, status="excluded", reason=reason, **told)
    full = [part for part in seen.parts[1:] if part.stop >= seen.full_from]
    if len(full) < 2:
        reason = f"exact slots are taken after {seen.full_from:,} tokens only, a stream of {seen.parts[-1].stop:,} is too short (--soak)"
        return Outcome(None, status="not_measured", reason=reason, **told)
    if len({part.nbytes for part in full}) > 1:
        reason = f"no head is exact, yet the cache grows from {full[0].nbytes:,} B after {full[0].stop:,} tokens to {sizes[-1]:,} B"
        return Outcome(sizes[-1], full[0].nbytes, "failed", reason, **told)
    held, formula = seen.parts[-1].held, seen.parts[-1].formula
    if held != formula:
        reason = f"the states hold {held:,} B, the formula says {formula:,} B"
        return Outcome(held, formula, "failed", reason, **told)
    more = f", {sizes[-1] - held:,} B more: room for keys to come" if sizes[-1] > held else ""
    more += "" if seen.has_states_alone else " and inputs of convolutions"
    return Outcome(sizes[-1], formula, method=f"states as the formula says{more}", **told)


def bad_rows(seen: Stream) -> Outcome:
    """Row sums that vanish or turn negative, and logits that are not finite."""
    told: dict[str, Any] = {"metric": "bad_rows", "unit": "rows"}
    total, counts = sum(_counted(seen, "rows")), {kind: _counted(seen, kind) for kind in ("vanishing", "negative")}
    if seen.not_finite is not None:
        reason = f"the logits are not finite at token {seen.not_finite:,}"
        return Outcome(None, 0, "failed", reason, where={"position": seen.not_finite}, **told)
    number = sum(map(sum, counts.values()))
    method = f"of {total:,} rows, vanishing and negative"
    if number == 0:
        return Outcome(0, 0, method=method, **told)
    worst = {kind: max(range(len(held)), key=held.__getitem__) for kind, held in counts.items()}
    said = ", ".join(
        f"{sum(held):,} {kind} (most in layer {worst[kind]})" for kind, held in counts.items() if sum(held)
    )
    reason = f"{said} of {total:,} row sums"
    if seen.may_be_negative:
        return Outcome(None, 0, "excluded", f"{reason}; a kernel of this model is allowed to be negative", **told)
    return Outcome(number, 0, "failed", reason, **told)


def _counted(seen: Stream, kind: str) -> list[int]:
    """Of each layer."""
    return [sum(int(getattr(one, kind).sum()) for one in groups) for groups in seen.rows]


def step_time(seen: Stream) -> Outcome:
    """A step at the end over a step after the first part: reported, not judged."""
    told: dict[str, Any] = {"metric": "step_time_ratio", "unit": "1"}
    method = f"median of {STEPS} steps: {seen.first_step * 1e3:.3g} ms at first, {seen.last_step * 1e3:.3g} ms at last"
    return Outcome(seen.last_step / seen.first_step, method=method, **told)
