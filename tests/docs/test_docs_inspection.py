"""The README's figures of a trained model are those of the record."""

from __future__ import annotations

from tests.docs.conftest import ROOT

import inspection


def test_the_ladder_in_the_readme_is_the_record():
    assert inspection.table(ROOT / "benchmarks" / "records" / "inspect_smollm2") in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


def test_the_record_shows_what_the_readme_says():
    view = inspection.inspect_view(inspection.read(ROOT / "benchmarks" / "records" / "inspect_smollm2"))
    told = inspection.inspect_page.summary(view, inspection.words("en"))
    assert told.headline == "Around the mean score every further even order lowers the loss; around zero it does not."
    beside = [view.rungs["zero", view.slots][order].value for order in (0, 2, 4, 6, 8)]
    assert beside == sorted(beside)
