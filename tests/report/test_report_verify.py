"""The page of a verification from planted records: what holds, what failed and where, what was left out, what was made again."""

from __future__ import annotations

import pytest

from termwise.report import page, terminal
from termwise.report.read import read
from termwise.report.verify_view import verify_view
from termwise.results import Record, RunFolder

REASON = "token by token differs from the parallel form in float64: first in layer 2, from position 65 of sequence 0 on"


def plant(folder, check, stage, value, *, started="2026-01-02", **more):
    subject = {"check": check, "stage": stage, "tolerance": more.pop("tolerance", 1e-10), **more.pop("where", {})}
    given = {"metric": "relative_rms", "unit": "1", **more}
    folder.append(Record(run_id="verify-1", kind="check", subject=subject, value=value, started=started, **given))


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(tmp_path / "run", "verify", {"model": "some/model"}, {"model": "some/model", "soak": 8192})
    subject = {
        "model": "some/model",
        "specs": ["exp"],
        "layers": 3,
        "soak": 8192,
        "parameters": 1234,
        "lengths": [333, 9],
        "text": "a text",
    }
    made.update(begun="2026-01-01", finished="2026-01-03", subject=subject, checks=["parallel", "token_by_token"])
    plant(
        made,
        "token_by_token",
        "float64",
        None,
        started="2025-01-01",
        status="failed",
        reason="of an earlier verification",
    )
    plant(made, "token_by_token", "float64", 3.25e-15)
    plant(made, "parallel", "float32", 1.5e-6, tolerance=1e-5)
    plant(made, "chunked", "float64", None, status="excluded", reason="no layer runs in chunks", tolerance=None)
    plant(made, "memory", "float32", 4096, unit="B", metric="live_bytes", method="as the formula says")
    return made


def said_by(folder) -> str:
    from rich.console import Console

    with open("/dev/null", "w") as nowhere:
        console = Console(width=160, record=True, file=nowhere)
        console.print(terminal.summary(folder.path))
    return console.export_text()


def test_a_sound_model_gets_one_sentence(folder):
    text = page.write(folder.path).read_text(encoding="utf-8")
    assert "All forms agree: 3 of 4 checks hold, none failed." in text
    assert "of an earlier verification" not in text
    assert "3.2e-15" in text and "of 1.0e-10" in text and "4,096\N{NO-BREAK SPACE}B" in text
    assert "no layer runs in chunks" in text and "1 check was left out" in text and "8,192 tokens streamed" in text
    said = said_by(folder)
    assert "All forms agree" in said and "no layer runs in chunks" in said and "index.html" in said


def test_a_failure_stands_first_with_its_place(folder):
    where = {"layer": 2, "position": 65, "measured": 0.25}
    plant(folder, "token_by_token", "bfloat16", None, status="failed", reason=REASON, where=where)
    text = page.write(folder.path).read_text(encoding="utf-8")
    assert "1 of 5 checks failed." in text
    assert text.index("What failed, and where") < text.index("Every check")
    assert REASON in text and "2.5e-01" in text
    assert "1 of 5 checks failed." in said_by(folder)


def test_an_unfinished_verification_says_so(folder):
    folder.update(finished=None)
    text = page.write(folder.path).read_text(encoding="utf-8")
    assert "has not finished" in text and "None failed so far" in text


def test_checks_stand_in_the_order_of_the_run(folder):
    assert [name for name in verify_view(read(folder.path)).records if name in ("parallel", "token_by_token")] == [
        "parallel",
        "token_by_token",
    ]


def test_nothing_checked_yet_has_a_page(tmp_path):
    made = RunFolder.create(tmp_path / "run", "verify", {}, {})
    assert "Nothing has been checked yet." in page.write(made.path).read_text(encoding="utf-8")
