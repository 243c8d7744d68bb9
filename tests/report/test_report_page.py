"""The page: every figure from a record, every missing figure said, nothing fetched from outside."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean

import planted_study
import pytest
from planted_study import NAMES, STATE, Planted, complete
from scipy import stats

from termwise.report import drawing, page
from termwise.report.read import read
from termwise.report.sections import sections
from termwise.report.view import view
from termwise.report.words import words

MINUS = "\N{MINUS SIGN}"


class Tables(HTMLParser):
    """The tables of a page as rows of texts; a note under a value follows it after a bar."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        kind = dict(attrs).get("class") or ""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.in_cell = True
        elif tag == "span" and kind in ("note", "unit"):
            self.tables[-1][-1][-1] += "|"

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data):
        if self.in_cell:
            self.tables[-1][-1][-1] += data.strip()


def by_name(table: list[list[str]]) -> dict[str, dict[str, str]]:
    head, *rows = table
    return {row[0].split("|")[0]: dict(zip(head, row, strict=True)) for row in rows}


def written(planted: Planted) -> str:
    return page.write(planted.write()).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = complete(tmp_path_factory.mktemp("runs") / "finished").write()
    page.write(folder)
    return folder


@pytest.fixture
def text(finished) -> str:
    return (finished / "index.html").read_text(encoding="utf-8")


def recorded(folder: Path, metric: str, variant: str) -> list[float]:
    lines = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [r["value"] for r in lines if r["metric"] == metric and r["subject"].get("variant") == variant]


def t_interval(values: list[float]) -> str:
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean(values), scale=stats.sem(values))
    return f"[{low:.3f}, {high:.3f}]"


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", MINUS)


def test_the_result_table_is_the_records_and_nothing_else(finished, text):
    rows = by_name(Tables(text).tables[0])
    losses = {name: mean(recorded(finished, "held_out_nats", name)) for name in NAMES}
    assert list(rows) == sorted(NAMES, key=losses.get)
    for name, row in rows.items():
        nats, bits = recorded(finished, "held_out_nats", name), recorded(finished, "held_out_bits", name)
        expected = [
            f"{name}|{NAMES[name]}",
            f"{mean(nats):.3f}|{t_interval(nats)}",
            f"{mean(bits):.3f}|{t_interval(bits)}",
        ]
        if name == "softmax":
            expected += ["", "", "", "baseline"]
        else:
            (verdict,) = recorded(finished, "verdict", name)
            halves = 0.082, 0.013 + 0.02 * abs(verdict)
            expected += [signed(verdict)]
            expected += [f"[{signed(verdict - half)}, {signed(verdict + half)}]" for half in halves]
            expected += ["higher" if verdict > 0.1 else "no difference found"]
        assert list(row.values()) == expected


def test_the_cost_table_is_the_records_and_nothing_else(finished, text):
    rows = by_name(Tables(text).tables[1])
    for name, row in rows.items():
        (parameters,) = recorded(finished, "parameters", name)
        is_good = name == "softmax" or "0..4" in name
        bad = (
            "0.04\N{NO-BREAK SPACE}%|seed 0, layer 1, head 1" if name == "taylor:0..1@mean" else "0\N{NO-BREAK SPACE}%"
        )
        assert list(row.values()) == [
            name,
            f"{parameters:,}",
            f"{STATE[name]:,}",
            f"{STATE[name]:,}",
            f"{mean(recorded(finished, 'training_tokens', name)):,.0f}",
            f"{mean(recorded(finished, 'accuracy', name)):.2f}",
            "410" if is_good else "not reached",
            bad,
            "0\N{NO-BREAK SPACE}%",
            "3 of 3 done",
        ]
    assert rows.keys() == NAMES.keys()


def test_the_page_fetches_nothing_and_runs_nothing(text):
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|//[a-z]|<script|<link|<iframe|<img|@import|\bsrc=|\bhref=|\bon[a-z]+=", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {f"#{name}" for name in ids} > set(re.findall(r"url\(([^)]+)", text))
    assert len(text) < 300_000


def test_the_page_can_be_read_without_seeing(text):
    assert '<html lang="en">' in text
    assert text.count('role="img" aria-label="') == text.count("<figure") == 5
    assert text.count("<caption>") == text.count("<table>")
    assert text.count('scope="col"') > 15
    assert 'scope="row"' in text


def test_the_page_says_how_it_was_measured(finished, text):
    run = json.loads((finished / "run.json").read_text())
    wanted = ["termwise study kjv.txt shakespeare.txt --seeds 3 --steps 300", "a1b2c3d4e5f6", "0f3a9c4e77d1"]
    wanted += [
        run["versions"]["python"],
        run["machine"]["cpu"],
        words("en").datetime(run["created"]),
        "contiguous blocks",
        "614,400 tokens",
        "9,003,112",
        "0.001",
    ]
    assert [word for word in wanted if word not in text] == []
    assert "3 seeds: an interval over so few is wide" in text
    assert "Demonstration" not in text
    assert ["linear_elu", f"{NAMES['linear_elu']}|a note on linear_elu", "linear_elu", "elu1", "none"] in Tables(
        text
    ).tables[3]


def test_captions_name_what_is_there(tmp_path, text):
    assert "Held-out tokens scored</dt><dd>65,536" in re.sub(r">\s+", ">", re.sub(r"\s+<", "<", text))
    said = ("The first steps lie above the frame", "Thick line: t interval", "Thin line: bootstrap interval")
    assert [words for words in said if words not in text] == []
    planted = Planted(tmp_path / "flat", ["softmax", "linear_elu"], (0,), data={"paths": ["a.txt"], "given": ["a.txt"]})
    planted.log("softmax", 0, steps=2)
    html = written(planted)
    assert [words for words in (*said, "given") if words in html] == []


def test_a_loss_that_was_not_asked_for_is_not_missing(tmp_path):
    planted = Planted(tmp_path / "recall", ["softmax"], (0,), tasks=["recall"])
    planted.recall("softmax", 0)
    html = written(planted)
    assert "No held-out loss was asked for" in html
    assert [words for words in ("Nothing has been measured yet", "no record yet", "so far.") if words in html] == []


def test_writing_again_gives_the_same_page(finished, text):
    assert page.write(finished).read_text(encoding="utf-8") == text


def test_recall_by_distance_is_a_table_of_its_own(finished, tmp_path):
    say = words("en")

    def tables(folder):
        blocks = [block for section in sections(view(read(folder)), say) for block in section.blocks]
        return {b.caption: b for b in blocks if b.kind == "table"}

    found = next(b for caption, b in tables(finished).items() if caption.startswith("Recall by distance"))
    assert [column.label for column in found.columns][1:] == ["1 to 7 tokens", "8 to 15 tokens", "16 to 23 tokens"]
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in found.rows}
    assert rows["softmax"] == ["1.00", "1.00", "1.00"]
    assert rows["linear_elu"] == ["0.87", "0.65", "0.40"]
    without = Planted(tmp_path / "none", ["softmax"], (0,))
    without.loss("softmax", 0)
    assert not any(caption.startswith("Recall by distance") for caption in tables(without.write()))


def test_every_figure_is_a_valid_specification(finished):
    import altair as alt

    say = words("en")
    blocks = [block for section in sections(view(read(finished)), say) for block in section.blocks]
    figures = {block.key: block for block in blocks if block.kind == "figure"}
    assert list(figures) == ["differences", "recall", "state", "curves", "positions"]
    for figure in figures.values():
        datasets = figure.specification.pop("datasets")
        assert all(datasets.values())
        again = alt.LayerChart.from_dict(figure.specification).to_dict()
        assert {layer["data"]["name"] for layer in again["layer"] if "data" in layer} <= datasets.keys()
    assert "softmax 1.717" in figures["state"].description.replace("524,288\N{NO-BREAK SPACE}B, ", "")


def test_one_seed_says_too_few_and_a_demonstration_says_so(tmp_path):
    names = ["softmax", "linear_elu", "taylor:0..2"]
    html = written(complete(tmp_path / "one", names, (0,), demonstration=True))
    assert "Too few seeds for a verdict. In this run softmax has the lowest held-out loss" in html
    assert "Decide nothing from its numbers" in html
    assert "(Demonstration)</title>" in html
    assert "One seed: nothing here says" in html
    row = by_name(Tables(html).tables[0])["linear_elu"]
    assert row["Verdict"] == "too few seeds"
    assert row["Interval over seeds|nats/token"] == "no interval"
    assert row["Interval over documents|nats/token"].startswith("[+")
    assert row["Held-out loss|nats/token"].endswith("|one seed")


def test_a_half_finished_study_names_what_failed_and_what_is_missing(tmp_path):
    planted = Planted(tmp_path / "half")
    for name in planted.names[:3]:
        for seed in (0, 1):
            planted.run(name, seed)
    lost = {"variant": "softmax", "seed": 2}
    planted.record("train", "train_loss", "nats/token", None, lost, status="failed", reason="NaN in layer 2, head 1")
    planted.record("recall", "accuracy", "share", None, lost, reason="recall was switched off")
    html = written(planted)
    result, cost, _, problems = Tables(html).tables
    assert by_name(result)["linear_elu"]["Held-out loss|nats/token"] == "not measured"
    assert set(by_name(cost)["linear_elu"].values()) == {"linear_elu", "not measured", "0 of 3 done"}
    assert by_name(cost)["softmax"]["Runs"] == "2 of 3 done|1 failed"
    assert ["softmax", "2", "training", "failed", "NaN in layer 2, head 1"] in problems
    assert ["softmax", "2", "recall", "not measured", "recall was switched off"] in problems
    silent = [row for row in problems if row[4].startswith("no record yet")]
    assert [row[1] for row in silent] == ["2", "0, 1, 2"]
    assert silent[1][0] == ", ".join(planted.names[3:])
    assert "6 of 21 runs have a held-out loss so far." in html
    assert "no verdict has been recorded yet" in html
    assert "Some runs failed" in html
    assert "Not drawn, because not measured: taylor:0..2, taylor:0..2@mean, taylor:0..1@mean and linear_elu." in html


@pytest.mark.parametrize("names", [None, [], ["softmax"]])
def test_a_folder_without_records_has_a_page(tmp_path, names):
    planted = Planted(tmp_path / "empty")
    if names is not None:
        planted.folder.update(
            resolved=planted.folder.run["resolved"] | {"variants": [Planted.describe(n) for n in names]}
        )
    html = written(planted)
    assert "Nothing has been measured yet." in html
    cells = [cell for table in Tables(html).tables for row in table[1:] for cell in row[1:]]
    assert not [cell for cell in cells if re.fullmatch(r"0(\.0+)?", cell)]
    assert "<figure" not in html


def test_torn_damaged_and_foreign_lines_are_counted_and_left_out(tmp_path):
    planted = complete(tmp_path / "torn", ["softmax", "linear_elu"], (0, 1))
    planted.record("loss", "held_out_nats", "nats/token", 0.777, {"variant": "someone else", "seed": 0})
    whole = len(planted.lines)
    folder = planted.write()
    odd = [
        '{"loss": 0.777}',
        "[1, 2]",
        "not json",
        '{"schema": 99, "kind": "loss"}',
        '{"schema": 1, "metric": 3}',
        "\udcff",
    ]
    with open(folder / "records.jsonl", "ab") as file:
        file.write("\n".join(odd).encode(errors="surrogateescape") + b'\n{"schema": 1, "run_id"')
    html = page.write(folder).read_text(encoding="utf-8")
    first = whole + 1
    assert (
        f"3 lines of records.jsonl are no records of termwise and are left out (lines {first}, {first + 1} and {first + 4})"
        in html
    )
    assert f"2 lines of records.jsonl are not JSON and are left out (lines {first + 2} and {first + 5})" in html
    assert f"One line of records.jsonl was written in another schema and is left out (line {first + 3})" in html
    assert (
        f"The last line of records.jsonl was torn in the middle of writing and is left out (line {first + 6})" in html
    )
    assert "One record is about a variant that run.json does not name" in html
    assert "someone else" not in html
    assert "0.777" not in html


def test_a_record_written_twice_counts_once(tmp_path):
    planted = complete(tmp_path / "twice", ["softmax", "linear_elu"], (0, 1))
    planted.record("loss", "held_out_nats", "nats/token", 1.5, {"variant": "softmax", "seed": 0}, n=65_536)
    planted.record("loss", "held_out_nats", "nats/token", 1.7, {"variant": "softmax", "seed": 1}, n=65_536)
    row = by_name(Tables(written(planted)).tables[0])["softmax"]
    assert row["Held-out loss|nats/token"] == f"1.600|{t_interval([1.5, 1.7])}"


def test_what_was_measured_since_is_no_longer_missing(tmp_path):
    planted = Planted(tmp_path / "since", ["softmax", "linear_elu"], (0,))
    for name in planted.names:
        planted.record("recall", "accuracy", "share", None, {"variant": name}, reason="recall was left out")
    planted.recall("softmax", 0)
    problems = Tables(written(planted)).tables[-1]
    assert [row[0] for row in problems if row[4] == "recall was left out"] == ["linear_elu"]


def test_a_step_without_a_loss_is_a_gap_in_the_curve(tmp_path):
    def strokes(gaps: tuple[int, ...], name: str) -> int:
        planted = Planted(tmp_path / name, ["softmax"], (0,))
        planted.log("softmax", 0, steps=60, gaps=gaps)
        html = written(planted)
        curve = html[html.index('id="figure-curves"') :]
        paths = re.findall(r'd="([^"]+)"', curve[: curve.index("</figure>")])
        return max(path.count("M") for path in paths if "L" in path and "Z" not in path)

    assert strokes((), "whole") == 1
    assert strokes((20, 21, 40), "gaps") == 3


def test_a_log_that_is_torn_or_repeated_still_gives_its_curve(tmp_path):
    planted = Planted(tmp_path / "log", ["softmax"], (0,))
    planted.log("softmax", 0, steps=5)
    folder = planted.write()
    with open(planted.folder.run_path("softmax", 0) / "log.jsonl", "a") as file:
        file.write('{"step": 5, "loss": 7.0}\n{"step": 6, "loss": NaN}\nnoise\n{"step": 7, "lo')
    (curve,) = view(read(folder)).curves()
    assert curve.steps == (1, 2, 3, 4, 5, 6)
    assert curve.losses[4:] == (7.0, None)


def test_forty_variants_stay_readable(tmp_path):
    names = ["softmax"] + [f"gated_softmax_no_gate_L2norm_nodivS_noclamp_{i}" for i in range(39)]
    planted = Planted(tmp_path / "forty", names, (0,))
    for place, name in enumerate(names):
        planted.costs(name)
        planted.record("loss", "held_out_nats", "nats/token", 1.7 + 0.01 * place, {"variant": name, "seed": 0})
        planted.log(name, 0, steps=20)
        if place:
            planted.verdict(name, "higher", 0.01 * place, 0.005, 0.002)
    html = written(planted)
    assert len(html) < 1_000_000
    assert list(by_name(Tables(html).tables[0])) == names
    assert "softmax has the lowest held-out loss; 39 other variants came out higher." in html
    assert "and 29 more, in the table below" in html
    curve = html[html.index('id="figure-curves"') :]
    panels = re.findall(r">(softmax|gated_[^<]*)</text>", curve[: curve.index("</figure>")])
    assert len(panels) == len(set(panels)) == 40
    assert max(map(len, panels)) <= drawing.LONGEST_NAME


def test_names_and_reasons_are_text_not_markup(tmp_path):
    bad = "<script>alert(1)</script>"
    planted = Planted(tmp_path / "markup", ["softmax", bad], (0,), data={"name": bad, "notes": [bad]})
    for name in planted.names:
        planted.run(name, 0)
    planted.record("recall", "accuracy", "share", None, {"variant": bad, "seed": 0}, reason=bad)
    html = written(planted)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 5


def test_every_colour_of_a_figure_has_a_dark_twin():
    css = (Path(page.__file__).parent / "page.css").read_text()
    colors = [drawing.INK, drawing.MUTED, drawing.FAINT, drawing.GRID, drawing.LOWER, drawing.HIGHER, *drawing.SERIES]
    for color in colors:
        for attribute in ("fill", "stroke"):
            assert re.search(rf'svg \[{attribute}="{color}"\] {{ {attribute}: #[0-9a-f]{{6}}; }}', css), color


def test_every_word_that_is_asked_for_is_there():
    sources = [*Path(page.__file__).parent.rglob("*.py"), *Path(page.__file__).parent.rglob("*.j2")]
    asked = {
        key
        for source in sources
        for key in re.findall(r'\bsay(?:\.plural)?\(\s*["\']([a-z_. ]+)["\']', source.read_text())
    }
    assert len(asked) > 60
    assert [key for key in sorted(asked) if words("en").known(key, "no such message") == "no such message"] == []


def test_what_cannot_be_written_is_refused_in_one_line(finished, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no run folder"):
        page.write(tmp_path)
    with pytest.raises(ValueError, match=r"language 'xx' is not there; available: en"):
        page.write(finished, lang="xx")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ValueError, match=r"the page needs vl_convert.*pip install 'termwise\[study\]'"):
        page.write(finished)


def test_a_page_is_replaced_whole_or_not_at_all(finished, tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    before = (folder / "index.html").read_bytes()
    monkeypatch.setattr(page, "sections", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(folder)
    assert (folder / "index.html").read_bytes() == before


def test_bits_and_nats_agree_in_the_planted_records():
    # the planted figures are consistent, so that a mixed-up column cannot pass
    assert planted_study.LOSS["softmax"] / math.log(2) == pytest.approx(2.483, abs=1e-3)
