"""Which part of a text a model is scored on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.spread import SpreadWindows
from termwise.results import RunFolder, config_hash

if TYPE_CHECKING:
    from termwise.study.evaluate import EvaluateConfig


def scored_tokens(
    name: str, tokenizer: str, config: EvaluateConfig, folder: RunFolder, say: Callable[[str], None]
) -> SpreadWindows:
    """What all models are scored on: the whole of a text that was named, else what the study of the first model that has one
    held out, else what is held out of the standard library's source."""
    from termwise.data.text import open_text
    from termwise.models.naming import find_model

    cache = folder.path / "data" / config_hash(tokenizer)
    how: dict[str, Any]
    if config.text:
        how = {"column": config.column, "errors": config.errors}
        text = open_text(list(config.text), tokenizer=tokenizer, cache=cache, **how)
        return SpreadWindows(Whole((text.train, text.held_out)), config.max_tokens)
    studies = (study_of(find_model(model).folder) for model in config.models)
    study = next((study for study in studies if study), None)
    how = {}
    paths, where = None, "the standard library's source (--text names another)"
    if study:
        resolved = study["resolved"]
        paths, where = resolved["data"]["given"], f"the text of {study['run_id']}"
        how = {field: resolved[field] for field in ("document", "errors", "column")}
    text = open_text(paths, tokenizer=tokenizer, cache=cache, **how)
    say(f"{name}: scored on what is held out of {where}")
    return SpreadWindows(text.held_out, config.max_tokens)


def study_of(folder: Path | None) -> dict[str, Any] | None:
    """run.json of the study whose model a folder is (OUT/runs/VARIANT/SEED/model); None for any other."""
    if folder is None:
        return None
    for out in folder.absolute().parents[2:5]:
        if (out / "run.json").is_file() and (out / "runs").is_dir():
            run = RunFolder.open(out).run
            return run if run["command"] == "study" else None
    return None


class Whole:
    """Both parts of a text as one, for `held_out_loss`."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        import numpy as np

        self._parts = parts
        self.vocab_size, self.token_bytes = parts[0].vocab_size, parts[0].token_bytes
        self.document_bytes = np.concatenate([part.document_bytes for part in parts])
        self.document_lengths = np.concatenate([part.document_lengths for part in parts])
        self.num_tokens = sum(part.num_tokens for part in parts)

    def windows(self, context: int) -> Iterator[Any]:
        """The windows of every part, its documents numbered after those of the parts before."""
        import dataclasses

        before = 0
        for part in self._parts:
            for window in part.windows(context):
                yield dataclasses.replace(window, document=before + window.document)
            before += part.num_documents
