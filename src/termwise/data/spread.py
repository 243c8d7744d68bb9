"""A share of a text's windows, spread over all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from termwise.data.tokens import Window


class SpreadWindows:
    """A part of a text of which only evenly spaced windows are scored, so that every document keeps its say.

    Takes the place of `Tokens` in `held_out_loss`; which windows are taken depends on the text and the sizes alone. Windows
    stay whole, so about `max_tokens` are scored: records and output say how many.
    """

    def __init__(self, tokens: Any, max_tokens: int) -> None:
        self._tokens = tokens
        self.vocab_size = tokens.vocab_size
        self.token_bytes = tokens.token_bytes
        self.document_bytes, self.document_lengths = tokens.document_bytes, tokens.document_lengths
        self._step = max(1.0, tokens.num_tokens / max_tokens)

    def windows(self, context: int) -> Iterator[Window]:
        """Every window whose number opens a new step."""
        for number, window in enumerate(self._tokens.windows(context)):
            if number == 0 or int(number / self._step) > int((number - 1) / self._step):
                yield window
