"""The folder of a study: made, taken up or extended, with its text; refused where its settings differ."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.results import RunFolder, config_hash
from termwise.study.grid import EXTENDABLE, Entry, StudyConfig, merge
from termwise.study.measures import few_scored

if TYPE_CHECKING:
    from termwise.data.text import Text

Say = Callable[[str], None]
ROWS_PER_STEP = {"paper": 36}
DEFAULT_ROWS = 8
# Scored held-out tokens of a run, unless asked otherwise: more costs minutes and moves the loss by less than a seed does.
EVALUATION_TOKENS = 131_072


def default_folder(config: StudyConfig) -> Path:
    """termwise-runs/study-HASH of what was asked for, so that the same command finds its folder again.

    With or without --control: a control is added to the study that it checks.
    """
    return Path("termwise-runs") / f"study-{config_hash(config.model_dump(mode='json', exclude={'control'}))}"


def open_study_text(config: StudyConfig, cache: Path) -> tuple[Text, dict[str, Any]]:
    """The text, and how every run opens it again."""
    from termwise.data.text import open_text

    settings = {name: _settings(config)[name] for name in ("column", "tokenizer", "document", "errors")}
    paths = list(config.data) or None
    text = open_text(paths, cache=cache, **settings)
    return text, settings | {"paths": paths, "cache": str(cache.absolute()), "fingerprint": text.fingerprint}


def open_study(
    config: StudyConfig, out: Path, arguments: Mapping[str, Any], entries: Sequence[Entry], say: Say
) -> tuple[RunFolder, dict[str, Any]]:
    """The run folder with its text in OUT/data, and how the runs open that."""
    before = refuse_other_study(config, out)
    check_device(config.device)
    if before and before["data"]["given"] == (list(config.data) or None):
        text, how = open_study_text(config, out / "data")
        return open_folder(config, out, arguments, text, how, entries, say), how
    # A run folder begins empty, and a text that will be refused must not replace the one that is there.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
        text, how = open_study_text(config, Path(beside) / "data")
        folder = open_folder(config, out, arguments, text, how, entries, say)
        if (out / "data").exists():
            os.rename(out / "data", Path(beside) / "replaced")
        os.rename(Path(beside) / "data", out / "data")
    return folder, how | {"cache": str((out / "data").absolute())}


def _settings(config: StudyConfig) -> dict[str, Any]:
    """What must be the same in every run of a study, as far as it is known before the text is read."""
    from termwise.models.presets import preset

    names = ("preset", "lr", "device", "dtype", "demonstration", "document", "column", "errors")
    tokenizer = config.tokenizer or preset(config.preset).tokenizer
    return {name: getattr(config, name) for name in names} | {"tokenizer": tokenizer} | sizes(config)


def refuse_other_study(config: StudyConfig, out: Path) -> dict[str, Any]:
    """What the folder was made with, nothing where it is new. ValueError naming the settings that differ from those asked."""
    before = _resolved_before(out)
    asked = _settings(config).items()
    other = [
        f"{name} (was {before[name]!r}, now {value!r})" for name, value in asked if before and before[name] != value
    ]
    if other:
        raise ValueError(f"{out} was made with other settings: {', '.join(other)}; give a new --out")
    _steps(config, before, out)
    return before


def sizes(config: StudyConfig) -> dict[str, int]:
    """Context and tokens a step: as asked, else the preset's. ValueError for a step that is no whole number of windows."""
    from termwise.models.presets import preset

    context = config.context or preset(config.preset).context
    tokens_per_step = config.tokens_per_step or context * ROWS_PER_STEP.get(config.preset, DEFAULT_ROWS)
    if tokens_per_step % context:
        nearest = max(1, round(tokens_per_step / context)) * context
        raise ValueError(
            f"--tokens-per-step {tokens_per_step} is no whole number of windows of {context}; e.g. {nearest}"
        )
    return {"context": context, "tokens_per_step": tokens_per_step}


def check_text(text: Text, context: int) -> None:
    """ValueError for a text too short for one window."""
    if text.train.num_tokens < context + 1:
        raise ValueError(
            f"the training text has {text.train.num_tokens:,} tokens, fewer than one window of {context} + 1; "
            "give more text or a smaller --context"
        )


def check_device(name: str) -> None:
    """ValueError for a device that is not usable here, before anything is read."""
    import torch

    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={name!r}: {torch.cuda.device_count()} CUDA cards are usable here; --device auto takes what is"
        )
    if name == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps': not usable here; --device auto takes what is")


def open_folder(
    config: StudyConfig,
    out: Path,
    arguments: Mapping[str, Any],
    text: Text,
    how: Mapping[str, Any],
    entries: Sequence[Entry],
    say: Say,
) -> RunFolder:
    """The run folder, new or taken up. More variants or seeds extend it; anything else that differs is a ValueError by name."""
    for note in text.notes:
        say(note)
    check_text(text, sizes(config)["context"])
    before = _resolved_before(out)
    data = _described(text, how)
    if before and before["data"]["fingerprint"] == text.fingerprint:
        data = before["data"]
    refuse_other_data(before, data, out)
    rows = merge([*(Entry.from_dict(entry) for entry in before.get("variants", [])), *entries])
    grown = {
        "variants": [row.to_dict() for row in rows],
        "seeds": sorted({*before.get("seeds", []), *config.seed_list}),
    }
    learnt = {"data": data, "steps": _steps(config, before, out), "recall": before.get("recall")}
    num_scored = _scored_tokens(config, before, text)
    if few := few_scored(num_scored):
        say(few)
    scored = {"evaluation_tokens": num_scored}
    settings = _settings(config) | scored | grown | learnt
    folder = RunFolder.create(out, "study", dict(arguments), settings, extendable=(*EXTENDABLE, "steps"))
    folder.update(resolved=folder.run["resolved"] | grown)
    _say_extension(before, rows, grown["seeds"], say)
    return folder


def _described(text: Text, how: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        f"{name}_{what}": getattr(part, f"num_{what}")
        for name, part in (("train", text.train), ("held_out", text.held_out))
        for what in ("tokens", "documents", "bytes")
    }
    paths = how["paths"] or ["standard library"]
    return {"paths": paths, "given": how["paths"], "notes": text.notes, "fingerprint": text.fingerprint, "sizes": sizes}


def _scored_tokens(config: StudyConfig, before: Mapping[str, Any], text: Text) -> int:
    """Held-out tokens every run is scored on: as asked, else those of the folder, else the usual."""
    wanted = config.evaluation_tokens or before.get("evaluation_tokens") or EVALUATION_TOKENS
    return min(wanted, text.held_out.num_tokens)


def _steps(config: StudyConfig, before: Mapping[str, Any], out: Path) -> int | None:
    """Steps of every run: those of the folder, else as asked; None where a budget is still to be turned into steps."""
    known = before.get("steps")
    if config.steps and known and known != config.steps:
        raise ValueError(
            f"{out} was trained for steps={known}, now {config.steps}; its other runs need the same number: give a new --out"
        )
    return known or config.steps


def _resolved_before(out: Path) -> dict[str, Any]:
    return RunFolder.open(out).run["resolved"] if (out / "run.json").exists() else {}


def refuse_other_data(before: Mapping[str, Any], data: Mapping[str, Any], out: Path) -> None:
    """ValueError for another text. RunFolder.create would refuse it too, with both descriptions printed whole."""
    if before and before["data"]["fingerprint"] != data["fingerprint"]:
        was, now = (f"{', '.join(d['paths'])} ({d['fingerprint']})" for d in (before["data"], data))
        raise ValueError(f"{out} was made with other settings: data (was {was}, now {now}); give a new --out")


def _say_extension(before: Mapping[str, Any], rows: Sequence[Entry], seeds: Sequence[int], say: Say) -> None:
    if not before:
        return
    new = [row.name for row in rows if row.name not in {entry["name"] for entry in before["variants"]}]
    more = sorted({*seeds} - {*before["seeds"]})
    parts = ([f"variants {', '.join(new)}"] if new else []) + ([f"seeds {', '.join(map(str, more))}"] if more else [])
    say("this folder is extended by " + " and ".join(parts) if parts else "this folder is taken up where it stopped")
