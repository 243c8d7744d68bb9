"""GGUF files as transformers reads them: dequantized, with the tokenizer they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

GGUF = ".gguf"


def gguf_file(path: Path) -> Path | None:
    """The GGUF file a path means: itself, or the only one of a folder without config.json. ValueError for several."""
    if path.is_file() and path.suffix == GGUF:
        return path
    if not path.is_dir() or (path / "config.json").exists() or (path / "model").is_dir():
        return None
    found = sorted(path.glob(f"*{GGUF}"))
    if len(found) > 1:
        raise ValueError(f"{path} holds {len(found)} GGUF files; name one: {', '.join(map(str, found[:4]))}")
    return found[0] if found else None


def read_gguf(path: Path, check: Callable[[dict[str, Any]], object]) -> tuple[Any, Any]:
    """The model of a file, of transformers' own class in fp32, and its tokenizer.

    `check` gets the configuration before any weight is read. Errors: its own, and ValueError for what cannot be read.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": path.name, "local_files_only": True}
    check(read_gguf_config(path).to_dict())
    model = _read(path, AutoModelForCausalLM, source | {"dtype": "float32", "attn_implementation": "sdpa"})
    return model, _read(path, AutoTokenizer, source)


def read_gguf_config(path: Path) -> Any:
    """The configuration that transformers makes of a file. ValueError for one that cannot be read."""
    try:
        import gguf  # noqa: F401 (transformers reads the file through it)
    except ImportError:
        raise ValueError(f"{path} is a GGUF file, which needs one more package: pip install 'termwise[gguf]'") from None
    from transformers import AutoConfig

    return _read(path, AutoConfig, {"gguf_file": path.name, "local_files_only": True})


def _read(path: Path, auto: Any, source: dict[str, Any]) -> Any:
    try:
        with quiet():
            return auto.from_pretrained(path.parent, **source)
    except Exception as error:  # a cut file raises struct.error, an unknown architecture ValueError, and so on
        told = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read ({told}); copy it again, or save the model as safetensors") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars and reports: what does not fit is told by ours."""
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The bar of its GGUF reader obeys no setting.
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(before[0])
        if before[1]:
            logging.enable_progress_bar()
