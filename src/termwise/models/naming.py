"""What a person means by MODEL: a folder, or a name of the catalogue."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from termwise.attention.catalogue import catalogue
from termwise.attention.refusals import nearest
from termwise.models.gguf import gguf_file


@dataclass(frozen=True)
class Named:
    """A model folder, or the name of a variant that is still to be built (`folder` None). `note` must be said aloud."""

    name: str
    folder: Path | None
    note: str | None = None


def find_model(name: str) -> Named:
    """The model behind a name: an existing folder or GGUF file wins over a catalogue name.

    A run's folder stands for its `model`. ValueError for a folder without a model (naming those below it), and for
    anything else that is neither folder nor variant, with the nearest name.

    >>> find_model("taylor:0..2").folder is None
    True
    """
    path = Path(name).expanduser()
    if gguf_file(path) is not None:
        return Named(name, path)
    if path.is_dir():
        note = (
            f"{name!r} is a folder here and a name of the catalogue; the folder is taken" if name in catalogue else None
        )
        return Named(name, model_folder(path), note)
    if name.startswith("hf:"):
        raise ValueError(
            f"{name!r}: models are read from folders; download it first (hf download {name[3:]} --local-dir FOLDER)"
        )
    try:
        catalogue.variant(name)
    except ValueError as error:
        looks_like_path = "/" in name or path.suffix in (".json", ".safetensors")
        near = nearest(path.name, [p.name for p in path.parent.iterdir()]) if path.parent.is_dir() else ""
        what = f"no such folder {name!r}{near}" if looks_like_path else f"no such folder, and {error}"
        raise ValueError(what) from None
    return Named(name, None)


def model_folder(path: Path) -> Path:
    """The folder with config.json: the path itself, or the `model` of a run. ValueError naming models below it otherwise."""
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return folder
    below = sorted(str(found.parent) for found in path.glob("runs/*/*/model/config.json"))
    hint = f"; models in it: {', '.join(below[:4])}{' ...' if len(below) > 4 else ''}" if below else ""
    raise ValueError(f"{path} holds no model (no config.json){hint}")


def model_hash(place: Path) -> str:
    """What the configuration of a model says, as 16 hex digits of its config.json, or of the first MiB of a GGUF file."""
    path = gguf_file(place) or place / "config.json"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(2**20)).hexdigest()[:16]


def fingerprint(place: Path) -> str:
    """Of every byte that makes a model, as 16 hex digits: the same wherever its folder or GGUF file lies, another for other weights.

    Of a folder its JSON and safetensors files with their names, of a GGUF file what it holds.
    """
    file, digest = gguf_file(place), hashlib.blake2b(digest_size=8)
    found = [file] if file else sorted(path for path in place.iterdir() if path.suffix in (".json", ".safetensors"))
    for path in found:
        digest.update(b"" if file else path.name.encode())
        with open(path, "rb") as opened:
            digest.update(hashlib.file_digest(opened, "blake2b").digest())
    return digest.hexdigest()


def last_model(runs: Path = Path("termwise-runs"), variant: str = "softmax") -> Path | None:
    """The model of a variant in the newest study below a folder; None without one."""
    from termwise.results import file_name

    found = list(runs.glob(f"*/runs/{file_name(variant)}/*/model/config.json"))
    return max(found, key=lambda path: path.stat().st_mtime).parent if found else None


def trained_folder(name: str) -> Path:
    """The folder of a trained model. ValueError for a catalogue name, whose weights would be random, and where there is none."""
    path = Path(name).expanduser()
    if path.is_dir() or gguf_file(path) is not None or name.startswith("hf:"):
        found = find_model(name).folder
        assert found is not None
        return found
    last = last_model(variant=name) or last_model()
    known = f"; the last study's is {last}" if last else "; `termwise study` trains some"
    try:
        catalogue.variant(name)
    except ValueError:
        folders = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        near = nearest(path.name, folders)
        example = known if last else "; a study leaves them in OUT/runs/VARIANT/SEED/model"
        raise ValueError(f"no model folder {name!r}{near}{example}") from None
    raise ValueError(f"{name!r} is a name, so its weights would be random; give a model folder{known}")


def plotted_model(given: str | None, variant: str | None) -> Path:
    """The model to draw: the one given, else that of a variant (softmax) in the newest study. ValueError where there is none."""
    if given is not None:
        return trained_folder(given)
    name = variant or "softmax"
    folder = last_model(variant=name)
    if folder is None:
        find_model(name)
        raise ValueError(
            f"no study below termwise-runs has trained {name} yet; make one with: termwise study --variants {name} --budget 2m"
        )
    return folder
