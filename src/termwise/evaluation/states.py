"""Checks of states: rolled back, branched, saved, of one sum whatever the pieces were."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from termwise.attention.state import AttentionState
from termwise.evaluation.exam import FORK, Exam
from termwise.evaluation.forms import single_tokens
from termwise.evaluation.judging import PROMISED, Outcome
from termwise.evaluation.tracing import Errors, Parts, joined, rows

TAIL = 6  # tokens after a rollback


def rolled_back(exam: Exam) -> Outcome:
    """Other tokens taken back again, before and after folds, by a number and by the length to keep; then the right ones."""
    chance, fold = exam.chance("crop"), exam.sizes.first_fold
    cache, start, found = exam.new_cache(), 0, []
    for place in (30, fold - 1, fold, fold + 1, fold + 65):
        exam.traced(exam.ids(0, start, place), cache=cache)
        start = place
        for count in (1, min(chance.randint(2, 63), place), 64):
            branch = cache.copy()
            wrong = exam.garbage[place : place + count][None].to(exam.model.device)
            exam.traced.in_pieces(wrong, [count] if count % 2 else [1, count - 1], branch)
            branch.crop(-count if count != 1 else place)
            found.append(exam.errors(_after(exam, 0, place, branch), 0, place))
    return exam.judge(Errors.join(found), "a sequence rolled back")


def _after(exam: Exam, index: int, place: int, cache: Any) -> Parts:
    """The next rows of a sequence, in steps and in a piece."""
    ids = exam.ids(index, place, place + TAIL)
    return rows(exam.traced.in_pieces(ids, [1, 1, ids.shape[1] - 2], cache), 0)


def branches(exam: Exam) -> Outcome:
    """Two continuations of one cache, in turn, and then the cache itself."""
    prefix = exam.sizes.prefixes[0]
    cache = exam.new_cache()
    exam.traced(exam.ids(1, 0, prefix), cache=cache)
    twins = {1: cache.copy(), FORK: cache.copy()}
    pieces: dict[int, list[Parts]] = {1: [], FORK: []}
    for step in range(20):
        for index, branch in twins.items():
            place = prefix + step
            pieces[index].append(exam.traced(exam.ids(index, place, place + 1), cache=branch))
    found = [exam.errors(rows(joined(parts), 0), index, prefix) for index, parts in pieces.items()]
    found.append(exam.errors(_after(exam, 1, prefix, cache), 1, prefix))
    return exam.judge(Errors.join(found), "one of two branches of a cache")


def saved(exam: Exam) -> Outcome:
    """Every layer's states written to files and read again."""
    place = exam.sizes.first_fold + 5
    cache = exam.new_cache()
    exam.traced(exam.ids(0, 0, place), cache=cache)
    with tempfile.TemporaryDirectory() as folder:
        for number, layer in enumerate(cache.layers):
            loaded = []
            for part, state in enumerate(layer.states):
                path = Path(folder) / f"{number}-{part}.safetensors"
                state.save(path)
                loaded.append(AttentionState.load(path, device=exam.model.device))
            layer.hold(loaded)
    return exam.judge(exam.errors(_after(exam, 0, place, cache), 0, place), "states saved and loaded")


def same_states(exam: Exam) -> Outcome:
    """The states after one prefill and after single tokens: every tensor of every layer."""
    single_tokens(exam)
    cache = exam.new_cache()
    exam.traced(exam.ids(0), cache=cache)
    limit = PROMISED.get(exam.dtype)
    worst, place = 0.0, (0, "")
    for number, (one, other) in enumerate(zip(cache.layers, exam.single.layers, strict=True)):
        for state, twin in zip(one.states, other.states, strict=True):
            for name, error in _apart(state, twin).items():
                if error > worst:
                    worst, place = error, (number, name)
    if limit is None:
        return Outcome(None, status="not_measured", reason="bfloat16 inputs differ by rounding; see the twin's states")
    attentions = place[0] + 1
    where = {"layer": place[0]}
    if worst <= limit * attentions:
        return Outcome(worst, limit * attentions, where=where)
    reason = (
        f"the state after one prefill differs from the state after single tokens: {place[1]} of layer {place[0]} by {worst:.2g}, "
        f"allowed is {limit * attentions:.2g}"
    )
    return Outcome(worst, limit * attentions, "failed", reason, where=where)


def _apart(state: AttentionState, twin: AttentionState) -> dict[str, float]:
    """Relative distance of each tensor, infinite where shapes differ."""
    found = {}
    for name, tensor in state.tensors.items():
        other = twin.tensors.get(name)
        if other is None or other.shape != tensor.shape:
            found[name] = float("inf")
            continue
        one, two = tensor.double(), other.double()
        same = (one == two) | (one.isnan() & two.isnan())
        difference = torch.where(same, torch.zeros_like(one), one - two)
        found[name] = float(difference.norm() / two[two.isfinite()].norm().clamp(min=1e-300)) if one.numel() else 0.0
    return found


def wide_sums(exam: Exam) -> Outcome:
    """The tensors of every state are float32 or wider."""
    cache = exam.new_cache()
    exam.traced(exam.ids(0), cache=cache)
    narrow = [
        f"{name} of layer {number} is {tensor.dtype}"
        for number, layer in enumerate(cache.layers)
        for state in layer.states
        for name, tensor in state.tensors.items()
        if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < 32
    ]
    counted: dict[str, Any] = {"metric": "narrow_tensors", "unit": "tensors"}
    if narrow:
        return Outcome(len(narrow), 0, "failed", f"sums are kept below float32: {narrow[0]}", **counted)
    return Outcome(0, 0, **counted)
