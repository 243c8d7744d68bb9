"""Build the documentation: `python docs/site/build_site.py [FOLDER]` writes FOLDER/html (default build/docs).

The pages are the repository's own Markdown at its own places, so that a link that works there works here, and pages written
from what they describe: the commands from the command line, the API from docstrings, the notebooks from their execution.
A warning is an error; nothing is loaded from the network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import site_api
import site_commands
import site_notebooks
from site_links import with_pages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COPIED = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "docs/*.md",
    "docs/figures/*",
    "docs/reports/*",
    "examples/*.md",
)
COPIED_RECORDS = ("benchmarks/README.md", "benchmarks/records/**/*.json*")


def main(folder: Path) -> Path:
    """The built site's first page."""
    source, html = folder / "source", folder / "html"
    for old in (source, html):
        shutil.rmtree(old, ignore_errors=True)
    gather(source)
    site_commands.write(source / "docs" / "commands.md")
    site_api.write(source / "docs" / "api")
    site_notebooks.write(ROOT / "examples", source / "examples")
    run_sphinx(source, html)
    return html / "index.html"


def run_sphinx(source: Path, html: Path) -> None:
    """CalledProcessError for any warning: a link that leads nowhere, a page nobody links to."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-c", str(HERE)]
    subprocess.run([*command, "-d", str(html.with_name("doctrees")), str(source), str(html)], check=True)


def gather(source: Path) -> None:
    """The repository's pages and records; the README with the contents of the site is the first page."""
    for pattern in (*COPIED, *COPIED_RECORDS):
        for path in sorted(ROOT.glob(pattern)):
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for page in source.rglob("*.md"):
        page.write_text(with_pages(page.read_text(encoding="utf-8")), encoding="utf-8")
    readme = with_pages((ROOT / "README.md").read_text(encoding="utf-8"))
    (source / "index.md").write_text(f"{readme}\n{contents(source)}", encoding="utf-8")


def contents(source: Path) -> str:
    """The contents of the site; guides that it does not name follow those it does."""
    text = (HERE / "contents.md").read_text(encoding="utf-8")
    guides = (f"docs/{page.stem}" for page in sorted((source / "docs").glob("*.md")))
    return text.replace("OTHER GUIDES", "\n".join(guide for guide in guides if guide not in text.split()))


if __name__ == "__main__":
    print(f"Open {main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / 'build' / 'docs').resolve())}")
