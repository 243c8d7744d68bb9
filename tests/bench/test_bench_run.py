"""A whole benchmark: records, lines with llama-bench's names, taking up and extending, the page."""

from __future__ import annotations

import json
import re

import pytest
from small_bench import NAME, config, of, run
from tests.conversion.tiny_conversion import original

from termwise import cli
from termwise.attention.call import prepare
from termwise.attention.catalogue import catalogue
from termwise.bench import memory, prefill, training
from termwise.bench.config import BenchConfig, parse_lengths
from termwise.bench.inputs import Shape, tensors
from termwise.bench.run import describe
from termwise.bench.timing import Spread, interleaved
from termwise.models.naming import fingerprint
from termwise.results import RunFolder

OTHERS = (
    "scale", "key_mask", "input_gate", "output_gate", "log_decay", "parameters", "initial_state", "chunk_size",
    "row_counts", "query_mask",
)  # fmt: skip


def test_a_benchmark_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ["--heads", "2", "--key-width", "4", "--repeats", "2", "--lengths", "64,256", "--out", "out"]
    arguments = ["bench", NAME, "taylor:0..2@mean+w64s4", "--measures", "prefill,decode", *sizes]
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--json"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    lines = [json.loads(text) for text in said.out.splitlines()]
    assert len(lines) == 2 * 2 * 3
    names = {
        "n_prompt",
        "n_gen",
        "n_depth",
        "avg_ns",
        "stddev_ns",
        "avg_ts",
        "stddev_ts",
        "samples_ns",
        "samples_ts",
        "n_threads",
    }
    for line in lines:
        assert names <= line.keys()
        assert len(line["samples_ts"]) == 2
        is_decode = line["test"] == "decode"
        sizes = (line["n_prompt"], line["n_gen"], line["n_depth"])
        assert sizes in ([(0, 128, 64), (0, 128, 256)] if is_decode else [(64, 0, 0), (256, 0, 0)])
        tokens = 128 if is_decode else line["n_prompt"]
        assert line["samples_ts"] == pytest.approx([tokens / ns * 1e9 for ns in line["samples_ns"]])
    assert "[4/4] decode at 256" in said.err

    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=|url\((?!#)|@import|<script|https?://""", page)
    assert page.count("<svg") == 3
    assert "taylor:0..2@mean+w64s4" in page
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "out"])
    assert ended.value.code == 0
    assert "Cannot say yet" in capsys.readouterr().out

    folder = RunFolder.open(tmp_path / "out")
    for variant in (NAME, "taylor:0..2@mean+w64s4"):
        for measure in ("prefill", "decode"):
            for length in (64, 256):
                subject = {"variant": variant, "measure": measure, "length": length}
                (main,), (live,) = of(folder, measure, **subject), of(folder, "state", **subject)
                assert main.low <= main.value <= main.high
                assert main.form in ("parallel", "chunked", "recurrent")
                assert len(main.reason) > 20
                assert live.value == of(folder, "state_formula", **subject)[0].value
    for metric in ("copy_bandwidth", "read_bandwidth", "product_peak"):
        assert of(folder, metric)[0].value > 0


def test_the_form_that_is_recorded_is_the_one_that_runs(tmp_path):
    """choose_form is asked about the same call as attend asks it."""
    folder = run(tmp_path / "out")
    spec, shape = catalogue.variant(NAME).spec, Shape.of(config())
    for record in of(folder, "prefill", variant=NAME):
        call = prepare(
            **tensors(spec, shape, record.subject["length"]), spec=spec, causal=True, output_final_state=True, form="auto",
            **dict.fromkeys(OTHERS),
        )  # fmt: skip
        assert record.form == call.form


def test_the_same_command_measures_nothing_again(tmp_path, monkeypatch):
    run(tmp_path / "out")
    before = (tmp_path / "out" / "records.jsonl").read_bytes(), (tmp_path / "out" / "bench.jsonl").read_bytes()
    monkeypatch.setattr(prefill, "measure", lambda *arguments: pytest.fail("measured again"))
    run(tmp_path / "out")
    assert before == (
        (tmp_path / "out" / "records.jsonl").read_bytes(),
        (tmp_path / "out" / "bench.jsonl").read_bytes(),
    )


def test_a_stopped_benchmark_goes_on_and_a_wider_one_adds_to_it(tmp_path, monkeypatch):
    asked = []
    usual = prefill.measure

    def stopping(specs, shape, length, *more):
        asked.append((tuple(specs), length))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return usual(specs, shape, length, *more)

    monkeypatch.setattr(prefill, "measure", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out")
    run(tmp_path / "out")
    folder = run(tmp_path / "out", variants=(NAME, "elu1"), lengths=(130, 200, 260))
    assert asked == [
        ((NAME,), 130), ((NAME,), 260), ((NAME,), 260),
        (("elu1",), 130), ((NAME, "elu1"), 200), (("elu1",), 260),
    ]  # fmt: skip
    for name in ("sdpa", NAME, "elu1"):
        assert [len(of(folder, "prefill", variant=name, length=n)) for n in (130, 200, 260)] == [1, 1, 1]
    assert folder.run["resolved"]["variants"] == [NAME, "elu1"]
    with pytest.raises(ValueError, match="heads"):
        run(tmp_path / "out", heads=2)


def test_a_state_too_large_is_not_measured_and_the_others_are(tmp_path):
    folder = run(tmp_path / "out", variants=("taylor:0..8", NAME), key_width=64, lengths=(130,))
    (record,) = of(folder, "prefill", variant="taylor:0..8")
    assert (record.status, "features" in record.reason) == ("not_measured", True)
    assert of(folder, "prefill", variant=NAME)[0].status == "ok"


def test_memory_is_that_of_a_fresh_process():
    shape = config(heads=8, kv_heads=8, key_width=64, value_width=64)
    told = memory.in_child(NAME, "memory", shape, 1024, form="chunked")
    assert (0 < told["extra"] < 2**28, told["form"]) == (True, "chunked")


def test_models_step_and_generate(tmp_path):
    folder = run(tmp_path / "out", lengths=(64,), measures=("step", "generate"))
    for measure in ("step", "generate"):
        assert {r.subject["variant"]: r.status for r in of(folder, measure)} == {"sdpa": "ok", NAME: "ok"}
        assert of(folder, f"{measure}_ratio")[0].baseline.startswith("transformers' Llama")
    assert of(folder, "first_token", variant=NAME)[0].value > 0


def test_a_folder_is_measured_with_the_weights_that_it_had(tmp_path):
    model = tmp_path / "model"
    original(model)
    sizes = {"variants": (str(model),), "lengths": (16,), "measures": ("step",)}
    folder = run(tmp_path / "out", **sizes)
    (entry,) = (one for one in folder.run["variants"] if one["name"] == str(model))
    assert entry["weights"] == fingerprint(model)
    settings = model / "generation_config.json"
    settings.write_text(settings.read_text() + " ")
    with pytest.raises(ValueError, match="was made with other weights of"):
        run(tmp_path / "out", **sizes)
    with pytest.raises(ValueError, match="was made with other weights of"):
        describe(config(**sizes), tmp_path / "out")


def test_training_runs_both_forms(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "in_child", lambda *case: {"extra": 2**20, "method": "planted"})
    folder = run(tmp_path / "out", lengths=(130,), measures=("training",))
    assert [r.form for r in of(folder, "training")] == ["sdpa", "chunked", "parallel"]
    assert {r.form for r in of(folder, "training_memory") if r.status == "ok"} == {"sdpa", "chunked", "parallel"}


def test_what_a_benchmark_is_asked(tmp_path):
    assert parse_lengths("64k,512, 1K,512") == (512, 1024, 65536)
    told = describe(config(measures=()), tmp_path / "out")
    assert told["measures"] == ["prefill", "decode", "memory"]
    assert (told["rows"], told["seconds"] > 0) == (2 * 3 * 2, True)
    plain = BenchConfig(variants=(NAME, NAME), heads=6, key_width=32)
    assert (plain.kv_heads, plain.value_width, plain.variants) == (6, 32, (NAME,))


def test_repeats_are_interleaved():
    order: list[str] = []
    found = interleaved({name: lambda name=name: order.append(name) for name in "abc"}, 3)
    assert "".join(order) == "abcabcabc"
    assert [len(times) for times in found.values()] == [3, 3, 3]
    spread = Spread.of([float(n) for n in range(11)])
    assert (spread.low, spread.median, spread.high, spread.n) == (1.0, 5.0, 9.0, 11)


def test_states_read_from_a_copy(tmp_path):
    """Decode from bfloat16 copies beside a bfloat16 cache; against float32 it is refused, since it would be less exact."""
    folder = run(tmp_path / "out", measures=("decode",), lengths=(300,), dtype="bfloat16", half_state=True)
    plain = run(tmp_path / "plain", measures=("decode",), lengths=(300,), dtype="bfloat16")
    assert of(folder, "decode", variant=NAME)[0].status == "ok"
    # Two bytes more for each number of 2 x 15 x 3 moments.
    assert of(folder, "state")[0].value == of(plain, "state")[0].value + 2 * 2 * 15 * 3
    for made in (folder, plain):
        assert of(made, "state_formula")[0].value == of(made, "state")[0].value
    with pytest.raises(ValueError, match="add --dtype bfloat16"):
        config(half_state=True)
