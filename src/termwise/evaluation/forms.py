"""Checks of one sequence: the forms of attention, prefill splits, states that are saved, branched and rolled back."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from termwise.attention.forms import attend
from termwise.attention.kernels import FeatureMap
from termwise.attention.reference import reference_rows
from termwise.evaluation.exam import EXACT, Exam, forced, random_pieces, specs_of
from termwise.evaluation.judging import PROMISED, Outcome, bits, judged
from termwise.evaluation.tracing import Errors, Parts, rms, rows
from termwise.models.rotary import LENGTH_DEPENDENT

# The first whole number that bfloat16 does not know.
MOVED = 257
OPTIONS = ("scale", "key_mask", "input_gate", "output_gate", "log_decay", "parameters")


def definition(exam: Exam) -> Outcome:
    """Single rows of every attention by the definition (a loop over keys, float64), on what the parallel form was given."""
    wanted = _telling_rows(exam)
    worst: dict[tuple[int, int], float] = {}

    def by(layer: int) -> Any:
        def run(query: Tensor, key: Tensor, value: Tensor, spec: Any, **given: Any) -> Any:
            out, state = attend(query, key, value, spec, **given, form="parallel")
            options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
            if spec.evicts:  # a row depends on all before it
                exact = attend(query, key, value, spec, **options, form="reference")[0][:, wanted]
            else:
                exact = reference_rows(query, key, value, spec, wanted, **options)
            for place, row in enumerate(wanted):
                size = exact[:, place].norm().clamp(min=1e-300)
                error = float((out[:, row].double() - exact[:, place]).norm() / size)
                worst[layer, row] = max(worst.get((layer, row), 0.0), error)
            return out, state

        return run

    with torch.no_grad(), exam.model.attending(by):
        exam.model(exam.ids(0), use_cache=False)
    (layer, row), value = max(worst.items(), key=lambda item: item[1])
    limit = PROMISED[torch.float64]
    where = {"layer": layer, "position": row}
    method = f"{len(wanted)} rows of every layer"
    if value <= limit:
        return Outcome(value, limit, where=where, method=method)
    first = min(key for key, error in worst.items() if not error <= limit)
    reason = (
        f"the parallel form differs from the definition: first in layer {first[0]}, at position {first[1]} "
        f"({worst[first]:.2g}, allowed is {limit:.2g})"
    )
    return Outcome(value, limit, "failed", reason, where={"layer": first[0], "position": first[1]})


def _telling_rows(exam: Exam) -> list[int]:
    """The ends, the borders of windows and folds, and three between."""
    fold, length = exam.sizes.first_fold, exam.sizes.main
    near = {fold - 127 + step for step in (-1, 0, 1)}
    wanted = {0, 1, 63, 64, 65, 127, 128, fold - 1, fold, fold + 64, length - 1} | near
    return sorted({row for row in wanted if 0 <= row < length} | set(exam.chance("rows").sample(range(length), 3)))


def plain(exam: Exam) -> Outcome:
    """The parallel form itself in this precision: the promise in float32; in bfloat16 the yardstick of the others, so finite."""
    errors = exam.errors(exam.parallel(0), 0)
    if exam.dtype in PROMISED:
        return judged(errors, None, exam.dtype, ("the parallel form in float32", EXACT))
    value = float(rms(errors.values).max())
    if math.isfinite(value):
        return Outcome(value)
    return Outcome(None, status="failed", reason=f"the parallel form in {exam.stage} is not finite")


def full(exam: Exam) -> Outcome:
    """A full forward pass in the form that `auto` takes, without a state."""
    return exam.judge(exam.errors(rows(exam.traced(exam.ids(0), use_cache=False), 0), 0), "a full forward pass")


def chunked(exam: Exam) -> Outcome:
    """In chunks of the usual size, of 64, and of another."""
    if not any(spec.is_constant_size for spec in specs_of(exam.model.config)):
        return Outcome(None, status="excluded", reason="no layer has a state of constant size, so none runs in chunks")
    found = []
    for size in (None, 64, exam.chance("chunks").randint(5, 61)):
        with exam.model.attending(forced("chunked", size)):
            found.append(exam.errors(rows(exam.traced(exam.ids(0), use_cache=False), 0), 0))
    return exam.judge(Errors.join(found), "the chunked form")


def recurrent(exam: Exam) -> Outcome:
    """Token by token inside one forward pass."""
    with exam.model.attending(forced("recurrent")):
        parts = rows(exam.traced(exam.ids(0), use_cache=False), 0)
    return exam.judge(exam.errors(parts, 0), "the recurrent form")


def token_by_token(exam: Exam) -> Outcome:
    """Every token a call, from an empty cache."""
    return exam.judge(single_tokens(exam), "decoding token by token")


def beyond_256(exam: Exam) -> Outcome:
    """The same, positions above 256 alone: bfloat16 counts no further."""
    errors = single_tokens(exam)
    return exam.judge(errors.only(errors.position > 256), "decoding beyond position 256")


def moved(exam: Exam) -> Outcome:
    """All positions later by as much: rotary sees differences alone, unless positions were rounded on their way."""
    rotary = exam.model.model.rotary
    if rotary.type in LENGTH_DEPENDENT:
        reason = (
            f"rotary of type {rotary.type!r} turns by other frequencies at other lengths, so positions cannot be moved"
        )
        return Outcome(None, status="excluded", reason=reason)
    if absolute := [spec.short_name for spec in specs_of(exam.model.config) if not _sees_differences(spec)]:
        reason = (
            f"{absolute[0]} maps turned keys one number at a time or by fixed centers, so it sees positions themselves"
        )
        return Outcome(None, status="excluded", reason=reason)
    positions = torch.arange(exam.sizes.main, device=exam.ids(0).device)[None] + MOVED
    parts = rows(exam.traced(exam.ids(0), position_ids=positions, use_cache=False), 0)
    return exam.judge(exam.errors(parts, 0), f"a full forward pass at positions from {MOVED} on")


def _sees_differences(spec: Any) -> bool:
    """Whether keys and queries that are turned together leave every weight as it is."""
    kernel = spec.kernel
    if isinstance(kernel, FeatureMap):
        return kernel.name in ("identity", "unit") and (kernel.power == 1 or kernel.power_of == "product")
    return getattr(kernel, "centers", 1) == 1


def single_tokens(exam: Exam) -> Errors:
    """Rows of sequence 0 by single tokens; read once a stage."""
    if exam.single is None:
        exam.single = exam.new_cache()
        exam.single_rows = rows(exam.traced.in_pieces(exam.ids(0), [1] * exam.sizes.main, exam.single), 0)
    return exam.errors(exam.single_rows, 0)


def split_at(size: int) -> Any:
    """A prefill of `size`, two single tokens, the rest in pieces."""

    def check(exam: Exam) -> Outcome:
        pieces = _pieces(exam, size, f"split {size}")
        return exam.judge(_split(exam, pieces), f"a prefill of {size}, then pieces")

    return check


def random_splits(exam: Exam) -> Outcome:
    """Three random ways to hand the sequence over."""
    chance = exam.chance("splits")
    found = [_split(exam, random_pieces(chance, exam.sizes.main, most)) for most in (9, 70, 200)]
    return exam.judge(Errors.join(found), "a prefill in random pieces")


def _pieces(exam: Exam, size: int, name: str) -> list[int]:
    return [size, 1, 1, *random_pieces(exam.chance(name), exam.sizes.main - size - 2, 70)]


def _split(exam: Exam, pieces: list[int]) -> Errors:
    return exam.errors(rows(exam.traced.in_pieces(exam.ids(0), pieces, exam.new_cache()), 0), 0)


def causal(exam: Exam) -> Outcome:
    """Another token at one place leaves every earlier row of every layer bit for bit, without a cache, with one, in a piece after one."""
    length = exam.sizes.main
    places = sorted({1, 63, 64, exam.sizes.first_fold + 1, length - 1})
    ways = {"without a cache": (0, False), "with a cache": (0, True), "after a prefill": (60, True)}
    for name, (start, has_cache) in ways.items():
        before = _piece(exam, exam.ids(0), start, has_cache)
        for place in (p for p in places if p > start):
            changed = exam.ids(0).clone()
            changed[0, place] = (changed[0, place] + 1) % exam.model.config.vocab_size
            after = _piece(exam, changed, start, has_cache)
            for part, (one, two) in enumerate(zip(before, after, strict=True)):
                leaked = bits(one[: place - start], two[: place - start])
                if bool(leaked.any()):
                    return _leak(exam, name, place, part, start + int(leaked.nonzero()[0]), int(leaked.sum()))
            if not bool(bits(before[-1][place - start :], after[-1][place - start :]).any()):
                reason = f"another token at position {place} changes nothing, {name}: this check has no power here"
                return Outcome(None, status="not_measured", reason=reason)
    return Outcome(0, 0, metric="rows_changed", unit="rows", method=f"{len(places)} places, 3 ways, every layer")


def _leak(exam: Exam, name: str, place: int, part: int, row: int, count: int) -> Outcome:
    layer = f"layer {part}" if part < exam.layers else "the logits"
    reason = f"the model sees the future, {name}: another token at position {place} changes position {row} in {layer}"
    where = {"layer": part if part < exam.layers else "logits", "position": row}
    return Outcome(count, 0, "failed", reason, metric="rows_changed", unit="rows", where=where)


def _piece(exam: Exam, ids: Tensor, start: int, has_cache: bool) -> Parts:
    if not has_cache:
        return rows(exam.traced(ids, use_cache=False), 0)
    cache = exam.new_cache()
    if start:
        exam.traced(ids[:, :start], cache=cache)
    return rows(exam.traced(ids[:, start:], cache=cache), 0)


def sensitivity(exam: Exam) -> Outcome:
    """How much a text that begins one token later changes the layer that it changes least."""
    exam.model.to(torch.float64)
    with contextlib.ExitStack() as after:
        after.callback(exam.model.to, exam.dtype)
        with exam.model.attending(forced("parallel")):
            shifted = rows(exam.traced(exam.ids(0)[:, 1:], use_cache=False), 0)
    later = [part[1:] for part in exam.exact(0)]
    found = Errors.of(shifted, later, 0, torch.arange(len(later[-1])))
    change = found.values.square().mean(dim=0).sqrt()
    least = int(change.argmin())
    limit = float(exam.tolerances(found)[least])
    where = {"layer": least if least < exam.layers else "logits"}
    told: dict[str, Any] = {"metric": "change_by_one_token", "where": where, "method": "float64, least over layers"}
    if float(change[least]) < 2 * limit:
        reason = (
            f"a text that begins one token later changes layer {where['layer']} by {float(change[least]):.2g} only, "
            f"less than twice what is allowed there ({limit:.2g}): a mistake of one token could pass in it"
        )
        return Outcome(None, status="not_measured", reason=reason, **told)
    return Outcome(float(change[least]), limit, **told)
