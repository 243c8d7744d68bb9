"""The site is built once, whichever worker needs it first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "docs" / "site" / "build_site.py"
sys.path += [str(ROOT / "docs" / "site"), str(ROOT / "examples"), str(ROOT / "benchmarks")]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder with `source` (the pages as Markdown) and `html`."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "html" / "index.html").is_file():
            built = subprocess.run([sys.executable, str(BUILD), str(folder)], capture_output=True, text=True)
            assert built.returncode == 0, built.stderr
    return folder
