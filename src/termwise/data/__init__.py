"""Text to packed tokens, and seeded synthetic tasks. pyarrow, tokenizers and transformers load on first use."""

from termwise.data import synthetic
from termwise.data.text import Text, open_text
from termwise.data.tokens import Batch, PackedWindows, Tokens, Window

__all__ = ["Batch", "PackedWindows", "Text", "Tokens", "Window", "open_text", "synthetic"]
