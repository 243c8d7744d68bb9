"""The site: strict, whole, written from what it describes, and nothing of it comes from the network."""

from __future__ import annotations

import re
import subprocess

import build_site
import figure
import pytest
import site_api
import typer
from tests.docs.conftest import ROOT

import inspection
import termwise
from termwise import cli

LOADED = re.compile(
    r"<(?:script|img|iframe|source|audio|video|embed|object)\b[^>]*?\b(?:src|data)=[\"'](?:https?:)?//[^\"']*"
    r"|<link\b(?![^>]*rel=[\"'](?:canonical|license)[\"'])[^>]*?\bhref=[\"'](?:https?:)?//[^\"']*"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//[^\s\"')]*|url\(\s*[\"']?(?:https?:)?//[^\s\"')]*"
)


def text_of(path) -> str:
    return path.read_text(encoding="utf-8")


def test_every_page_is_there(site):
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")]
    assert len(pages) > 5
    assert [page for page in pages if not (site / "html" / page.with_suffix(".html")).is_file()] == []


def test_nothing_is_loaded_from_the_network(site):
    files = [path for path in (site / "html").rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(files) > 20
    assert {str(path): found for path in files if (found := LOADED.findall(text_of(path)))} == {}


@pytest.mark.parametrize(
    "planted",
    [
        '<script async src="https://a.example/x.js"></script>',
        "<link rel='stylesheet' href='//a.example/x.css'>",
        "@font-face { src: url(https://a.example/x.woff2) }",
        '<img alt="" src="http://a.example/x.png">',
    ],
)
def test_a_planted_load_would_be_found(planted):
    assert LOADED.findall(planted)


@pytest.mark.parametrize(
    "page",
    ["# Home\n\n[nowhere](nowhere.md)\n", "# Home\n\n[nowhere](#nowhere)\n", "# Home\n\n# Home\n\n![x](x.png)\n"],
)
def test_a_broken_link_stops_the_build(tmp_path, page):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text(page, encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        build_site.run_sphinx(tmp_path / "source", tmp_path / "html")


def test_a_guide_that_contents_do_not_name_is_listed(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("attention", "brand_new"):
        (tmp_path / "docs" / f"{name}.md").write_text("# A page\n", encoding="utf-8")
    listed = build_site.contents(tmp_path).split()
    assert (listed.count("docs/brand_new"), listed.count("docs/attention")) == (1, 1)


def test_every_command_and_option_is_on_the_page(site):
    page = text_of(site / "source" / "docs" / "commands.md")
    commands = typer.main.get_command(cli.app).commands
    options = {
        name: option
        for command in commands.values()
        for p in command.params
        for name, option in zip(p.opts, p.opts, strict=True)
        if name.startswith("--")
    }
    assert [name for name in commands if f"## `termwise {name}`" not in page] == []
    assert [name for name in options if name not in page] == []


def test_every_public_name_is_on_the_page(site):
    page = text_of(site / "source" / "docs" / "api" / "attention.md")
    assert [name for name in termwise.__all__ if f"## `{name}`" not in page] == []
    assert ">>> q = k = v = torch.ones(1, 3, 1, 2)" in page


def test_a_public_name_without_docstring_stops_the_build(monkeypatch):
    monkeypatch.setattr(termwise.AttentionSpec, "__doc__", None)
    with pytest.raises(ValueError, match="no docstring: AttentionSpec"):
        site_api.text("termwise", ["termwise"], "")


@pytest.mark.parametrize(("name", "baseline"), [("prose", "softmax"), ("prose", "linear_elu"), ("ladder", "softmax")])
def test_findings_are_the_records(name, baseline):
    assert figure.table(name, baseline) in text_of(ROOT / "docs" / "findings.md")


def test_the_ladder_in_the_findings_is_the_record():
    ladder = inspection.table(ROOT / "benchmarks" / "records" / "inspect_smollm2")
    assert ladder in text_of(ROOT / "docs" / "findings.md")
