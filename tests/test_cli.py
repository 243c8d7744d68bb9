"""The command line as a person uses it: in processes of its own, killed and stopped ones too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from termwise import cli
from termwise.results import RunFolder
from termwise.study.grid import RunConfig
from tests.study.micro_study import write_text

WAIT = 180


def start(*arguments: str, cwd: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "termwise", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def termwise(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    process = start(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=WAIT)
    return process.returncode, out, err


def inside(capsys, *arguments: str) -> tuple[int, str, str]:
    """The same without a process of its own."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def is_one_line(text: str) -> bool:
    """One line of complaint, after what was said of the data at most."""
    return text.splitlines()[-1].startswith("termwise: ") and text.count("termwise: ") == 1 and "Traceback" not in text


def test_help_and_version(tmp_path):
    code, out, _ = termwise("--help", cwd=tmp_path)
    assert code == 0
    assert [
        name
        for name in (
            "study",
            "inspect",
            "plan",
            "convert",
            "verify",
            "evaluate",
            "generate",
            "bench",
            "report",
            "variants",
        )
        if name not in out
    ] == []
    for target in ((), ("--max-loss", "0.1", "--max-state", "25%")):
        code, _, err = termwise("plan", "model", "--context", "4k", *target, cwd=tmp_path)
        assert (code, is_one_line(err), "give one of them" in err) == (2, True, True)
    code, out, _ = termwise("--version", cwd=tmp_path)
    assert (code, out.startswith("termwise 0.")) == (0, True)
    code, _, err = termwise("stdy", cwd=tmp_path)
    assert (code, is_one_line(err), "Did you mean 'study'" in err) == (2, True, True)


@pytest.mark.parametrize("command", ["study", "evaluate", "generate", "bench", "report", "variants", "verify"])
def test_every_command_says_what_it_does(capsys, command):
    code, out, _ = inside(capsys, command, "--help")
    assert code == 0
    assert out.startswith("Usage: termwise")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["study", "--stpes", "3"], "--steps"),
        (["study", "--steps", "x"], "--steps"),
        (["study", "nowhere.txt", "--steps", "3"], "no such file or folder 'nowhere.txt'"),
        (["study", "texts.txt", "--steps", "3"], "did you mean 'text.txt'"),
        (["study", "text.txt", "--variants", "sofmax"], "did you mean 'softmax'"),
        (["study", "text.txt", "--variants", "lader"], "did you mean 'ladder'"),
        (["study", "text.txt", "--preset", "tny"], "did you mean 'tiny'"),
        (["study", "text.txt", "--budget", "3x"], "90s, 10m, 1h30m"),
        (["study", "text.txt", "--steps", "3", "--budget", "3m"], "one of --steps and --budget"),
        (["study", "text.txt", "--steps", "3", "--device", "cpo"], "device"),
        (["study", "text.txt", "--steps", "3", "--tokens-per-step", "100"], "windows of 256"),
        (["study", "text.txt", "--steps", "3", "--errors", "loose"], "--errors='loose'"),
        (["study", "text.txt", "--seed", "-1"], "--seed=-1: allowed is greater than or equal to 0"),
        (["study", "text.txt", "--seed", "5000000000"], "allowed is 4294967295 at most"),
        (["study", "text.txt", "--variants", "paper.json"], "no such spec file: paper.json\n"),
        (["study", "text.txt", "--variants", ","], "--variants=(): allowed is 1 or more"),
        (["study", "text.txt", "--variants", "taylor:0..1"], "(in a short name: @mean for center='mean', ! for allow"),
        (["evaluate", "softmax", "--tasks", "perplexty"], "--tasks='perplexty'"),
        (["evaluate", "softmax", "--preset", "tinny", "--dry-run"], "allowed are tiny, small, paper"),
        (["generate", "rows.jsonl", "--prompt", "a"], "no model folder 'rows.jsonl'"),
        (["variants", "--plot", "--out", "."], "--out . is a folder; name the page to write, e.g. sentence.html"),
        (["study", "empty.txt", "--steps", "3"], "empty"),
        (["study", "short.txt", "--steps", "3"], "fewer than one window"),
        (["study", "rows.jsonl", "--column", "txet", "--steps", "3"], "did you mean 'text'"),
        (["evaluate", "sofmax"], "did you mean 'softmax'"),
        (["evaluate", "softmax", "--tasks", "recal"], "did you mean 'recall'"),
        (["generate", "softmax", "--prompt", "a"], "weights would be random"),
        (["bench"], "e.g. termwise bench taylor:0..2"),
        (["bench", "sofmax"], "did you mean 'softmax'"),
        (["bench", "taylor:0..2", "--lengths", "1x"], "'1x' is no length; allowed are like 512,1k,4k,64k"),
        (["bench", "taylor:0..2", "--heads", "3", "--kv-heads", "2"], "must divide the heads"),
        (["bench", "taylor:0..2", "--measures", "prefil"], "did you mean 'prefill'"),
        (["bench", "taylor:0..2", "--dtype", "float16"], "--dtype='float16'"),
        (["bench", "taylor:0..2", "--device", "cuda:7"], "cuda:7"),
        (["bench", "sdpa"], "is the baseline, which is measured anyway"),
        (["bench", "taylor:0..2", "--calibrate"], "run it alone"),
        (["report", "nowhere"], "run.json"),
        (["variants", "taylr:0..2"], "taylor"),
        (["variants", "--plot"], "termwise study --variants softmax"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path, num_words=2000)
    (tmp_path / "empty.txt").touch()
    write_text(tmp_path, name="short.txt", num_words=20)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "row {n}"}}\n' for n in range(40)))
    before = sorted(tmp_path.iterdir())
    code, _, err = inside(capsys, *arguments)
    assert code == 2
    assert is_one_line(err)
    assert said in err
    left = [path for path in sorted(tmp_path.iterdir()) if path not in before]
    assert [path for folder in left for path in folder.iterdir()] == []


def test_a_second_study_is_refused_within_a_second(tmp_path):
    from termwise.results import FolderLock

    write_text(tmp_path, num_words=2000)
    with FolderLock(tmp_path / "out"):
        started = time.monotonic()
        code, _, err = termwise("study", "text.txt", "--steps", "3", "--out", "out", cwd=tmp_path)
    assert (code, f"in use by process {os.getpid()}" in err) == (2, True)
    # A second for the lock, the rest for a busy machine to start Python; torch alone would take longer (see test_imports).
    assert time.monotonic() - started < 10


def micro(*more: str) -> list[str]:
    sizes = [
        "--context",
        "16",
        "--tokens-per-step",
        "32",
        "--evaluation-tokens",
        "1500",
        "--no-recall",
        "--workers",
        "2",
    ]
    return [
        "study",
        "text.txt",
        "--variants",
        "softmax,taylor:0..1@mean",
        "--steps",
        "100",
        "--out",
        "out",
        *sizes,
        *more,
    ]


def steps_logged(folder: Path) -> int:
    log = folder / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def wait_for(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_study_killed_stopped_taken_up_and_extended(tmp_path, monkeypatch):
    """kill -9 of a worker, Ctrl-C, the same command again, one more seed, another text: the whole life of a folder."""
    write_text(tmp_path, num_words=200_000)
    folders = [tmp_path / "out" / "runs" / name / "0" for name in ("softmax", "taylor%3A0..1@mean")]
    study = start(*micro("--seeds", "1"), cwd=tmp_path)
    # A checkpoint every 10 steps: past the first one, so that something is there to be taken up.
    wait_for(lambda: all(steps_logged(folder) > 12 for folder in folders), study)
    first = json.loads((folders[0] / "lock").read_text())["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(
        lambda: (folders[0] / "lock").exists() and json.loads((folders[0] / "lock").read_text())["pid"] != first, study
    )
    second = [json.loads((folder / "lock").read_text())["pid"] for folder in folders if (folder / "lock").exists()]
    study.send_signal(signal.SIGINT)
    _, err = study.communicate(timeout=WAIT)
    assert study.returncode == 130
    assert "the same command goes on" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in second if sys.platform == "linux")

    code, out, err = termwise(*micro("--seeds", "1"), cwd=tmp_path)
    assert code == 0, err
    assert "taken up where it stopped" in err
    assert "out/index.html" in out.replace("\n", "")
    assert (tmp_path / "out" / "index.html").stat().st_size > 10_000
    assert [steps_logged(folder) for folder in folders] == [100, 100]
    monkeypatch.chdir(tmp_path)
    assert_as_uninterrupted(folders[0], tmp_path / "alone")

    kept = {folder: (folder / "result.json").read_bytes() for folder in folders}
    code, out, err = termwise(*micro("--seeds", "2", "--json"), cwd=tmp_path)
    assert code == 0, err
    assert "extended by seeds 1" in err
    assert {folder: (folder / "result.json").read_bytes() for folder in folders} == kept
    found = json.loads(out)
    assert (found["folder"], found["failures"]) == ("out", {})
    verdicts = [record for record in found["records"] if record["metric"] == "verdict"]
    assert [
        (v["subject"]["variant"], v["n"], v["reason"] in ("lower", "higher", "no difference found")) for v in verdicts
    ] == [("taylor:0..1@mean", 2, True)]

    write_text(tmp_path, num_words=200_000, seed=1)
    code, _, err = termwise(*micro("--seeds", "2"), cwd=tmp_path)
    assert code == 2
    assert "made with other settings: data (was text.txt" in err
    assert len(RunFolder.open(tmp_path / "out").run["resolved"]["seeds"]) == 2


def assert_as_uninterrupted(folder: Path, alone: Path) -> None:
    """Killed, stopped and taken up twice, a run ends with the numbers of one that nobody touched."""
    from termwise.study.run import run_one

    alone.mkdir()
    again = run_one(alone, RunConfig.load(folder))
    known = json.loads((folder / "result.json").read_text())
    assert known["status"] == again["status"] == "ok"
    assert known["train_loss"] == again["train_loss"]
    assert known["held_out"]["nats"] == again["held_out"]["nats"]


def test_a_dry_run_says_what_it_costs_and_leaves_nothing(tmp_path):
    write_text(tmp_path)
    arguments = ["study", "text.txt", "--variants", "softmax", "--budget", "5m", "--seeds", "2", "--dry-run", "--json"]
    code, out, err = termwise(*arguments, "--context", "16", "--tokens-per-step", "32", cwd=tmp_path)
    assert code == 0, err
    told = json.loads(out)
    assert (told["runs"], told["seeds"], told["variants"]) == (2, [0, 1], ["softmax"])
    assert told["steps"] > 100
    assert told["seconds"] < 300
    assert told["tokens_per_run"] == 32 * told["steps"]
    assert told["parameters"]["softmax"] > 800_000
    assert told["state_bytes"]["softmax"] > 0
    assert told["disk_bytes"] > 10**6
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_reader_that_leaves_is_no_error(tmp_path):
    script = f"{sys.executable} -m termwise variants | head -n 1"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT)
    assert "Traceback" not in done.stderr
    assert done.stdout


def test_variants_as_json_holds_every_name(capsys):
    code, out, _ = inside(capsys, "variants", "--json")
    assert code == 0
    assert {one["name"] for one in json.loads(out)["variants"]} >= {"softmax", "linear_elu", "2mamba", "taylor:0..2"}
    code, out, _ = inside(capsys, "variants", "softmax_gate")
    assert (code, "exp_gate" in out) == (0, True)
