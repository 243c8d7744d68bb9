"""Who may import whom, and what the command line may load before it works."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "termwise"
LEVELS = (
    ("__main__",),
    ("cli",),
    ("commands",),
    ("report", "study", "conversion", "inspection", "planning", "bench"),
    ("analysis", "evaluation", "training"),
    ("models",),
    ("attention",),
)
LEAVES = ("data", "results", "statistics")
LEVEL_OF = {name: number for number, names in enumerate(LEVELS) for name in names}
HEAVY = ("torch", "transformers", "accelerate", "pyarrow", "altair", "scipy", "numba", "datasets")


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports anywhere, under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
            yield node.module or ""
            if node.module == "termwise":
                yield from (f"termwise.{alias.name}" for alias in node.names)


def ours(path: Path) -> set[str]:
    """The parts of termwise a file imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("termwise.")}


FILES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py" or path.parent != ROOT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    part, found = part_of(path), ours(path)
    if part in LEAVES:
        assert found <= {part}, f"{part} is a leaf and imports nothing of ours"
        return
    if part == "report":
        assert found <= {"report", "results", "statistics"}, "report reads records alone"
        return
    for other in found - {part, *LEAVES}:
        assert other in LEVEL_OF, f"{other} has no level in design"
        assert LEVEL_OF[part] < LEVEL_OF[other], (
            f"{part} imports {other}: packages of one level do not, nor do lower ones"
        )


def test_every_part_has_its_place():
    parts = {part_of(path) for path in FILES}
    assert parts <= {*LEVEL_OF, *LEAVES}


def test_attention_knows_tensors_only():
    allowed = {"torch", "numpy", "einops", "jaxtyping", "scipy", "safetensors", "termwise", *sys.stdlib_module_names}
    for path in (ROOT / "attention").rglob("*.py"):
        compilers = {"numba", "llvmlite"} if path.parent.name == "backends" else set()
        assert {name.split(".")[0] for name in imported(path)} <= allowed | compilers, path


def test_results_stand_on_the_standard_library_and_filelock():
    allowed = {"filelock", "termwise", *sys.stdlib_module_names}
    for path in (ROOT / "results").glob("*.py"):
        assert {name.split(".")[0] for name in imported(path)} <= allowed, path


def loaded_by(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after some code, however it ended."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('LOADED', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.rpartition("LOADED")[2].split() if name in HEAVY}


def test_importing_termwise_is_light():
    assert loaded_by("import termwise; dir(termwise)") == set()


COMMANDS = [
    "", "study", "inspect", "plan", "convert", "verify", "evaluate", "generate", "bench", "report", "variants",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_light(command):
    arguments = [command, "--help"] if command else ["--help"]
    assert loaded_by(f"from termwise.cli import main; main({arguments!r})") == set()


def test_configuration_errors_are_light(tmp_path):
    arguments = ["study", "--steps", "0", "--out", str(tmp_path / "out")]
    assert loaded_by(f"from termwise.cli import main; main({arguments!r})") == set()
    assert not (tmp_path / "out").exists()


def test_a_mistyped_path_is_told_before_torch(tmp_path):
    arguments = ["study", str(tmp_path / "nowhere.txt"), "--out", str(tmp_path / "out")]
    assert loaded_by(f"from termwise.cli import main; main({arguments!r})") == set()


def test_a_second_study_is_refused_before_torch(tmp_path):
    from termwise.results import FolderLock

    arguments = ["study", "--steps", "5", "--out", str(tmp_path / "out")]
    with FolderLock(tmp_path / "out"):
        assert loaded_by(f"from termwise.cli import main; main({arguments!r})") == set()
