"""Writing a text's tokens: flat files that are complete before anything reads them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from termwise.data.segments import batches, segments
from termwise.data.split import HELD_OUT, TRAIN, Assigned
from termwise.data.tokenizer import ByteEncoder, Encoder

PARTS = {TRAIN: "train", HELD_OUT: "held_out"}


class PartWriter:
    """Appends documents to NAME.ids.bin, NAME.offsets.bin (int64, documents + 1) and NAME.bytes.bin (int64)."""

    def __init__(self, folder: Path, name: str, dtype: str, stack: ExitStack) -> None:
        self._dtype = dtype
        paths = [folder / f"{name}.{kind}.bin" for kind in ("ids", "offsets", "bytes")]
        self._files = [stack.enter_context(path.open("wb", buffering=1 << 18)) for path in paths]
        self._files[1].write((0).to_bytes(8, "little"))
        self.num_tokens = 0
        self._document_bytes = 0

    def append(self, ids: npt.NDArray[np.integer], num_bytes: int) -> None:
        self._files[0].write(ids.astype(self._dtype, copy=False).tobytes())
        self.num_tokens += len(ids)
        self._document_bytes += num_bytes

    def end_document(self) -> None:
        self._files[1].write(self.num_tokens.to_bytes(8, "little"))
        self._files[2].write(self._document_bytes.to_bytes(8, "little"))
        self._document_bytes = 0

    def sync(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())


def dtype_of(vocab_size: int) -> str:
    """Two bytes a token while they suffice."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def check_space(folder: Path, encoder: Encoder, num_bytes: int, num_documents: int) -> None:
    """Raise OSError before writing when the disk cannot hold the tokens.

    A token of a trained tokenizer is taken for at least 2 bytes of text.
    """
    tokens = num_bytes if isinstance(encoder, ByteEncoder) else num_bytes // 2
    needed = np.dtype(dtype_of(encoder.vocab_size)).itemsize * tokens + 18 * num_documents
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"the tokens need {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free", str(folder)
        )


def write_parts(assigned: Iterable[Assigned], encoder: Encoder, folder: Path) -> None:
    """Encode and write both parts; a document that closes gets the end-of-document token, a block does not."""
    dtype = dtype_of(encoder.vocab_size)
    end = np.array([encoder.end_of_document])
    with ExitStack() as stack:
        writers = {part: PartWriter(folder, name, dtype, stack) for part, name in PARTS.items()}
        for group in batches(segments(assigned)):
            for one, ids in zip(group, encoder.encode([one.text for one in group]), strict=True):
                writer = writers[one.part]
                writer.append(ids, utf8_length(one.text))
                if one.closes:
                    writer.append(end, 0)
                if one.ends:
                    writer.end_document()
        for writer in writers.values():
            writer.sync()


def utf8_length(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
