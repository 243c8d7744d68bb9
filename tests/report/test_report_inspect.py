"""The page of an inspection, from planted records alone: what it says, what it must not say, what it draws."""

from __future__ import annotations

import json
import re

import pytest
import torch

from termwise.analysis.sentence import truncated
from termwise.report import page, terminal
from termwise.report.inspect_page import heads_table, ladder_table, summary
from termwise.report.inspect_view import inspect_view, rank_correlation
from termwise.report.read import read
from termwise.report.viewer import ORDERS, softmax, truncated_weights, viewer
from termwise.report.words import words
from termwise.results import Record, RunFolder

SAY = words("en")
MEAN, ZERO = {0: 4.0, 2: 2.5, 3: 2.9, 4: 1.5}, {2: 6.0, 3: 9.0, 4: 5.0}
SCORES = [[[0.1, -1.2, 0.7, 2.0], [-3.0, -3.5, -2.0, -4.0]], [[5.0, 0.0, 0.0, 0.1], [0.0, 0.0, 0.0, 0.0]]]


def write(out, **changes):
    """An inspection of two layers with two kv heads."""
    resolved = {"reduced": "taylor:0..2@mean+w64s4", "window": 64, "texts": 4, "length": 512, "budget": 9.0}
    resolved |= {
        "about": {"name": "tiny", "family": "llama"},
        "data": {"notes": ["a text"], "places": ["here"], "digest": "abc"},
    }
    folder = RunFolder.create(out, "inspect", {"model": "tiny"}, resolved)

    def add(kind, metric, value, unit="nats/token", **rest):
        subject = {
            key: rest.pop(key) for key in list(rest) if key not in ("low", "high", "level", "n", "status", "reason")
        }
        folder.append(Record(run_id="r", kind=kind, subject=subject, metric=metric, value=value, unit=unit, **rest))

    add("loss", "loss", 3.0, variant="exact", n=4)
    add("loss", "expected_loss", 2.8, variant="exact", n=4)
    rungs = [("mean", n, v) for n, v in (changes.get("mean") or MEAN).items()]
    rungs += [("zero", n, v) for n, v in (changes.get("zero") or ZERO).items()]
    for center, order, value in rungs:
        ends = {"low": value - 0.2, "high": value + 0.2, "level": 0.95}
        add("loss", "rise", value, variant=f"{center}{order}", order=order, center=center, slots=None, **ends)
    add("loss", "rise", 0.4, variant="drop", order=None, center=None, slots="w64s4", low=0.3, high=0.5)
    add("loss", "rise", 0.1, variant="m2", order=2, center="mean", slots="w64s4", low=0.05, high=0.2)
    rises = {(0, 0): (0.5, 0.4), (0, 1): (0.3, 0.1), (1, 0): (0.2, -0.1)}
    far = {(0, 0): 0.4, (0, 1): 0.02, (1, 0): 0.5, (1, 1): 0.3}
    for (layer, head), share in far.items():
        place = {"layer": layer, "kv_head": head}
        add("score", "score_mean", -2.0 + layer, "1", **place)
        add("score", "first_token_weight", 0.3, "share", **place)
        add("score", "distance_weight", 0.1, "share", **place, distance_low=32, distance_high=64)
        add("score", "distance_weight", share, "share", **place, distance_low=64, distance_high=128)
        add("importance", "fisher", share / 10, **place)
        for order in (0, 1, 2):
            add("term", "magnitude", 1.0 / (order + 1 + head), "1", **place, order=order, center="mean")
        if (layer, head) in rises:
            value, low = rises[layer, head]
            add("importance", "rise", value, **place, low=low, high=value + 0.2)
        else:
            add("importance", "rise", None, **place, status="not_measured", reason="the budget was spent")
    add("importance", "rise", 0.9, layer=0, low=0.8, high=1.0)
    (out / "sentence.json").write_text(json.dumps({"tokens": ["In", " the", " <b>", "."], "scores": SCORES}))
    return out


@pytest.fixture
def out(tmp_path):
    return write(tmp_path / "out")


@pytest.mark.parametrize(
    ("mean", "zero", "said"),
    [
        (MEAN, ZERO, "Around the mean score every further even order lowers the loss; around zero it does not."),
        (MEAN, {2: 3.0, 4: 2.0}, "Around either center"),
        ({0: 4.0, 2: 2.0, 4: 2.1}, ZERO, "Around neither center"),
        ({0: 4.0, 2: 2.0, 4: 2.1}, {2: 3.0, 4: 2.0}, "Around zero every further even order lowers"),
    ],
)
def test_the_headline_is_what_the_ladder_shows(mean, zero, said, tmp_path):
    shown = inspect_view(read(write(tmp_path / "out", mean=mean, zero=zero)))
    assert summary(shown, SAY).headline.startswith(said)


def test_the_lines_give_losses_and_heads(out):
    lines = "\n".join(summary(inspect_view(read(out)), SAY).lines)
    assert "3.000 nats/token over 4 texts, where its own predictions expect 2.800" in lines
    assert "7.00, 5.50, 4.50" in lines and "Around zero: 7.00, 9.00, 8.00." in lines
    assert "+0.400 [+0.300, +0.500]" in lines and "+0.100 [+0.050, +0.200]" in lines
    assert (
        "3 kv heads were reduced one at a time: for 1 the rise is within noise. Retrieval heads (1), those with"
        in lines
    )
    assert "layer 0, kv head 0." in lines


def test_retrieval_heads_are_beyond_noise_and_far_sighted(out):
    heads = {(h.layer, h.kv_head): h for h in inspect_view(read(out)).heads}
    assert [place for place, head in heads.items() if head.is_retrieval] == [(0, 0)]
    assert heads[0, 0].far == pytest.approx(0.4) and heads[1, 1].rise is None


def test_tables_hold_the_records_and_say_what_is_missing(out):
    shown = inspect_view(read(out))
    table = ladder_table(shown, SAY)
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert cells["0"] == ["+4.000", "+4.000", "not measured"]
    assert cells["0..2"] == ["+2.500", "+6.000", "+0.100"] and cells["slots alone"][-1] == "+0.400"
    rows = heads_table(shown, SAY).rows
    assert [row[0].text for row in rows] == ["layer 0, kv head 0", "layer 0, kv head 1", "layer 1, kv head 0"]
    assert [row[-1].text for row in rows] == ["retrieval", "near-sighted", "within noise"]


def test_the_page_reads_without_scripts_and_names_what_was_not_reached(out):
    text = page.write(out).read_text(encoding="utf-8")
    assert "<script" not in text and "http:" not in text and "https:" not in text
    assert "One head or layer has no true evaluation yet" in text
    for key in (
        "inspect-ladder",
        "inspect-importance",
        "inspect-viewer",
        "inspect-maps",
        "inspect-orders",
        "inspect-text",
    ):
        assert f'id="{key}"' in text
    assert text.count('<input type="radio"') == 4 and text.count('class="vrow"') == 4 * (2 * len(ORDERS))
    assert "&lt;b&gt;" in text and "␣<b>" not in text
    assert "termwise inspect tiny" in text


def test_the_terminal_says_the_same(out):
    page.write(out)
    from rich.console import Console

    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(terminal.summary(out))
    said = console.export_text()
    assert "around zero it does not" in said and "retrieval" in said and "Open " in said


def test_tokens_of_the_viewer_stand_over_their_columns():
    """Columns in em agree between the tokens and the weights only where one rule gives both their size of type."""
    rules = dict(re.findall(r"([^{}]+)\{([^{}]*)\}", viewer.__globals__["_STYLE"]))
    shared = rules.pop(".vtokens,.vrow")
    assert "grid-template-columns:13em " in shared and "font-size:" in shared
    assert [name for name, rule in rules.items() if name in (".vtokens", ".vrow") and "font-size" in rule] == []


def test_viewer_weights_are_those_of_the_algebra():
    for scores in (head for layer in SCORES for head in layer):
        assert softmax(scores) == pytest.approx(torch.tensor(scores, dtype=torch.float64).softmax(dim=0).tolist())
        for center in ("mean", "zero"):
            for order in ORDERS:
                expected = truncated(torch.tensor(scores, dtype=torch.float64), tuple(range(order + 1)), center)
                assert truncated_weights(scores, order, center) == pytest.approx(expected.tolist(), rel=1e-6)
    assert truncated_weights([-1.0, -1.0], 1, "zero") is None


@pytest.mark.parametrize("content", [None, "{", '{"tokens": ["a"], "scores": [[[1.0, 2.0]]]}'])
def test_a_damaged_sentence_leaves_the_viewer_out(content, out):
    path = out / "sentence.json"
    path.unlink() if content is None else path.write_text(content)
    assert 'id="inspect-viewer"' not in page.write(out).read_text()


def test_rank_correlation_is_spearmans():
    from scipy.stats import spearmanr

    pairs = [(0.3, 1.0), (0.1, 2.0), (0.3, 3.0), (0.7, 9.0), (0.2, 0.0)]
    assert rank_correlation(pairs) == pytest.approx(spearmanr(pairs).statistic)
    assert rank_correlation(pairs[:2]) is None and rank_correlation([(1.0, 2.0)] * 4) is None


def test_an_inspection_that_has_only_begun_has_a_page(tmp_path):
    RunFolder.create(tmp_path / "out", "inspect", {"model": "tiny"}, {"about": {"name": "tiny"}})
    assert "has not been measured yet" in page.write(tmp_path / "out").read_text()
