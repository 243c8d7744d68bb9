"""What runs write into their records in English reads Japanese on a Japanese page."""

from __future__ import annotations

import re
from pathlib import Path

from test_messages import ALL

from termwise.attention.catalogue import catalogue
from termwise.data.sizes import counted
from termwise.report.read import read
from termwise.report.words import words
from termwise.study.grid import control_of, resolve

ROOT = Path(__file__).parents[2]
SAY = words("ja")
JAPANESE = re.compile(r"[ぁ-んァ-ヶ一-鿿]")


def untold(sentences: set[str]) -> list[str]:
    """Those of which a part stays English: more than one Latin word in a row, which a name or a number is not."""
    return sorted(
        s for s in sentences if re.search(r"[A-Za-z]{2,} [a-z]{2,} [a-z]", SAY.recorded(s).replace("et al.", ""))
    )


def test_every_note_of_the_catalogue_is_translated():
    variants = [catalogue.variant(name) for name in catalogue.names()]
    notes = {variant.note for variant in variants if variant.note}
    assert len(notes) > 25
    assert untold(notes) == []
    assert all(JAPANESE.search(SAY.recorded(note)) for note in notes)


def test_every_part_that_cancels_is_explained():
    sentences = {sentence for name in catalogue.names() for sentence in catalogue.variant(name).spec.explain()}
    assert len(sentences) >= 3
    assert [sentence for sentence in sentences if not JAPANESE.search(SAY.recorded(sentence))] == []


def test_reasons_and_notes_of_the_kept_records_are_translated():
    readings = [read(path.parent) for path in (ROOT / "benchmarks" / "records").glob("*/run.json")]
    reasons = {r.reason for reading in readings for r in reading.records if r.reason and r.metric != "verdict"}
    data = [reading.setting("data", {}) for reading in readings]
    notes = {note for one in data for key in ("notes", "places") for note in one.get(key, ())}
    assert len(reasons) > 10
    assert len(notes) > 4
    assert untold(reasons | notes) == []


def test_what_is_translated_is_what_runs_write():
    """The longest fixed piece of every form stands in the source: a sentence that was reworded there is found here.

    Of one of a thing there is a form of its own; where the source counts, it has the thing without the s of several.
    """
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "termwise").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)
    pieces = {
        key: max(re.split(r"\{\w+\}|\b1 ", text), key=len).strip().removesuffix("s")
        for key, (text, _) in ALL.items()
        if key.startswith("recorded.")
    }
    assert {key: piece for key, piece in pieces.items() if piece not in joined} == {}


def test_one_of_a_thing_is_told_too():
    """As the source counts: no form for several takes it."""
    notes = [
        f"left out {counted(1, 'empty document')}",
        f"replaced {counted(1, 'piece')} of bad UTF-8 by U+FFFD",
        "removed 1 training document that is an exact copy of a held-out one",
        "removed 1 exact copy of other documents, so that none is on both sides",
        f"text: {counted(1, 'document')}, 900 characters in 'a.txt'",
        f"the definition in float64, {counted(1, 'row')}",
    ]
    assert untold(set(notes)) == []
    assert all(JAPANESE.search(SAY.recorded(note)) and "1" in SAY.recorded(note) for note in notes)


def test_the_note_of_a_control_is_translated():
    note = control_of(resolve(["softmax"])).note
    assert untold({note}) == []
    assert SAY.recorded(note).startswith("対照")


def test_a_form_takes_whole_sentences_only():
    assert SAY.recorded("not reached within 9 steps") == "9ステップ以内に未達"
    assert SAY.recorded("it was not reached within 9 steps") == "it was not reached within 9 steps"
    formula = "w = exp(x);  U = sum w v;  o = U / Z"
    assert SAY.recorded(formula) == formula
    assert words("en").recorded("the baseline; equal to exp") == "the baseline; equal to exp"


def test_a_sentence_within_a_sentence_is_told_too():
    failed = (
        "token by token differs from the parallel form in float64: first in layer 2, from position 65 of sequence 0 on "
    )
    failed += "(0.1 there, 3 of 9 rows; relative RMS 0.02, allowed is 1e-10)"
    assert SAY.recorded(failed) == (
        "1トークンずつがfloat64の並列形式と異なる：最初は層2、系列0の位置65以降（そこで0.1、9行中3行；相対RMS 0.02、許容値1e-10）"
    )
