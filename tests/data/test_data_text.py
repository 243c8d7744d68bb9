"""open_text as a user meets it: odd input, one message a fault, notes, and a cache that is reused only while it is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from text_files import JAPANESE, ODD, open_documents, strings, write_documents

from termwise.data import Batch, Text, open_text


def prose(count=30):
    return [f"{number}: {ODD if number % 3 else JAPANESE}" for number in range(count)]


def test_odd_text_survives_into_tokens(tmp_path):
    text = open_documents(tmp_path, prose())
    assert sorted(strings(text.train) + strings(text.held_out)) == sorted(prose())
    assert (text.vocab_size, text.end_of_document) == (257, 256)
    ids = text.train.document(0)
    assert text.tokenizer.decode(ids, skip_special_tokens=True) == strings(text.train)[0]
    assert isinstance(text.train.batch(0, 0, 2, 64), Batch)


def test_one_document_a_line(tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"line {number}\n" for number in range(100)) + "\n")
    text = open_text([str(tmp_path / "lines.txt")], cache=tmp_path / "cache", document="line")
    assert sorted(strings(text.train) + strings(text.held_out)) == sorted(f"line {number}" for number in range(100))
    assert text.held_out.num_documents == 5
    assert "left out 2 empty documents" in text.notes


def test_several_kinds_of_source_together(tmp_path):
    write_documents(tmp_path / "texts", [f"file {number}" for number in range(10)])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": f"row {number}"}) + "\n" for number in range(10)))
    (tmp_path / "more.csv").write_text("".join(["body,n\n", *(f"field {number},{number}\n" for number in range(10))]))
    paths = [str(tmp_path / name) for name in ("texts/*.txt", "rows.jsonl", "more.csv")]
    text = open_text(paths, cache=tmp_path / "cache", column="body")
    expected = [f"{kind} {number}" for kind in ("file", "row", "field") for number in range(10)]
    assert sorted(strings(text.train) + strings(text.held_out)) == sorted(expected)


def test_bpe_of_the_training_part(tmp_path):
    documents = [f"{number} the quick brown fox jumps over the lazy dog; {JAPANESE}" for number in range(100)]
    text = open_documents(tmp_path, documents, tokenizer="bpe:600")
    parts = (text.train, text.held_out)
    found = [text.tokenizer.decode(part.document(i)[:-1]) for part in parts for i in range(part.num_documents)]
    assert sorted(found) == sorted(documents)
    lengths = text.train.token_bytes()
    for part in parts:
        assert sum(int(lengths[part.document(i)].sum()) for i in range(part.num_documents)) == part.num_bytes
    assert any("pairs for" in note for note in text.notes) == (text.vocab_size < 600)
    assert text.train.num_tokens < text.train.num_bytes / 3


def test_bpe_never_sees_the_held_out_part(tmp_path):
    documents = [f"{number} common words" for number in range(40)]
    plain = open_documents(tmp_path / "plain", documents, tokenizer="bpe:300")
    held = [plain.tokenizer.decode(plain.held_out.document(i)[:-1]) for i in range(plain.held_out.num_documents)]
    changed = [document + " zqzqzqzq" * 50 if document in held else document for document in documents]
    other = open_documents(tmp_path / "other", changed, tokenizer="bpe:300")
    assert other.tokenizer.get_vocab() == plain.tokenizer.get_vocab()


def test_bpe_trains_on_a_sample_of_a_large_text(tmp_path, monkeypatch):
    monkeypatch.setattr("termwise.data.text.TRAINING_BYTES", 2_000)
    text = open_documents(tmp_path, [f"{number} many words" * 20 for number in range(100)], tokenizer="bpe:280")
    assert any("trained on a sample of about 0.0" in note for note in text.notes)


def test_the_default_corpus_is_said_aloud(tmp_path):
    text = open_text(None, cache=tmp_path / "cache")
    assert "standard library" in text.notes[0]
    assert text.train.num_bytes + text.held_out.num_bytes > 8e6
    assert text.held_out.num_documents > 10


def test_bad_bytes_stop_or_are_replaced_and_counted(tmp_path):
    folder = write_documents(tmp_path / "text", prose())
    (folder / "bad.txt").write_bytes(b"abc\xff\xfe\xe3\x81")
    with pytest.raises(ValueError, match=r"bad UTF-8 in '.*bad.txt' at byte offset 3 \(0xFF\)"):
        open_text([str(folder)], cache=tmp_path / "cache")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache.lock", "text"]
    text = open_text([str(folder)], cache=tmp_path / "cache", errors="replace")
    assert "replaced 3 pieces of bad UTF-8 by U+FFFD" in text.notes
    assert "abc\ufffd\ufffd\ufffd" in strings(text.train) + strings(text.held_out)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": ""}, "no text: '.*a.txt' is empty"),
        ({"a.txt": "", "b.txt": ""}, "every document is empty"),
        ({"a.png": "x", ".b.txt": "x"}, r"no text files in '.*' \(skipped in folders: 1 hidden .*, 1 of other types"),
        ({"a.jsonl": '{"text": ""}\n'}, "every document is empty"),
        ({}, "no text files in"),
    ],
)
def test_nothing_to_read(tmp_path, files, message):
    folder = tmp_path / "text"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    path = folder / "a.txt" if list(files) == ["a.txt"] else folder
    with pytest.raises(ValueError, match=message):
        open_text([str(path)], cache=tmp_path / "cache")


def test_fewer_tokens_than_a_window(tmp_path):
    text = open_documents(tmp_path, ["a short text of few words"])
    with pytest.raises(ValueError, match="fewer than one window of 256"):
        text.train.batch(0, 0, 1, 256)


def test_settings_that_cannot_be_are_refused_before_any_work(tmp_path):
    folder = write_documents(tmp_path / "text", ["x"])
    cases = [
        ({"held_out": 0.0}, "held_out=0.0; it is a share"),
        ({"held_out": 1.0}, "held_out=1.0"),
        ({"seed": -1}, "seed=-1"),
        ({"tokenizer": "byts"}, "no tokenizer 'byts'; did you mean 'bytes'"),
        ({"errors": "ignore"}, "errors='ignore'"),
        ({"document": "page"}, "document='page'"),
        ({"column": "body"}, "column 'body' was given, but no source is a table"),
        ({"document": "row"}, "is text and has no rows"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            open_text([str(folder)], cache=tmp_path / "cache", **options)
    assert not (tmp_path / "cache").exists()


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.bin")}


def test_the_cache_is_reused_until_something_changes(tmp_path):
    first = open_documents(tmp_path, prose())
    cache, sources = tmp_path / "cache", [str(tmp_path / "text")]
    built = times(cache)
    again = open_text(sources, cache=cache)
    assert times(cache) == built
    assert (again.fingerprint, again.notes) == (first.fingerprint, first.notes)
    for options in (
        {"seed": 1},
        {"held_out": 0.2},
        {"document": "line"},
        {"errors": "replace"},
        {"tokenizer": "bpe:300"},
    ):
        other = open_text(sources, cache=cache, **options)
        assert times(cache) != built, options
        assert other.fingerprint != first.fingerprint
        built = times(cache)
    open_text(sources, cache=cache)
    built = times(cache)
    # The same text under another time is rebuilt but has the same name; another text has another.
    os.utime(tmp_path / "text" / "00003.txt", ns=(1, 1))
    assert open_text(sources, cache=cache).fingerprint == first.fingerprint
    assert times(cache) != built
    (tmp_path / "text" / "00003.txt").write_text("changed")
    assert open_text(sources, cache=cache).fingerprint != first.fingerprint
    # Tokens that were opened before stay readable.
    assert sorted(strings(first.train) + strings(first.held_out)) == sorted(prose())


def test_the_fingerprint_names_content_and_not_places(tmp_path):
    one, two = (open_documents(tmp_path / name, prose()) for name in ("one", "two"))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != open_documents(tmp_path / "three", prose()[::-1]).fingerprint


def test_a_damaged_cache_is_rebuilt(tmp_path):
    first = open_documents(tmp_path, prose())
    ids = tmp_path / "cache" / "train.ids.bin"
    whole = ids.read_bytes()
    ids.write_bytes(whole[:-1])
    assert open_text([str(tmp_path / "text")], cache=tmp_path / "cache").fingerprint == first.fingerprint
    assert ids.read_bytes() == whole


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and no text cache of termwise"):
        open_documents(tmp_path, prose())
    assert (tmp_path / "cache" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "cache" / "thesis.tex").unlink()
    assert open_documents(tmp_path, prose()).train.num_documents == 28


def test_what_a_killed_build_left_is_cleared(tmp_path):
    left = tmp_path / ".cache.building-99999"
    left.mkdir()
    (left / "train.ids.bin").write_bytes(b"half")
    open_documents(tmp_path, prose())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache.lock", "cache", "text"]
    assert not (tmp_path / "cache" / "hashes").exists()


def test_a_full_disk_is_refused_before_writing(tmp_path, monkeypatch):
    monkeypatch.setattr("termwise.data.writer.shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(OSError, match=r"the tokens need .* GB are free"):
        open_documents(tmp_path, prose())
    assert not (tmp_path / "cache").exists()


def test_two_processes_build_one_cache(tmp_path):
    folder = write_documents(tmp_path / "text", prose())
    program = (
        "import sys, pathlib; from termwise.data import open_text;"
        "print(open_text([sys.argv[1]], cache=pathlib.Path(sys.argv[2])).fingerprint)"
    )
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(said) == 1
    assert len(said.pop()) == 16


def test_importing_data_is_light():
    program = (
        "import sys, termwise.data;"
        "print([name for name in ('torch', 'transformers', 'tokenizers', 'pyarrow', 'datasets') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_nothing_is_written_beside_the_sources(tmp_path):
    folder = write_documents(tmp_path / "text", prose())
    before = sorted(folder.iterdir())
    text = open_text([str(folder)], cache=tmp_path / "deep" / "er" / "cache")
    assert sorted(folder.iterdir()) == before
    assert isinstance(text, Text)
    assert np.isfinite(text.train.num_bytes)
