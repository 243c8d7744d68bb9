"""Links of the repository that are pages of the site."""

from __future__ import annotations

import re


def with_pages(text: str) -> str:
    """Links to a folder of the repository lead to its README, links to a notebook to its page.

    >>> with_pages("[all](benchmarks/), [first](examples/1_sum.ja.py), [home](../README.md)")
    '[all](benchmarks/README.md), [first](examples/1_sum.ja.md), [home](../index.md)'
    """
    text = re.sub(r"\]\(((?!https?:)[^)\s]+/)\)", r"](\1README.md)", text)
    text = re.sub(r"\]\(((?:[^)\s]*/)?\d_[^)/\s]+)\.py\)", r"](\1.md)", text)
    return re.sub(r"\]\(((?:\.\./)*)README\.md\)", r"](\1index.md)", text)
