"""Checks of generate(): with a cache, from a second call, in a padded batch, with drafts and beams, each as without any cache."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig

from termwise.evaluation.batches import MEMBERS
from termwise.evaluation.exam import Exam
from termwise.evaluation.judging import Outcome
from termwise.models.build import build
from termwise.models.cache import CACHE_FIELD

NEW = 24
DRAFT = 5


def greedy(exam: Exam) -> Outcome:
    """From a prompt before the first fold across it."""
    prompt = exam.ids(0, 0, exam.sizes.first_fold - 10)
    return _compared(exam, prompt, _generate(exam, prompt), "generate()")


def second_call(exam: Exam) -> Outcome:
    """The prompt, its continuation and more text, handed over with the cache of the first call."""
    prompt = exam.ids(1, 0, exam.sizes.prefixes[0])
    first = _generate(exam, prompt, return_dict_in_generate=True)
    more = exam.ids(2, 0, 9)
    longer = torch.cat([first.sequences, more], dim=1)
    out = _generate(exam, longer, **{CACHE_FIELD: getattr(first, CACHE_FIELD)})
    return _compared(exam, longer, out, "a second generate() call")


def in_a_padded_batch(exam: Exam) -> Outcome:
    """Prompts of mixed lengths, padded on either side."""
    lengths = exam.sizes.prefixes
    for side in ("left", "right"):
        width = max(lengths)
        ids = exam.garbage[: len(lengths)][:, None].repeat(1, width).to(exam.model.device)
        mask = torch.zeros(len(lengths), width, dtype=torch.long, device=exam.model.device)
        for row, (index, n) in enumerate(zip(MEMBERS, lengths, strict=True)):
            place = slice(width - n, width) if side == "left" else slice(0, n)
            ids[row, place], mask[row, place] = exam.sequences[index][:n], 1
        out = _generate(exam, ids, attention_mask=mask)
        for row, (index, n) in enumerate(zip(MEMBERS, lengths, strict=True)):
            prompt = exam.ids(index, 0, n)
            whole = torch.cat([prompt, out[row : row + 1, width:]], dim=1)
            found = _compared(exam, prompt, whole, f"generate() of a prompt of {n} in a batch padded on the {side}")
            if found.status != "ok":
                return found
    return found


def prompt_lookup(exam: Exam) -> Outcome:
    """Drafts copied from a prompt that repeats itself, and taken back where they are wrong."""
    piece = exam.ids(0, 0, 45)
    prompt = torch.cat([piece, piece, exam.ids(0, 0, 20)], dim=1)
    return _compared(exam, prompt, _generate(exam, prompt, prompt_lookup_num_tokens=DRAFT), "prompt lookup")


def assisted(exam: Exam) -> Outcome:
    """Drafts of a small model with random weights: nearly all are taken back."""
    config = exam.model.config
    sizes = {"vocab_size": config.vocab_size, "max_position_embeddings": config.max_position_embeddings}
    assistant = build("linear_elu", preset="recall", seed=exam.seed, **sizes)
    assistant.to(exam.model.device, exam.dtype).eval()
    prompt = exam.ids(0, 0, exam.sizes.first_fold - 10)
    return _compared(exam, prompt, _generate(exam, prompt, assistant_model=assistant), "assisted decoding")


def beams(exam: Exam) -> Outcome:
    """Three beams over a padded batch, as without a cache."""
    lengths = (30, 41)
    ids = exam.garbage[:2][:, None].repeat(1, 41).to(exam.model.device)
    mask = torch.zeros(2, 41, dtype=torch.long, device=exam.model.device)
    for row, n in enumerate(lengths):
        ids[row, 41 - n :], mask[row, 41 - n :] = exam.sequences[row][:n], 1
    given: dict[str, Any] = {
        "attention_mask": mask,
        "num_beams": 3,
        "output_scores": True,
        "return_dict_in_generate": True,
    }
    one, two = (_generate(exam, ids, use_cache=has_cache, **given) for has_cache in (True, False))
    same = one.sequences == two.sequences
    counted: dict[str, Any] = {"metric": "tokens_agreeing", "unit": "tokens"}
    gap = float((one.sequences_scores - two.sequences_scores).abs().max())
    if bool(same.all()):
        return Outcome(2 * NEW, 2 * NEW, **counted)
    row, column = same.logical_not().nonzero()[0].tolist()
    if gap <= _tie(exam):
        return Outcome(2 * NEW, 2 * NEW, method=f"equal scores at position {column}", **counted)
    reason = f"beam search with a cache differs from beam search without one: sequence {row} from token {column} on; scores differ by {gap:.2g}"
    return Outcome(int(same[:, 41:].sum()), 2 * NEW, "failed", reason, where={"position": column}, **counted)


def _generate(exam: Exam, ids: Int[Tensor, "B T"], **given: Any) -> Any:
    """Greedy tokens whatever the folder's own generation settings are; never ending early."""
    model = exam.model
    own, mask = model.generation_config, given.pop("attention_mask", torch.ones_like(ids))
    cache = {name: given.pop(name) for name in (CACHE_FIELD, "assistant_model") if name in given}
    settings = GenerationConfig(max_new_tokens=NEW, do_sample=False, **given)
    try:
        # What a folder's own settings say would be filled in where these say nothing.
        model.generation_config = GenerationConfig()
        with torch.no_grad():
            return model.generate(ids, attention_mask=mask, generation_config=settings, **cache)
    finally:
        model.generation_config = own


def _compared(exam: Exam, prompt: Tensor, out: Tensor, what: str) -> Outcome:
    """Every token must be the likeliest by one full pass over the text before it; a tie within rounding counts as agreeing."""
    counted: dict[str, Any] = {"metric": "tokens_agreeing", "unit": "tokens"}
    start = prompt.shape[1]
    if not torch.equal(out[:, :start], prompt) or out.shape[1] != start + NEW:
        reason = f"{what} gave {out.shape[1] - start} new tokens after a prompt of {start}, {NEW} were asked for"
        return Outcome(0, NEW, "failed", reason, **counted)
    with torch.no_grad():
        logits = exam.model(out[:, :-1], use_cache=False, logits_to_keep=NEW).logits[0].double()
    taken = logits.gather(1, out[0, start:, None])[:, 0]
    short = (logits.amax(dim=1) - taken) / logits.abs().amax()
    is_off = ~(short <= _tie(exam))
    if not bool(is_off.any()):
        return Outcome(NEW, NEW, **counted)
    place = int(is_off.nonzero()[0])
    reason = (
        f"{what} differs from full passes without a cache: from position {start + place} on, where its token lies "
        f"{float(short[place]):.2g} of the largest logit below the likeliest"
    )
    return Outcome(int((~is_off).sum()), NEW, "failed", reason, where={"position": start + place}, **counted)


def _tie(exam: Exam) -> float:
    """Logits that near are equal: what the logits may be off by."""
    return float(exam.tolerances(exam.errors([part[:] for part in exam.exact(0)], 0))[-1])
