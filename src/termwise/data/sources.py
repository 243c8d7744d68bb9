"""Which files hold the text: paths, folders, globs and hub names, as a walk that can be repeated."""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import sysconfig
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

TABLE_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
TEXT_SUFFIXES = frozenset({
    ".txt", ".text", ".md", ".markdown", ".mdx", ".rst", ".org", ".adoc", ".tex", ".bib", ".html", ".htm",
    ".xhtml", ".xml", ".srt", ".vtt", ".po", ".py", ".pyi", ".pyx", ".js", ".mjs", ".ts", ".jsx", ".tsx", ".c",
    ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".cu", ".cuh", ".m", ".java", ".kt", ".scala", ".go", ".rs",
    ".rb", ".php", ".pl", ".pm", ".lua", ".r", ".jl", ".swift", ".cs", ".fs", ".hs", ".ml", ".ex", ".exs",
    ".erl", ".clj", ".lisp", ".el", ".sh", ".bash", ".zsh", ".ps1", ".bat", ".sql", ".css", ".scss", ".toml",
    ".yaml", ".yml", ".ini", ".cfg", ".cmake", ".proto", ".f90", ".v", ".vhdl", ".sv", ".tcl", ".vim",
})  # fmt: skip
STANDARD_LIBRARY_SKIPS = frozenset({
    "test", "tests", "idle_test", "idlelib", "turtledemo", "ensurepip", "lib2to3", "site-packages", "dist-packages",
})  # fmt: skip
SNIFFED_BYTES = 8192
RUNS_FOLDER = "termwise-runs"
RUN_LOCK = "lock.guard"  # there before anything else is
RUN_FIELDS = frozenset({"run_id", "command", "resolved"})


@dataclass(frozen=True)
class Source:
    """One file, or one hub data set, and how it is read: text, jsonl, csv, tsv, parquet or hub."""

    path: str
    format: str
    size: int = 0
    modified: int = 0


@dataclass
class Skipped:
    """What a walk through folders left out, and the first example of each kind."""

    hidden: int = 0
    binary: int = 0
    other: int = 0
    runs: int = 0
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, path: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.examples.setdefault(kind, path)

    def note(self) -> str | None:
        """One sentence that counts what was left out, or None."""
        words = {"hidden": "hidden", "binary": "binary", "other": "of other types", "runs": "run folders"}
        parts = [
            f"{getattr(self, k)} {word} (e.g. {self.examples[k]!r})" for k, word in words.items() if getattr(self, k)
        ]
        return "skipped in folders: " + ", ".join(parts) if parts else None


@dataclass(frozen=True, slots=True)
class Root:
    """One thing the user named: a file, a match of a glob, a folder or hub name, the standard library, or a run that a glob met."""

    kind: str
    path: str

    def sources(self, skipped: Skipped) -> Iterator[Source]:
        """The files below this root in a fixed order: the files of a folder by name, then its subfolders by name."""
        if self.kind == "hub":
            yield Source(self.path, "hub")
        elif self.kind == "run":
            skipped.add("runs", self.path)
        elif self.kind in ("file", "match"):
            source = _source(self.path, os.stat(self.path))
            if self.kind == "match" and source.format != "parquet" and looks_binary(self.path):
                skipped.add("binary", self.path)
            else:
                yield source
        else:
            yield from _walk(self.path, skipped, is_library=self.kind == "library")


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest choice, or nothing.

    >>> did_you_mean("txet", ["text", "label"])
    "; did you mean 'text'?"
    """
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def find_roots(paths: Sequence[str] | None) -> list[Root]:
    """What each path stands for; None stands for the running Python's standard library.

    A path inside a folder that was also given is dropped, so nothing is read twice. Raises ValueError for a path that
    is not there.
    """
    if paths is None:
        return [Root("library", sysconfig.get_paths()["stdlib"])]
    if isinstance(paths, str | Path):
        paths = [str(paths)]
    if not paths:
        raise ValueError(
            "no data given; name files, folders, globs or hf:org/name, or leave the data out altogether for "
            "the standard library"
        )
    roots: dict[str, Root] = {}
    for path in paths:
        for root in _expand(str(path)):
            # Two names of one file or folder are one root.
            roots.setdefault(root.path if root.kind == "hub" else os.path.realpath(root.path), root)
    folders = [real for real, root in roots.items() if root.kind == "folder"]
    return [root for real, root in roots.items() if root.kind == "hub" or not _is_walked(real, root.kind, folders)]


def check_text(paths: Sequence[str] | None, column: str | None) -> None:
    """ValueError for a path that is not there, and for a column where nothing has columns; before anything heavy is loaded."""
    roots = find_roots(paths)
    if column is not None:
        refuse_column(column, {source.format for root in roots for source in root.sources(Skipped())})


def refuse_column(column: str | None, formats: Set[str]) -> None:
    """ValueError for a column where every source is plain text: it would be ignored in silence."""
    if column is not None and formats == {"text"}:
        raise ValueError(
            f"column {column!r} was given, but no source is a table (.jsonl .csv .tsv .parquet or hf:); leave it out"
        )


def looks_binary(path: str) -> bool:
    """Whether the first bytes hold a NUL and are not UTF-8: pictures, archives, UTF-16."""
    with open(path, "rb") as file:
        head = file.read(SNIFFED_BYTES)
    if b"\0" not in head:
        return False
    try:
        # A character cut at the end of the window is no error.
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data" or len(head) < SNIFFED_BYTES
    return False


def _expand(path: str) -> list[Root]:
    if path.startswith("hf:"):
        if not re.fullmatch(r"hf:[\w.-]+/[\w.-]+(/[\w.-]+)?(:[^:/]+)?", path):
            raise ValueError(
                f"{path!r} is no hub name; the form is hf:org/name, hf:org/name:split or "
                "hf:org/name/configuration:split"
            )
        return [Root("hub", path)]
    expanded = os.path.expanduser(path)
    if os.path.isdir(expanded):
        return [Root("folder", expanded)]
    if os.path.isfile(expanded):
        return [Root("file", expanded)]
    if os.path.exists(expanded):
        raise ValueError(f"{path!r} is neither a file nor a folder; write its content to a file and name that")
    if any(sign in path for sign in "*?["):
        found = _glob(expanded)
        if not found:
            raise ValueError(f"no file matches {path!r}; ** crosses folders, hidden files need a literal dot")
        return [_match(path) if run is None else Root("run", run) for path, run in found]
    raise ValueError(f"no such file or folder {path!r}{_near_path(expanded)}")


def _is_walked(real: str, kind: str, folders: list[str]) -> bool:
    """Whether the walk of another folder the user named comes by this path."""
    for folder in folders:
        if real != folder and Path(real).is_relative_to(folder):
            below = Path(real).relative_to(folder)
            is_text = below.suffix.lower() in TEXT_SUFFIXES | TABLE_SUFFIXES.keys()
            return not any(part.startswith(".") for part in below.parts) and (kind == "folder" or is_text)
    return False


def _holds_runs(folder: str | Path) -> bool:
    """Whether what a folder holds was written by earlier commands: it would change a text at every call, and is no data."""
    if os.path.basename(folder) == RUNS_FOLDER or os.path.exists(os.path.join(folder, RUN_LOCK)):
        return True
    try:
        run = json.loads(Path(folder, "run.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(run, dict) and run.keys() >= RUN_FIELDS


def _near_path(path: str) -> str:
    """The nearest path that exists: the first missing part is compared with its siblings."""
    parts = Path(path).parts
    for index, part in enumerate(parts):
        folder = Path(*parts[:index]) if index else Path(".")
        if not (folder / part).exists():
            if not folder.is_dir():
                return f"; {str(folder)!r} is a file"
            names = os.listdir(folder)
            close = difflib.get_close_matches(part, names, n=1) or [n for n in names if n.lower() == part.lower()][:1]
            if not close:
                return f"; {str(folder.absolute())!r} holds nothing of a similar name"
            whole = folder.joinpath(close[0], *parts[index + 1 :])
            return f"; did you mean {str(whole if whole.exists() else folder / close[0])!r}?"
    return ""


def _source(path: str, info: os.stat_result) -> Source:
    kind = TABLE_SUFFIXES.get(os.path.splitext(path)[1].lower(), "text")
    return Source(path, kind, info.st_size, info.st_mtime_ns)


def _walk(top: str, skipped: Skipped, is_library: bool) -> Iterator[Source]:
    """Depth first, one folder's names in memory at a time; a real folder is entered once, so a loop of links ends."""
    suffixes = {".py"} if is_library else TEXT_SUFFIXES | TABLE_SUFFIXES.keys()
    seen: set[tuple[int, int]] = set()
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        identity = os.stat(folder)
        if (identity.st_dev, identity.st_ino) in seen:
            continue
        seen.add((identity.st_dev, identity.st_ino))
        if folder != top and _holds_runs(folder):
            skipped.add("runs", folder)
            continue
        subfolders = []
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            kind, info = _kind(path, name, suffixes)
            if kind == "folder":
                if not (is_library and name in STANDARD_LIBRARY_SKIPS):
                    subfolders.append(path)
            elif info is None:
                skipped.add(kind, path)
            else:
                yield _source(path, info)
        waiting.extend(reversed(subfolders))


def _kind(path: str, name: str, suffixes: Set[str]) -> tuple[str, os.stat_result | None]:
    """What a name in a folder is: "folder", "text" with its size and time, or why it is skipped."""
    if name.startswith("."):
        return "hidden", None
    try:
        info = os.stat(path)
    except OSError:
        # A link that leads nowhere, or a file deleted this moment.
        return "other", None
    if stat.S_ISDIR(info.st_mode):
        return "folder", None
    suffix = os.path.splitext(name)[1].lower()
    if not stat.S_ISREG(info.st_mode) or suffix not in suffixes:
        return "other", None
    if suffix != ".parquet" and looks_binary(path):
        return "binary", None
    return "text", info


def _glob(pattern: str) -> list[tuple[str, str | None]]:
    """The files that match, in order, and the folders unless `**` reaches their files anyway, each with the run that it lies in.

    pathlib's `**` does not follow links to folders (the glob module's does); hidden names need a literal dot.
    """
    parts = Path(pattern).parts
    parts = (*parts, "*") if parts[-1] == "**" else parts
    first = next(i for i, part in enumerate(parts) if any(sign in part for sign in "*?["))
    base = Path(*parts[:first]) if first else Path(".")
    named = [part for part in parts[first:] if part.startswith(".")]
    found = []
    for path in base.glob(str(Path(*parts[first:]))):
        hidden = [part for part in path.relative_to(base).parts if part.startswith(".")]
        if all(any(Path(part).match(name) for name in named) for part in hidden):
            found.append(str(path))
    kept = sorted(path for path in found if os.path.isfile(path) or (os.path.isdir(path) and "**" not in parts))
    return [(path, _run_between(base, Path(path))) for path in kept]


def _run_between(base: Path, path: Path) -> str | None:
    """The first folder of earlier runs that a glob went through on its way from `base`, which was named itself."""
    between = path.relative_to(base).parents
    return next((str(base / part) for part in reversed(between) if part.name and _holds_runs(base / part)), None)


def _match(path: str) -> Root:
    return Root("folder" if os.path.isdir(path) else "match", path)
