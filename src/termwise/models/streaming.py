"""Text as it is generated, piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from termwise.attention.backends import compiled_loops
from termwise.attention.state import FOLD, RESERVE, num_recent
from termwise.models.build import load
from termwise.models.cache import CACHE_FIELD, TermwiseCache
from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.models.devices import named_dtype, usable_device


class TextStream(BaseStreamer):
    """Hands on text once no later token can change it: a character cut between two tokens waits for its rest."""

    def __init__(self, tokenizer: Any, write: Callable[[str], object]) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] = []
        self.times: list[float] = []
        self.shown = 0
        self.is_prompt = True

    def put(self, value: Tensor) -> None:
        if self.is_prompt:
            self.is_prompt = False
            return
        self.times.append(time.perf_counter())
        self.ids.extend(value.flatten().tolist())
        self._show(self.text.rstrip("\ufffd"))

    def end(self) -> None:
        self._show(self.text)

    @property
    def tokens_per_second(self) -> float | None:
        """From the first new token to the last, so that reading the prompt does not count; None for fewer than two."""
        if len(self.times) < 2:
            return None
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])

    @property
    def text(self) -> str:
        return self.tokenizer.decode(self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _show(self, text: str) -> None:
        if len(text) > self.shown:
            self.write(text[self.shown :])
            self.shown = len(text)


def token_ids(tokenizer: Any, text: str, what: str) -> Tensor:
    """(1, T) ids of a text from outside. ValueError, naming `what`, for bytes that are no UTF-8 (Python keeps them as surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} is no valid UTF-8: {error.object[error.start]!a} at character {error.start}; a character cut in two does this"
        ) from None
    return tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]


@torch.no_grad()
def warm(model: TermwiseForCausalLM, num_prompt: int, num_new: int, reads_half: bool) -> None:
    """Compile what decoding will run, where it is compiled: two steps against throw-away states.

    Behind so many tokens that keys were folded, unless the prompt does that itself or the whole text stays shorter.
    """
    specs = [group.spec for layer in model.config.groups for group in layer if group.spec.is_constant_size]
    if not specs or compiled_loops() is None:
        return
    until_folded = FOLD + RESERVE + max(map(num_recent, specs))
    length = 1 if num_prompt >= until_folded else min(until_folded, num_prompt + num_new)
    ids = torch.zeros(1, min(length, model.config.max_position_embeddings), dtype=torch.long, device=model.device)
    cache = TermwiseCache(model.config.num_hidden_layers, reads_half)
    for piece in (ids[:, 2:] if ids.shape[1] > 2 else ids[:, :1], ids[:, :1], ids[:, :1]):
        model(piece, cache=cache, logits_to_keep=1)


def generate_text(
    folder: str | Path,
    prompt: str,
    *,
    max_tokens: int = 200,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
    device: str = "cpu",
    dtype: str | None = None,
    reads_half: bool = False,
    write: Callable[[str], object] = lambda piece: None,
) -> dict[str, Any]:
    """Go on from a prompt with the model of a folder; `write` gets the new text as it comes.

    What is compiled is compiled before the clock starts; `tokens_per_second` counts from the first new token on (None for one token).
    temperature 0 takes the likeliest token each time. `reads_half`: states are read from bfloat16 copies. Errors: ValueError for
    a folder without model or tokenizer, an empty prompt, numbers out of range.
    """
    if not temperature >= 0 or not 0 < top_p <= 1 or max_tokens < 1:
        raise ValueError(
            f"temperature={temperature}, top_p={top_p}, max_tokens={max_tokens}; allowed are temperature from 0, "
            "top_p above 0 and at most 1, max_tokens from 1"
        )
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed}; allowed are whole numbers from 0 to {2**32 - 1}")
    place, number_type = usable_device(device), named_dtype(dtype)
    model, tokenizer = load(folder)
    if tokenizer is None:
        raise ValueError(f"{folder} holds no tokenizer, so no text goes in or out; copy a tokenizer.json into it")
    ids = token_ids(tokenizer, prompt, "the prompt")
    if ids.shape[1] == 0:
        raise ValueError("the prompt is empty; give at least one character to go on from")
    placed: Any = model.eval()
    placed.to(place, dtype=number_type)
    # A state too large to hold: the whole text is read at every step.
    cache = None if model.model.no_state else TermwiseCache(model.config.num_hidden_layers, reads_half)
    stream = TextStream(tokenizer, write)
    draws: dict[str, Any] = {"do_sample": False, **({CACHE_FIELD: cache} if cache else {"use_cache": False})}
    if temperature > 0:
        draws |= {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    if cache:
        warm(model, ids.shape[1], max_tokens, reads_half)
    torch.manual_seed(seed)
    started = time.perf_counter()
    model.generate(
        ids.to(model.device), max_new_tokens=max_tokens, streamer=stream,
        pad_token_id=_first(model.config.eos_token_id), **draws,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    return {
        "text": stream.text,
        "tokens": len(stream.ids),
        "seconds": seconds,
        "first_token_seconds": stream.times[0] - started,
        "tokens_per_second": stream.tokens_per_second,
        "state_bytes": cache.nbytes if cache else 0,
    }


def _first(ids: int | list[int] | None) -> int | None:
    """One id of those that end a text: what stands behind a shorter sequence."""
    return ids[0] if isinstance(ids, list) else ids
