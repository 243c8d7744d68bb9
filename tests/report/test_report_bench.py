"""The page of a benchmark from planted records: crossings, failures, states, nothing from outside."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from termwise.report import bench_figures, page, terminal
from termwise.report.bench_view import bench_view
from termwise.report.read import read
from termwise.report.words import words
from termwise.results import Record, RunFolder

SAY = words("en")
LENGTHS = (512, 2048, 8192)


def plant(folder, metric, variant, measure, length, value, **more):
    kind = "memory" if metric in ("state", "state_formula", "cache") else "speed"
    unit = {"prefill": "s", "decode": "s/token"}.get(metric, "B" if kind == "memory" else "1")
    subject = {"variant": variant, "measure": measure, "length": length}
    folder.append(Record(run_id="bench-1", kind=kind, subject=subject, metric=metric, value=value, unit=unit, **more))


def crossing(folder, variant, measure, value):
    status = {} if value else {"status": "not_measured", "reason": "no crossing up to 8,192"}
    subject = {"variant": variant, "measure": measure, "shortest": 512, "longest": 8192}
    folder.append(
        Record(run_id="bench-1", kind="speed", subject=subject, metric="crossing", value=value, unit="tokens", **status)
    )


@pytest.fixture
def folder(tmp_path):
    """fused attention quadratic; "fast" linear and ahead from 2,000; "broken" disagrees at the longest."""
    shape = {
        "heads": 8,
        "kv_heads": 8,
        "key_width": 64,
        "value_width": 64,
        "batch": 1,
        "dtype": "float32",
        "threads": 1,
    }
    made = RunFolder.create(
        tmp_path / "run", "bench", {"variants": ["fast", "broken"]}, shape | {"lengths": list(LENGTHS)}
    )
    made.update(variants=[{"name": name, "formula": f"formula of {name}"} for name in ("sdpa", "fast", "broken")])
    for length in LENGTHS:
        plant(
            made,
            "prefill",
            "sdpa",
            "prefill",
            length,
            1e-8 * length**2,
            low=0.9e-8 * length**2,
            high=1.2e-8 * length**2,
        )
        plant(
            made, "prefill", "fast", "prefill", length, 2e-5 * length, form="chunked", reason="predicted for many keys"
        )
        plant(made, "prefill_ratio", "fast", "prefill", length, length / 2000)
        plant(made, "state", "fast", "prefill", length, 4_461_600)
        plant(made, "state_formula", "fast", "prefill", length, 4_461_600 if length < 8192 else 4_461_601)
        plant(made, "cache", "fast", "prefill", length, 4096 * length)
        if length < 8192:
            plant(made, "prefill", "broken", "prefill", length, 3e-5 * length, form="chunked", reason="as before")
    reason = "the form that runs disagrees with the definition: relative RMS 0.1"
    plant(made, "prefill", "broken", "prefill", 8192, None, status="failed", reason=reason)
    crossing(made, "fast", "prefill", 2000.0)
    return made


def text_of(folder) -> str:
    return page.write(folder.path).read_text(encoding="utf-8")


def test_the_page_says_and_marks_the_crossing(folder):
    text = text_of(folder)
    assert "fast prefills faster than fused attention from about 2,000 tokens on." in text
    assert ">2,000<" in text
    figure = bench_figures.figures(bench_view(read(folder.path)), SAY)[0]
    assert [row["x"] for row in figure.specification["datasets"]["crossings"]] == [2000.0]
    assert len(figure.specification["datasets"]["rows"]) == 3 + 3 + 2


def test_what_disagreed_has_no_figure_and_is_named(folder):
    text = text_of(folder)
    assert "relative RMS 0.1" in text
    rows = bench_figures.figures(bench_view(read(folder.path)), SAY)[0].specification["datasets"]["rows"]
    assert [row["x"] for row in rows if row["line"] == "broken"] == [512, 2048]


def test_a_state_that_is_not_the_formulas_stands_out(folder):
    text = text_of(folder)
    assert text.count("as by formula") == 2
    assert re.search(r'class="value flag[^"]*">4\.25 MiB', text)


def test_nothing_comes_from_outside_and_every_figure_is_whole(folder):
    text = text_of(folder)
    assert not re.search(r"""(?:src|href)=|url\((?!#)|@import|<script|https?://""", text)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 2
    for drawn in drawings:
        ET.fromstring(re.sub(r"xlink:", "", drawn))


def test_the_terminal_says_the_same(folder):
    from rich.console import Console

    page.write(folder.path)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal.summary(folder.path))
    said = console.export_text()
    assert "from about 2,000 tokens on" in said
    assert "164 ms (4.10 x)" in said
    assert "relative RMS 0.1" in said
    assert "index.html" in said


def test_no_crossing_is_said(folder):
    crossing(folder, "fast", "prefill", None)
    assert "No subject passes its baseline up to 8k tokens." in text_of(folder)


@pytest.mark.parametrize("measure", ["step", "generate"])
def test_a_whole_model_stands_beside_llama_and_has_no_shape_of_one_layer(tmp_path, measure):
    resolved = {"heads": 8, "kv_heads": 8, "key_width": 64, "value_width": 64, "batch": 1, "dtype": "float32"}
    made = RunFolder.create(tmp_path / "run", "bench", {}, resolved | {"threads": 1, "lengths": [512]})
    made.update(variants=[{"name": "sdpa", "formula": "f"}, {"name": "folder/model", "formula": "a model folder"}])
    for variant, seconds in (("sdpa", 0.006), ("folder/model", 0.008)):
        plant(made, measure, variant, measure, 512, seconds)
    plant(made, f"{measure}_ratio", "folder/model", measure, 512, 0.75)
    text = text_of(made)
    assert "Llama of the same sizes, static cache" in text
    assert "Whole models in their own sizes: sequences 1, float32, threads 1." in text
    assert "query heads" not in text


def test_an_empty_benchmark_has_a_page(tmp_path):
    made = RunFolder.create(tmp_path / "run", "bench", {}, {})
    assert "Nothing has been measured yet." in text_of(made)


def test_units():
    assert [SAY.duration(s) for s in (5e-5, 0.0123, 2.5, 700)] == ["50.0 µs", "12.3 ms", "2.50 s", "700 s"]
    assert [SAY.size(n) for n in (512, 2048, 3 * 2**20, 5 * 2**30)] == ["512 B", "2.00 KiB", "3.00 MiB", "5.00 GiB"]
    assert [SAY.length(n) for n in (700.4, 1024, 1500, 65536)] == ["700", "1k", "1,500", "64k"]
