"""open_text: from what the user names to packed tokens, written once to a cache and reused while nothing changed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from termwise.data.blocks import Counts, Reading
from termwise.data.reader import Piece, read_pieces
from termwise.data.segments import segments
from termwise.data.sizes import counted, in_bytes
from termwise.data.sources import Root, Skipped, find_roots, refuse_column
from termwise.data.split import TRAIN, Plan, Scan, assign, plan_split, scan
from termwise.data.tokenizer import (
    TRAINING_BYTES,
    TRAINING_SEGMENT,
    ByteEncoder,
    Encoder,
    bpe_size,
    load_encoder,
    tokenizer_digest,
    train_bpe,
)
from termwise.data.tokens import Tokens
from termwise.data.writer import PARTS, check_space, dtype_of, write_parts

SCHEMA = 1
KIND = "termwise text"


@dataclass(frozen=True, eq=False)
class Text:
    """A text as two parts of packed tokens.

    `notes` is what must be said aloud; `fingerprint` names content and settings, wherever and whenever the files lie.
    """

    train: Tokens
    held_out: Tokens
    vocab_size: int
    end_of_document: int
    tokenizer_folder: Path
    notes: list[str]
    fingerprint: str

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer as transformers' PreTrainedTokenizerFast; transformers is loaded here and not before."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(self.tokenizer_folder)


@dataclass(frozen=True)
class _Settings:
    """Everything that decides what the tokens are, apart from the text."""

    reading: Reading
    tokenizer: str
    held_out: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out={self.held_out}; it is a share of the text, above 0 and below 1, e.g. 0.05")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}; it must be 0 or more")

    @functools.cached_property
    def digest(self) -> str:
        reading = self.reading
        tokenizer = tokenizer_digest(self.tokenizer)
        return json.dumps([reading.column, reading.errors, reading.document, tokenizer, self.held_out, self.seed])


@dataclass
class _Listing:
    """One walk through the sources: a digest of paths, sizes and times, and what there is."""

    roots: list[Root]
    digest: str = ""
    num_sources: int = 0
    num_bytes: int = 0
    formats: set[str] = field(default_factory=set)
    skipped: Skipped = field(default_factory=Skipped)

    def __post_init__(self) -> None:
        digest = hashlib.blake2b(digest_size=16)
        for root in self.roots:
            for source in root.sources(self.skipped):
                path = source.path if source.format == "hub" else os.path.abspath(source.path)
                digest.update(json.dumps([path, source.format, source.size, source.modified]).encode())
                self.num_sources += 1
                self.num_bytes += source.size
                self.formats.add(source.format)
        self.digest = digest.hexdigest()

    def pieces(self, reading: Reading, counts: Counts) -> Iterator[Piece]:
        for root in self.roots:
            yield from read_pieces(root.sources(Skipped()), reading, counts)

    def refuse_nothing(self) -> None:
        """Raise the ValueError for sources without any text."""
        names = ", ".join([repr(root.path) for root in self.roots if root.kind != "run"][:3]) or "what matches"
        left_out = f" ({note})" if (note := self.skipped.note()) else ""
        if not self.num_sources:
            raise ValueError(
                f"no text files in {names}{left_out}; text files end in .txt .md .py .jsonl .parquet .csv and the like"
            )
        if self.num_sources == 1 and not self.num_bytes and "hub" not in self.formats:
            raise ValueError(f"no text: {names} is empty")
        raise ValueError(f"no text in {names}: every document is empty{left_out}")


def open_text(
    paths: Sequence[str] | None,
    *,
    column: str | None = None,
    tokenizer: str = "bytes",
    cache: Path,
    errors: str = "strict",
    held_out: float = 0.05,
    seed: int = 0,
    document: str = "auto",
) -> Text:
    """Tokens of files, folders, globs or `hf:org/name`, split into a train and a held-out part.

    `paths` None stands for the standard library's source. `tokenizer`: "bytes" (257 symbols), "bpe:N" (trained on the
    training part) or a folder with tokenizer.json. `document`: "auto" (a file of text, a row of a table), "file", "row"
    or "line". `cache` is reused while sources, settings and versions are the same, else replaced. Memory does not grow
    with the text, only by at most 32 bytes a document.

    Raises ValueError (OSError from the file system) naming the file, byte offset, line or column, and what to do.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("to be or not to be, " * 100)
    >>> text = open_text([str(folder / "a.txt")], cache=folder / "cache")
    >>> text.train.num_tokens, text.held_out.num_tokens, text.vocab_size
    (1900, 101, 257)
    """
    settings = _Settings(Reading(column, errors, document), tokenizer, held_out, seed)
    versions = f"{SCHEMA} {version('termwise')} {version('tokenizers')}"
    # Its digest also refuses an unknown tokenizer, before the sources are walked.
    known = settings.digest + versions
    listing = _Listing(find_roots(paths))
    refuse_column(column, listing.formats)
    key = hashlib.blake2b((known + listing.digest).encode(), digest_size=16).hexdigest()
    cache = Path(cache)
    cache.parent.mkdir(parents=True, exist_ok=True)

    from filelock import FileLock

    with FileLock(cache.with_name(f".{cache.name}.lock")):
        manifest = _read_manifest(cache)
        if manifest is None or manifest["key"] != key or not _is_whole(cache, manifest):
            _replace(cache, listing, settings, key)
            manifest = _read_manifest(cache)
        assert manifest is not None
        return _load(cache, manifest)


def _load(cache: Path, manifest: dict[str, Any]) -> Text:
    vocab_size = manifest["vocab_size"]
    train, held_out = (Tokens(cache, name, manifest["dtype"], vocab_size) for name in PARTS.values())
    return Text(
        train,
        held_out,
        vocab_size,
        manifest["end_of_document"],
        cache / "tokenizer",
        manifest["notes"],
        manifest["fingerprint"],
    )


def _read_manifest(cache: Path) -> dict[str, Any] | None:
    """None where nothing is; raises ValueError for a folder that something else lives in."""
    if not cache.exists() or (cache.is_dir() and not any(cache.iterdir())):
        return None
    try:
        manifest = json.loads((cache / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = {}
    if manifest.get("kind") != KIND:
        raise ValueError(
            f"{str(cache)!r} is not empty and no text cache of termwise; name a new folder, or delete it if "
            "nothing in it is needed"
        )
    return manifest


def _is_whole(cache: Path, manifest: dict[str, Any]) -> bool:
    sizes = manifest["files"].items()
    return all((cache / name).is_file() and (cache / name).stat().st_size == size for name, size in sizes)


def _replace(cache: Path, listing: _Listing, settings: _Settings, key: str) -> None:
    """Build beside the cache, then rename: whoever looks sees a whole folder or none."""
    for left in cache.parent.glob(f".{cache.name}.building-*"):
        shutil.rmtree(left)
    building = cache.with_name(f".{cache.name}.building-{os.getpid()}")
    building.mkdir()
    try:
        _build(building, listing, settings, key)
        if cache.exists():
            cache.rename(building / "replaced")
        building.rename(cache)
        shutil.rmtree(cache / "replaced", ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _build(folder: Path, listing: _Listing, settings: _Settings, key: str) -> None:
    counts = Counts()
    found = scan(listing.pieces(settings.reading, counts), folder / "hashes")
    if not found.num_documents:
        listing.refuse_nothing()
    plan = plan_split(found, settings.held_out, settings.seed)
    (folder / "hashes").unlink()
    encoder, tokenizer_notes = _encoder(listing, settings, found, plan)
    check_space(folder, encoder, found.num_bytes, found.num_documents)
    write_parts(assign(listing.pieces(settings.reading, Counts()), plan), encoder, folder)
    encoder.save(folder / "tokenizer")
    if encoder.token_bytes is not None:
        encoder.token_bytes.astype("<i4").tofile(folder / "token_bytes.bin")
    dtype = dtype_of(encoder.vocab_size)
    parts = [Tokens(folder, name, dtype, encoder.vocab_size) for name in PARTS.values()]
    manifest = {
        "kind": KIND,
        "key": key,
        "fingerprint": hashlib.blake2b((settings.digest + found.digest).encode(), digest_size=8).hexdigest(),
        "dtype": dtype,
        "vocab_size": encoder.vocab_size,
        "end_of_document": encoder.end_of_document,
        "notes": _notes(listing, found, counts, plan, parts) + tokenizer_notes,
        "files": {
            str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _encoder(listing: _Listing, settings: _Settings, found: Scan, plan: Plan) -> tuple[Encoder, list[str]]:
    size = bpe_size(settings.tokenizer)
    if settings.tokenizer == "bytes":
        return ByteEncoder(), []
    if size is None:
        return load_encoder(settings.tokenizer), []
    share = min(1.0, TRAINING_BYTES / (found.num_bytes * (1 - settings.held_out)))
    chance = random.Random(settings.seed)
    # Short segments: the library's training is quadratic in the length of a text without any space.
    parts = segments(assign(listing.pieces(settings.reading, Counts()), plan), limit=TRAINING_SEGMENT)
    encoder = train_bpe((part.text for part in parts if part.part == TRAIN and chance.random() < share), size)
    notes = []
    if share < 1:
        notes.append(f"tokenizer {settings.tokenizer}: trained on a sample of about {share:.2g} of the training text")
    if encoder.vocab_size < size:
        notes.append(f"tokenizer {settings.tokenizer}: the text has pairs for {encoder.vocab_size:,} tokens only")
    return encoder, notes


def _notes(listing: _Listing, found: Scan, counts: Counts, plan: Plan, parts: list[Tokens]) -> list[str]:
    notes = []
    if listing.roots[0].kind == "library":
        notes.append(
            f"no data given: the source of this Python's standard library, {counted(listing.num_sources, 'file')} "
            f"({listing.roots[0].path!r})"
        )
    elif note := listing.skipped.note():
        notes.append(note)
    if counts.empty:
        notes.append(f"left out {counted(counts.empty, 'empty document')}")
    if counts.replaced:
        notes.append(
            f"replaced {counted(counts.replaced, 'piece of bad UTF-8 by U+FFFD', 'pieces of bad UTF-8 by U+FFFD')}"
        )
    notes += plan.notes
    sizes = [f"{in_bytes(part.num_bytes)} in {counted(part.num_tokens, 'token')}" for part in parts]
    return [*notes, f"{in_bytes(found.num_bytes)} of text: training {sizes[0]}, held out {sizes[1]}"]
