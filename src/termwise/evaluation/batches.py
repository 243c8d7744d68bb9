"""Checks of several sequences at once: padding, batches, packed documents, beams."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from termwise.evaluation.exam import FORK, Exam
from termwise.evaluation.judging import Outcome, bits
from termwise.evaluation.tracing import Errors, Parts, rows

MEMBERS = (1, 2, 3, 4)  # the sequences of a batch
SIDES = ("left", "right", "scattered")


def padded(side: str) -> Any:
    """A batch of mixed lengths, other tokens under the padding: without a cache, and with one, then continued."""

    def check(exam: Exam) -> Outcome:
        mask = _mask(exam, side)
        ids = _filled(exam, mask)
        given = {"attention_mask": mask.long()}
        found = _prompts(exam, exam.traced(ids, use_cache=False, **given), mask)
        cache = exam.new_cache()
        found += _prompts(exam, exam.traced(ids, cache=cache, **given), mask)
        found += _continued(exam, cache, mask, MEMBERS)
        return exam.judge(
            Errors.join(found), f"a batch padded on the {side}" if side != "scattered" else "padding inside"
        )

    return check


def nan_under_padding(exam: Exam) -> Outcome:
    """Embeddings of NaN at every padded place, on either side."""
    found = []
    embed = exam.model.get_input_embeddings()
    for side in ("left", "right"):
        mask = _mask(exam, side)
        with torch.no_grad():
            embeds = embed(_filled(exam, mask)).masked_fill(~mask[..., None], torch.nan)
        given = {"inputs_embeds": embeds, "attention_mask": mask.long()}
        found += _prompts(exam, exam.traced(use_cache=False, **given), mask)
        cache = exam.new_cache()
        found += _prompts(exam, exam.traced(cache=cache, **given), mask)
        found += _continued(exam, cache, mask, MEMBERS)
    return exam.judge(Errors.join(found), "a batch with NaN under its padding")


def in_a_batch(exam: Exam) -> Outcome:
    """Two sequences of one length: a full pass, and pieces through a cache."""
    length = len(exam.sequences[1])
    ids = torch.cat([exam.ids(0, 0, length), exam.ids(1)])
    pieces = [exam.sizes.prefixes[0], 1, 1, length - exam.sizes.prefixes[0] - 2]
    runs = [exam.traced(ids, use_cache=False), exam.traced.in_pieces(ids, pieces, exam.new_cache())]
    found = [exam.errors(rows(parts, index), index) for parts in runs for index in (0, 1)]
    return exam.judge(Errors.join(found), "a sequence in a batch")


def packed(exam: Exam) -> Outcome:
    """Documents along one row: by cu_seqlens, by positions that restart, and in documents of one length."""
    lengths = [len(sequence) for sequence in exam.batch(*MEMBERS)]
    row = torch.cat(exam.batch(*MEMBERS))[None]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(row.device)
    found = []
    for given in ({"cu_seqlens": bounds}, {"position_ids": positions}):
        found += _documents(exam, exam.traced(row, use_cache=False, **given), MEMBERS, lengths)
    short = min(lengths)
    even = torch.cat([sequence[:short] for sequence in exam.batch(*MEMBERS)])[None]
    even_bounds = torch.arange(len(MEMBERS) + 1, dtype=torch.int32) * short
    found += _documents(
        exam, exam.traced(even, use_cache=False, cu_seqlens=even_bounds), MEMBERS, [short] * len(MEMBERS)
    )
    return exam.judge(Errors.join(found), "packed documents")


def packed_then_continued(exam: Exam) -> Outcome:
    """Documents along one row whose states then go on as a batch."""
    prefixes = exam.sizes.prefixes
    row = torch.cat([exam.sequences[i][:n] for i, n in zip(MEMBERS, prefixes, strict=True)])[None]
    bounds = torch.tensor([0, *prefixes]).cumsum(0).to(torch.int32)
    cache = exam.new_cache()
    found = _documents(exam, exam.traced(row, cache=cache, cu_seqlens=bounds), MEMBERS, prefixes)
    found += _continued(exam, cache, None, MEMBERS)
    return exam.judge(Errors.join(found), "packed documents continued as a batch")


def packed_apart(exam: Exam) -> Outcome:
    """Other tokens in one document leave every row of the others bit for bit."""
    lengths = [len(sequence) for sequence in exam.batch(*MEMBERS)]
    ids = torch.cat(exam.batch(*MEMBERS))[None]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    start, stop = int(bounds[1]), int(bounds[2])
    changed = ids.clone()
    changed[0, start:stop] = (changed[0, start:stop] + 1) % exam.model.config.vocab_size
    before, after = (rows(exam.traced(x, use_cache=False, cu_seqlens=bounds), 0) for x in (ids, changed))
    counted: dict[str, Any] = {"metric": "rows_changed", "unit": "rows"}
    for part, (one, two) in enumerate(zip(before, after, strict=True)):
        moved = bits(one, two)
        moved[start:stop] = False
        if bool(moved.any()):
            first = int(moved.nonzero()[0])
            document = int((bounds[1:] <= first).sum())
            where: dict[str, Any] = {
                "layer": part if part < exam.layers else "logits",
                "position": first - int(bounds[document]),
            }
            reason = (
                f"packed documents see each other: other tokens in document 1 change document {document} from its position "
                f"{where['position']} on, in {'layer ' + str(part) if part < exam.layers else 'the logits'}"
            )
            return Outcome(int(moved.sum()), 0, "failed", reason, where=where, **counted)
    return Outcome(0, 0, **counted)


def reordered(exam: Exam) -> Outcome:
    """The rows of a padded batch permuted, picked twice and moved on; two rows of one origin go on differently."""
    mask = _mask(exam, "left")
    cache = exam.new_cache()
    exam.traced(_filled(exam, mask), cache=cache, attention_mask=mask.long())
    cache.batch_select_indices(torch.tensor([2, 0, 0, 3, 1]))
    order = [3, 1, FORK, 4, 2]
    found, done = [], [_prefix(exam, i) for i in order]
    for step, size in enumerate((1, 1, 20, 1, 30, 2)):
        found += _stepped(exam, cache, order, done, size)
        done = [n + size for n in done]
        if step < 3:
            turn = exam.chance(f"order {step}").sample(range(len(order)), len(order))
            cache.reorder_cache(torch.tensor(turn))
            order, done = [order[i] for i in turn], [done[i] for i in turn]
    return exam.judge(Errors.join(found), "a batch whose rows were reordered")


def repeated(exam: Exam) -> Outcome:
    """One sequence repeated for beams, its copies reordered by beam search's own call."""
    prefix = _prefix(exam, 1)
    cache = exam.new_cache()
    exam.traced(exam.ids(1, 0, prefix), cache=cache)
    cache.batch_repeat_interleave(3)
    found = _stepped(exam, cache, [1, FORK, 1], [prefix] * 3, 1)
    cache.reorder_cache(torch.tensor([1, 0, 0]))
    order, done = [FORK, 1, 1], [prefix + 1] * 3
    for size in (1, 1, 40, 1):
        found += _stepped(exam, cache, order, done, size)
        done = [n + size for n in done]
    return exam.judge(Errors.join(found), "copies of a sequence, as beams")


def rolled_back_together(exam: Exam) -> Outcome:
    """A padded batch that went on with other tokens, taken back, then with the right ones."""
    mask = _mask(exam, "left")
    cache = exam.new_cache()
    exam.traced(_filled(exam, mask), cache=cache, attention_mask=mask.long())
    found, done = _stepped(exam, cache, MEMBERS, list(exam.sizes.prefixes), 12), [n + 12 for n in exam.sizes.prefixes]
    for count in (5, 12, 41):
        branch = cache.copy()
        wrong = exam.garbage[: count * len(MEMBERS)].reshape(len(MEMBERS), count).to(exam.model.device)
        exam.traced.in_pieces(wrong, [1] * (count % 4) + [count - count % 4], branch)
        branch.crop(-count)
        found += _stepped(exam, branch, MEMBERS, done, 3)
    return exam.judge(Errors.join(found), "a padded batch rolled back")


def _prefix(exam: Exam, index: int) -> int:
    return exam.sizes.prefixes[0 if index == FORK else index - 1]


def _mask(exam: Exam, side: str) -> Bool[Tensor, "B T"]:
    """Where the prompts of the batch stand; the longest is padded as well."""
    prefixes = exam.sizes.prefixes
    width = max(prefixes) + 3
    mask = torch.zeros(len(prefixes), width, dtype=torch.bool)
    for row, length in enumerate(prefixes):
        if side == "left":
            mask[row, width - length :] = True
        elif side == "right":
            mask[row, :length] = True
        else:
            mask[row, random.Random(row).sample(range(width), length)] = True
    return mask.to(exam.model.device)


def _filled(exam: Exam, mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The prompts in their places, any tokens around them."""
    places = torch.arange(mask.numel()) % len(exam.garbage)
    ids = exam.garbage[places].reshape(mask.shape).to(mask.device)
    for row, (index, length) in enumerate(zip(MEMBERS, exam.sizes.prefixes, strict=True)):
        ids[row, mask[row]] = exam.sequences[index][:length]
    return ids


def _prompts(exam: Exam, parts: Parts, mask: Bool[Tensor, "B T"]) -> list[Errors]:
    return [exam.errors(rows(parts, row, mask[row]), index) for row, index in enumerate(MEMBERS)]


def _documents(exam: Exam, parts: Parts, indices: Sequence[int], lengths: Sequence[int]) -> list[Errors]:
    bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
    places = zip(indices, bounds[:-1], bounds[1:], strict=True)
    return [exam.errors(rows(parts, 0, slice(start, stop)), index) for index, start, stop in places]


def _stepped(exam: Exam, cache: Any, order: Sequence[int], done: Sequence[int], size: int) -> list[Errors]:
    """The next `size` tokens of every row in one call."""
    ids = torch.cat([exam.ids(index, n, n + size) for index, n in zip(order, done, strict=True)])
    parts = exam.traced(ids, cache=cache)
    places = zip(order, done, strict=True)
    return [exam.errors(rows(parts, row), index, n) for row, (index, n) in enumerate(places)]


def _continued(exam: Exam, cache: Any, mask: Tensor | None, order: Sequence[int]) -> list[Errors]:
    """All rows go on by the rest of their text, in steps and pieces, so that they fold at different columns."""
    done = [_prefix(exam, index) for index in order]
    pieces: list[list[Errors]] = []
    for size in (1, 1, 2, 31, 1, 1, 40, 1, 2):
        ids = torch.cat([exam.ids(index, n, n + size) for index, n in zip(order, done, strict=True)])
        given = {}
        if mask is not None:
            # The first calls as generate() makes them, with the whole mask so far.
            mask = torch.cat([mask, mask.new_ones(len(order), size)], dim=1)
            given = {"attention_mask": mask.long()} if size != 40 else {"attention_mask": torch.ones_like(ids)}
        parts = exam.traced(ids, cache=cache, **given)
        places = zip(order, done, strict=True)
        pieces.append([exam.errors(rows(parts, row), index, n) for row, (index, n) in enumerate(places)])
        done = [n + size for n in done]
    return [one for piece in pieces for one in piece]
