"""The verdict in words for every answer the records can hold; the terminal; numbers; label places."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as some
from planted_study import Planted, complete
from rich.console import Console

from termwise.report import terminal
from termwise.report.placing import beside, spread
from termwise.report.read import read
from termwise.report.verdict import summary
from termwise.report.view import view
from termwise.report.words import messages, words

SAY = words("en")
SPACE = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize("key", [m.context for m in messages() if " {interval}" in str(m.id)])
@pytest.mark.parametrize("lang", ["en", "ja"])
def test_a_figure_without_an_interval_leaves_no_space_behind(lang, key):
    say = words(lang)
    fields = dict.fromkeys(("change", "share", "rise", "target", "value", "baseline", "answer", "difference"), "1")
    assert not re.search(r" [.,:;)）。、：]|  ", say(key, interval="", **fields))
    assert "[0, 2]" in say(key, interval="[0, 2]", **fields)


def told(planted: Planted):
    return summary(view(read(planted.write())), SAY)


def study(path, answers: dict[str, tuple[str, float]], seeds=(0, 1, 2), state: dict[str, int] | None = None) -> Planted:
    """softmax at 1.700 and variants with given answers and differences."""
    planted = Planted(path, ["softmax", *answers], seeds)
    for name in planted.names:
        _, value = answers.get(name, ("", 0.0))
        for seed in seeds:
            planted.record("loss", "held_out_nats", "nats/token", 1.7 + value, {"variant": name, "seed": seed})
        if name in answers:
            planted.verdict(name, answers[name][0], value, 0.03 if len(seeds) > 1 else None, 0.02)
        if state:
            planted.record("memory", "state", "B", state[name], {"variant": name, "length": 256})
    return planted


CASES = {
    "all higher": (
        {"a": ("higher", 0.2), "b": ("higher", 0.4)},
        "softmax has the lowest held-out loss; a and b came out higher.",
    ),
    "one lower": (
        {"a": ("lower", -0.2), "b": ("higher", 0.4)},
        "a reached a lower held-out loss than softmax.",
    ),
    "lower and alike": (
        {"a": ("lower", -0.2), "b": ("no difference found", 0.01)},
        "a reached a lower held-out loss than softmax. No difference from softmax was found for b.",
    ),
    "nothing found": (
        {"a": ("no difference found", -0.02), "b": ("no difference found", 0.01)},
        "No variant was found to reach a lower held-out loss than softmax. "
        "No difference from softmax was found for a and b.",
    ),
    "higher, but not all were decided": (
        {"a": ("higher", 0.2), "b": ("too few seeds", -0.3)},
        "No variant was found to reach a lower held-out loss than softmax.",
    ),
    "too few seeds": (
        {"a": ("too few seeds", -0.2)},
        "Too few seeds for a verdict. In this run a has the lowest held-out loss, 1.500 nats/token.",
    ),
    "too few documents": (
        {"a": ("too few documents", 0.2)},
        "Too few held-out documents for a verdict. "
        "In these runs softmax has the lowest held-out loss, 1.700 nats/token.",
    ),
    "an answer of a later version": (
        {"a": ("perhaps", 0.2)},
        "softmax has the lowest held-out loss so far, 1.700 nats/token; no verdict has been recorded yet.",
    ),
    "alone": ({}, "softmax reached a held-out loss of 1.700 nats/token; there is no other variant to compare it with."),
}


@pytest.mark.parametrize("case", CASES)
def test_the_headline_says_what_was_found(tmp_path, case):
    answers, headline = CASES[case]
    assert told(study(tmp_path / "run", answers)).headline == headline


def test_without_a_baseline_there_is_no_verdict(tmp_path):
    planted = Planted(tmp_path / "a", ["x", "y"], (0,))
    for name in planted.names:
        planted.record("loss", "held_out_nats", "nats/token", 2.0, {"variant": name, "seed": 0})
    assert told(planted).headline == "x has the lowest held-out loss, 2.000 nats/token; the records hold no comparison."
    planted = Planted(tmp_path / "b", ["softmax", "y"], (0,))
    planted.record("loss", "held_out_nats", "nats/token", 2.0, {"variant": "y", "seed": 0})
    assert "no verdict: softmax has not been measured" in told(planted).headline


def test_the_groups_hold_each_difference_with_the_wider_interval(tmp_path):
    answers = {"a": ("lower", -0.2), "b": ("no difference found", 0.01), "c": ("higher", 0.3), "d": ("higher", 0.1)}
    groups = {group.answer: group for group in told(study(tmp_path / "run", answers)).groups}
    assert groups["lower"].items == (("a", f"{MINUS}0.200 [{MINUS}0.230, {MINUS}0.170]"),)
    assert [name for name, _ in groups["higher"].items] == ["d", "c"]
    assert "does not say that they are equal" in groups["no difference found"].note


def test_the_price_of_a_smaller_state_is_said(tmp_path):
    answers = {"a": ("higher", 0.2), "b": ("higher", 0.4), "c": ("higher", 0.1)}
    sizes = {"softmax": 1000, "a": 250, "b": 100, "c": 2000}
    (line,) = told(study(tmp_path / "run", answers, state=sizes)).lines
    assert line.replace(SPACE, " ").endswith(
        "a has the lowest loss: +0.200 nats/token with 250 B, 25.0 % of the bytes."
    )
    (line,) = told(study(tmp_path / "other", answers, state=dict.fromkeys(sizes, 1000))).lines
    assert (
        line.replace(SPACE, " ") == "No variant was measured with a smaller state than softmax at 256 tokens (1,000 B)."
    )


def shown(folder, width: int = 200) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(terminal.summary(folder))
    return stream.getvalue()


def test_the_terminal_shows_verdict_table_and_problems(tmp_path):
    planted = complete(tmp_path / "run", seeds=(0, 1))
    planted.record(
        "train", "train_loss", "nats/token", None, {"variant": "softmax", "seed": 9}, status="failed", reason="NaN"
    )
    text = shown(planted.write())
    assert "No variant was found to reach a lower held-out loss than softmax" in text
    assert "7 attention variants on King James Bible and Shakespeare" in text
    rows = [line.split() for line in text.splitlines()]
    loss, base = (sum(planted.loss(name, seed) for seed in (0, 1)) / 2 for name in ("taylor:0..2", "softmax"))
    assert ["taylor:0..2", f"{loss:.3f}", f"{loss - base:+.3f}", "higher", "104,448", "0.39"] in rows
    assert "softmax (seeds: 9): training, failed: NaN" in text
    assert "steps to recall, not reached: not reached within 1200 steps" in text
    assert "Open" not in text
    (tmp_path / "run" / "index.html").write_text("")
    assert f"Open {tmp_path / 'run' / 'index.html'}" in shown(tmp_path / "run", width=400)


def test_the_terminal_shows_an_empty_folder(tmp_path):
    text = shown(Planted(tmp_path / "run", ["softmax", "elu1"]).write())
    assert "Nothing has been measured yet." in text
    assert text.count("not measured") >= 7


def test_the_terminal_needs_no_heavy_package():
    code = "import sys, termwise.report.terminal, termwise.report.page; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "termwise.results" in loaded
    assert not {"altair", "vl_convert", "jinja2", "scipy", "numpy", "torch", "transformers", "rich"} & set(loaded)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1, "100 %"), (0.00001, "< 0.01 %"), (0.0042, "0.42 %"), (0.381, "38.1 %"), (None, "not measured")],
)
def test_shares(value, text):
    assert SAY.share(value).replace(SPACE, " ") == text


def test_numbers_and_lists():
    assert SAY.number(-1234.5678, 2) == f"{MINUS}1,234.57"
    assert SAY.signed(0.2) == "+0.200"
    assert SAY.interval(None, 1.0) == "no interval"
    assert [SAY.level(x).replace(SPACE, " ") for x in (0.95, 1 - 0.05 / 6)] == ["95 %", "99.17 %"]
    assert SAY.listing([]) == ""
    assert SAY.listing(["a", "b", "c"]) == "a, b and c"
    assert SAY.listing(list("abcdefgh"), 6) == "a, b, c, d, e, f and 2 more"


@given(some.lists(some.floats(0, 300), max_size=12), some.floats(1, 20))
def test_labels_are_spread_in_order_and_inside(positions, gap):
    moved = spread(positions, gap, 0, 300)
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    placed = [moved[i] for i in order]
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(placed))
    assert all(-1e-6 <= y <= 300 + 1e-6 for y in placed)
    if all(b - a >= gap for a, b in itertools.pairwise(sorted(positions))):
        assert moved == pytest.approx(positions)


@given(some.lists(some.tuples(some.floats(0, 400), some.floats(0, 300)), min_size=1, max_size=15), some.floats(3, 20))
def test_labels_beside_points_cover_nothing(points, radius):
    boxes = []
    labels = beside(points, [60.0] * len(points), (400, 300), [radius] * len(points))
    for (x, y), label in zip(points, labels, strict=True):
        if label is None:
            continue
        left = x + label.dx - (60 if label.align == "right" else 0)
        box = (left, y + label.dy - 6.5, left + 60, y + label.dy + 6.5)
        assert box[0] >= 0
        assert box[2] <= 400
        assert not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes)
        assert not any(box[0] < px < box[2] and box[1] < py < box[3] for px, py in points if (px, py) != (x, y))
        assert not (box[0] < x + radius and x - radius < box[2] and box[1] < y + radius and y - radius < box[3])
        boxes.append(box)
