"""The text of a conversion: what is trained on, what is watched while training, what is scored at the end. None overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.spread import SpreadWindows

if TYPE_CHECKING:
    from termwise.data.text import Text
    from termwise.data.tokens import Batch, Tokens, Window

HELD_OUT = 0.1  # of the text: less of it than a study has, and two uses
WATCHED_EVERY = 4  # one held-out window in so many is watched, the others are scored
WATCHED_TOKENS = 8192
ROWS = 8


@dataclass(frozen=True)
class Texts:
    """`watched` steers (when to stop, which weights are best), `scored` judges; both are held out."""

    text: Text
    watched: list[Batch]
    scored: SpreadWindows
    context: int

    @property
    def notes(self) -> list[str]:
        """What must be said aloud."""
        return self.text.notes


class EveryWindow:
    """A part of a text of which the windows are taken whose number is, or is not, a multiple of WATCHED_EVERY."""

    def __init__(self, tokens: Tokens, *, is_watched: bool) -> None:
        self._tokens, self._is_watched = tokens, is_watched
        self.vocab_size, self.token_bytes = tokens.vocab_size, tokens.token_bytes
        self.document_bytes, self.document_lengths = tokens.document_bytes, tokens.document_lengths
        share = 1 / WATCHED_EVERY if is_watched else 1 - 1 / WATCHED_EVERY
        self.num_tokens = max(1, round(tokens.num_tokens * share))

    def windows(self, context: int) -> Iterator[Window]:
        """The windows of this side, in order."""
        for number, window in enumerate(self._tokens.windows(context)):
            if (number % WATCHED_EVERY == 0) == self._is_watched:
                yield window


def open_texts(
    paths: Sequence[str], tokenizer: Path, cache: Path, context: int, max_tokens: int, vocab_size: int, **how: Any
) -> Texts:
    """The text in tokens of the model. ValueError for one that is too short, or of more symbols than the model has."""
    from termwise.data.text import open_text

    text = open_text(list(paths), tokenizer=str(tokenizer), cache=cache, held_out=HELD_OUT, **how)
    if text.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer has {text.vocab_size} symbols, the model {vocab_size}; they do not belong together"
        )
    if text.train.num_tokens < context + 1:
        raise ValueError(
            f"the training text has {text.train.num_tokens:,} tokens, fewer than one window of {context} + 1; "
            "give more text or a smaller --context"
        )
    watched = list(_packed(SpreadWindows(EveryWindow(text.held_out, is_watched=True), WATCHED_TOKENS), context))
    scored = EveryWindow(text.held_out, is_watched=False)
    if not watched or not any(True for _ in scored.windows(context)):
        raise ValueError(
            f"the held-out text has {text.held_out.num_tokens:,} tokens, too few for a window to watch and one to score; "
            "give more text or a smaller --context"
        )
    return Texts(text, watched, SpreadWindows(scored, max_tokens), context)


def _packed(windows: SpreadWindows, context: int) -> Iterator[Batch]:
    from termwise.data.tokens import pack

    waiting: list[Window] = []
    for window in windows.windows(context):
        waiting.append(window)
        if len(waiting) == ROWS:
            yield pack(waiting).batch
            waiting = []
    if waiting:
        yield pack(waiting).batch
