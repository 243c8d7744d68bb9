"""Tokenizers: raw bytes, a byte-level BPE of the training text, or one that exists.

All are saved as a folder that transformers loads.
"""

from __future__ import annotations

import abc
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from termwise.data.sources import did_you_mean

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_DOCUMENT = "<|end_of_document|>"
NUM_BYTES = 256
TRAINING_BYTES = 32 << 20
TRAINING_SEGMENT = 1 << 12
_KNOWN_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", END_OF_DOCUMENT, "[SEP]", "<|im_end|>")
_COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")


class Encoder(abc.ABC):
    """Text to token ids.

    `token_bytes[id]` is how many bytes of text a token stands for; None for a tokenizer where that is not known.
    """

    vocab_size: int
    end_of_document: int
    token_bytes: npt.NDArray[np.int32] | None

    @abc.abstractmethod
    def encode(self, texts: list[str]) -> list[npt.NDArray[np.integer]]:
        """The ids of each text, nothing added."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Write a folder that transformers loads."""


class ByteEncoder(Encoder):
    """A token is a byte of UTF-8; 256 ends a document. A special token's name inside the text is text.

    >>> ByteEncoder().encode(["né"])[0].tolist()
    [110, 195, 169]
    """

    vocab_size = NUM_BYTES + 1
    end_of_document = NUM_BYTES
    token_bytes = np.array([1] * NUM_BYTES + [0], dtype=np.int32)

    def encode(self, texts: list[str]) -> list[npt.NDArray[np.integer]]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def save(self, folder: Path) -> None:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokenizer = Tokenizer(models.BPE(vocab={sign: byte for byte, sign in enumerate(byte_signs())}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(END_OF_DOCUMENT, special=True, normalized=False)])
        _save_fast(tokenizer, folder)


class FastEncoder(Encoder):
    """A tokenizer of the tokenizers library. `is_plain`: names of special tokens inside the text are text."""

    def __init__(
        self, tokenizer: Tokenizer, end_of_document: str, file: Path | None = None, is_plain: bool = False
    ) -> None:
        end = tokenizer.token_to_id(end_of_document)
        if end is None:
            raise ValueError(
                f"the tokenizer has no token {end_of_document!r}, which its configuration names as end of text"
            )
        # A stored tokenizer may cut or pad, which would lose or invent text.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.end_of_document = end
        self.end_token = end_of_document
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.token_bytes = _token_bytes(tokenizer, self.vocab_size, end)
        self.file = file
        self.is_plain = is_plain

    def encode(self, texts: list[str]) -> list[npt.NDArray[np.integer]]:
        self.tokenizer.encode_special_tokens = self.is_plain
        found = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in found]

    def save(self, folder: Path) -> None:
        if self.file is None:
            self.tokenizer.encode_special_tokens = False
            _save_fast(self.tokenizer, folder)
            return
        folder.mkdir(parents=True)
        shutil.copyfile(self.file, folder / "tokenizer.json")
        for name in _COMPANIONS:
            if (self.file.parent / name).is_file():
                shutil.copyfile(self.file.parent / name, folder / name)
        if not (folder / "tokenizer_config.json").exists():
            _write_config(folder, self.end_token)


def train_bpe(texts: Iterable[str], vocab_size: int) -> FastEncoder:
    """A byte-level BPE with `vocab_size` tokens (fewer if the text has no more pairs), end of document included."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return FastEncoder(tokenizer, END_OF_DOCUMENT, is_plain=True)


def bpe_size(name: str) -> int | None:
    """The N of `bpe:N`, None for another tokenizer.

    Raises ValueError for an N that cannot be and for a name that is nothing.

    >>> bpe_size("bpe:4096"), bpe_size("bytes")
    (4096, None)
    """
    if name == "bytes" or Path(name).exists():
        return None
    if found := re.fullmatch(r"bpe:(\d+)", name):
        size = int(found[1])
        if not NUM_BYTES + 1 <= size <= 1_000_000:
            raise ValueError(f"tokenizer {name!r}: a byte-level BPE has 257 to 1,000,000 tokens; e.g. 'bpe:4096'")
        return size
    near = did_you_mean(name, ["bytes", "bpe:4096"])
    raise ValueError(
        f"no tokenizer {name!r}{near}; allowed are 'bytes', 'bpe:4096' (any size) or a folder that holds tokenizer.json"
    )


def load_encoder(path: str) -> FastEncoder:
    """An existing fast tokenizer, from its folder or its tokenizer.json. No code of the folder is run."""
    from tokenizers import Tokenizer

    file = tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{str(file)!r} is no tokenizer of the tokenizers library: {error}") from None
    return FastEncoder(tokenizer, _end_token(file, tokenizer), file=file)


def tokenizer_file(path: str) -> Path:
    """The tokenizer.json of a folder or the file itself; raises ValueError if the folder has none."""
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise ValueError(
            f"{path!r} holds no tokenizer.json; save a fast one there: "
            f"AutoTokenizer.from_pretrained({path!r}).save_pretrained(FOLDER)"
        )
    return file


def tokenizer_digest(name: str) -> str:
    """What the cache compares: the name, or the content of an existing tokenizer's files."""
    if bpe_size(name) is not None or name == "bytes":
        return name
    folder = tokenizer_file(name).parent
    digest = hashlib.blake2b(digest_size=16)
    for file in (tokenizer_file(name), *(folder / other for other in _COMPANIONS)):
        digest.update(file.name.encode() + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()


def byte_signs() -> list[str]:
    """The printable sign that byte-level tokenizers write for each byte (the table of GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(NUM_BYTES)]


def _token_bytes(tokenizer: Tokenizer, vocab_size: int, end_of_document: int) -> npt.NDArray[np.int32] | None:
    """One sign of a byte-level token is one byte; unknown (None) where normalizers or added spaces change the text."""
    stages = json.loads(tokenizer.to_str())
    levels = list(_byte_levels(stages["pre_tokenizer"]))
    if not levels or stages["normalizer"] is not None or any(level["add_prefix_space"] for level in levels):
        return None
    added = {token["id"]: len(token["content"].encode()) for token in stages["added_tokens"]}
    lengths = np.zeros(vocab_size, dtype=np.int32)
    for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
        lengths[number] = added.get(number, len(token))
    lengths[end_of_document] = 0
    return lengths


def _byte_levels(stage: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if stage is None:
        return
    if stage["type"] == "ByteLevel":
        yield stage
    for inner in stage.get("pretokenizers", ()):
        yield from _byte_levels(inner)


def _end_token(file: Path, tokenizer: Tokenizer) -> str:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (file.parent / name).is_file():
            settings = json.loads((file.parent / name).read_text(encoding="utf-8"))
            for key in ("eos_token", "sep_token"):
                token = settings.get(key)
                if token:
                    return token if isinstance(token, str) else token["content"]
    for known in _KNOWN_ENDS:
        if tokenizer.token_to_id(known) is not None:
            return known
    raise ValueError(
        f'{str(file)!r} names no end-of-text token; write "eos_token" into the tokenizer_config.json beside it'
    )


def _save_fast(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_config(folder, END_OF_DOCUMENT)


def _write_config(folder: Path, end: str) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000_000,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
