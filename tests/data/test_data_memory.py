"""Memory does not grow with the text: measured in child processes as peak resident size."""

from __future__ import annotations

import subprocess
import sys

import pytest

MEGABYTE = 1_000_000
PROGRAM = """
import pathlib, resource, sys
import filelock, numpy, tokenizers
from termwise.data import open_text

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

path, cache, tokenizer, document = sys.argv[1:]
before = peak()
text = open_text([path], cache=pathlib.Path(cache), tokenizer=tokenizer, document=document)
print(peak() - before, text.train.num_documents + text.held_out.num_documents)
"""


def growth(tmp_path, content, megabytes, tokenizer="bytes", document="auto"):
    path = tmp_path / f"text{megabytes}.txt"
    with open(path, "w", encoding="utf-8") as file:
        written = 0
        while written < megabytes * MEGABYTE:
            written += file.write(content(written))
    command = [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / f"cache{megabytes}"), tokenizer, document]
    peak, documents = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    path.unlink()
    return int(peak), int(documents)


def one_line(written):
    return f"words without a line end {written} " * 2000


def short_lines(written):
    return "".join(f"line {written + number} of many\n" for number in range(2000))


def test_ten_times_the_text_needs_no_more(tmp_path):
    small, _ = growth(tmp_path, one_line, 6)
    large, _ = growth(tmp_path, one_line, 60)
    assert large - small < 4 * MEGABYTE
    assert large < 40 * MEGABYTE


def test_a_document_costs_at_most_32_bytes(tmp_path):
    small, few = growth(tmp_path, short_lines, 1, document="line")
    large, many = growth(tmp_path, short_lines, 6, document="line")
    assert many - few > 200_000
    assert large - small < 32 * (many - few) + 2 * MEGABYTE


def test_bpe_is_bounded_too(tmp_path):
    sizes = [growth(tmp_path, one_line, size, tokenizer="bpe:300")[0] for size in (1, 6)]
    assert sizes[1] - sizes[0] < 16 * MEGABYTE
    assert sizes[1] < 200 * MEGABYTE


@pytest.mark.parametrize("sign", ["x", "語"])
def test_a_text_without_any_space(tmp_path, sign):
    assert growth(tmp_path, lambda written: sign * 50_000, 2, tokenizer="bpe:300")[0] < 150 * MEGABYTE
