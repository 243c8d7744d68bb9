"""Which files are read: folders, globs, links, and the messages for what is not there."""

from __future__ import annotations

import os

import pytest

from termwise.data.sources import Skipped, did_you_mean, find_roots, looks_binary


def names(paths, base):
    skipped = Skipped()
    found = [source for root in find_roots([str(path) for path in paths]) for source in root.sources(skipped)]
    return [os.path.relpath(source.path, base) for source in found], skipped


@pytest.fixture
def tree(tmp_path):
    for name in (
        "b.txt",
        "a.md",
        "sub/c.py",
        "sub/deep/d.rst",
        ".git/config.txt",
        ".hidden.txt",
        "picture.png",
        "sub/.x/y.txt",
    ):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    (tmp_path / "tree" / "noise.txt").write_bytes(b"\x89PNG\0\0\xff\xfe" * 100)
    (tmp_path / "tree" / "nul.txt").write_bytes("a NUL \0 in a text, 日本語".encode())
    return tmp_path / "tree"


def test_a_folder_is_walked_in_order_and_counts_what_it_skips(tree):
    found, skipped = names([tree], tree)
    assert found == ["a.md", "b.txt", "nul.txt", "sub/c.py", "sub/deep/d.rst"]
    assert (skipped.hidden, skipped.binary, skipped.other) == (3, 1, 1)
    assert "3 hidden" in skipped.note()
    assert "1 binary" in skipped.note()
    assert "picture.png" in skipped.note()


def test_loops_of_links_end_and_nothing_is_read_twice(tree):
    (tree / "sub" / "loop").symlink_to(tree)
    (tree / "loop2").symlink_to(tree / "sub")
    (tree / "self").symlink_to("self")
    (tree / "gone.txt").symlink_to(tree / "nowhere")
    found, _ = names([tree], tree)
    assert sorted(os.path.basename(path) for path in found) == ["a.md", "b.txt", "c.py", "d.rst", "nul.txt"]
    found, _ = names([tree / "**" / "*.py"], tree)
    assert found == ["sub/c.py"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["b.txt", "nul.txt"]),
        ("*.md", ["a.md"]),
        ("**/*.rst", ["sub/deep/d.rst"]),
        ("**", ["a.md", "b.txt", "nul.txt", "picture.png", "sub/c.py", "sub/deep/d.rst"]),
        ("s*", ["sub/c.py", "sub/deep/d.rst"]),
        (".git/*", [".git/config.txt"]),
        ("[ab].*", ["a.md", "b.txt"]),
    ],
)
def test_globs(tree, pattern, expected):
    assert names([tree / pattern], tree)[0] == expected


def test_files_named_twice_are_one(tree, monkeypatch):
    assert names([tree / "b.txt", tree / "a.md", tree / "*.md", tree / "b.txt"], tree)[0] == ["b.txt", "a.md"]
    everything = names([tree], tree)[0]
    assert names([tree / "sub", tree, tree / "b.txt"], tree)[0] == everything
    monkeypatch.chdir(tree)
    assert names(["b.txt", tree / "b.txt"], tree)[0] == ["b.txt"]
    # A file the walk would leave out is read when it is named.
    assert names([tree, tree / ".hidden.txt", tree / "picture.png"], tree)[0] == [
        *everything,
        ".hidden.txt",
        "picture.png",
    ]


def test_wrong_paths_name_the_nearest(tree):
    with pytest.raises(ValueError, match=r"no such file or folder '.*/b.tx'; did you mean '.*tree/b.txt'\?"):
        find_roots([str(tree / "b.tx")])
    with pytest.raises(ValueError, match=r"did you mean '.*tree/sub/deep/d.rst'\?"):
        find_roots([str(tree / "sbu" / "deep" / "d.rst")])
    with pytest.raises(ValueError, match=r"holds nothing of a similar name"):
        find_roots([str(tree / "zzzzzz")])
    with pytest.raises(ValueError, match=r"'.*b.txt' is a file"):
        find_roots([str(tree / "b.txt" / "c")])
    with pytest.raises(ValueError, match="no file matches"):
        find_roots([str(tree / "*.jsonl")])
    with pytest.raises(ValueError, match="no data given"):
        find_roots([])
    with pytest.raises(ValueError, match="form is hf:org/name"):
        find_roots(["hf:name"])


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        find_roots([str(tmp_path / "pipe")])


def test_a_character_cut_at_the_sniffed_end_is_not_binary(tmp_path):
    path = tmp_path / "a.txt"
    for pad in range(4):
        path.write_bytes(b"\0" + b"x" * pad + "語".encode() * 5000)
        assert not looks_binary(str(path))
    path.write_bytes(b"\0" + "語".encode()[:2])
    assert looks_binary(str(path))


def test_the_standard_library_is_the_default():
    skipped = Skipped()
    found = [source for root in find_roots(None) for source in root.sources(skipped)]
    assert 400 < len(found) < 800
    assert 8e6 < sum(source.size for source in found) < 16e6
    assert not any(f"{os.sep}test{os.sep}" in source.path or "site-packages" in source.path for source in found)


def test_did_you_mean():
    assert did_you_mean("colum", ["column", "row"]) == "; did you mean 'column'?"
    assert did_you_mean("zzz", ["column"]) == ""


def test_folders_of_earlier_runs_are_no_data(tree):
    for name in (
        "termwise-runs/study-1/index.html",
        "mine/run.json",
        "mine/records.jsonl",
        "mine/runs/softmax/0/log.jsonl",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text('{"run_id": "a-1", "command": "study", "resolved": {}}')
    found, skipped = names([tree], tree)
    assert found == ["a.md", "b.txt", "nul.txt", "sub/c.py", "sub/deep/d.rst"]
    assert skipped.runs == 2
    # One that is named itself is read.
    assert names([tree / "mine"], tree)[0] == ["mine/records.jsonl", "mine/runs/softmax/0/log.jsonl"]


def test_names_that_are_no_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.txt")
    (tmp_path / name).write_text("text")
    (tmp_path / (name + ".bin")).write_text("text")
    found, skipped = names([tmp_path], tmp_path)
    assert found == [name]
    assert skipped.note().encode()
