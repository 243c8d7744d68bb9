"""Evaluate, generate, list and draw: everything that is done with the models a study leaves behind."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import pytest
from rich.console import Console
from tests.study.micro_study import run, small, write_text

from termwise.analysis.sentence import look
from termwise.commands import folders
from termwise.models import load
from termwise.models.naming import find_model, last_model, plotted_model, trained_folder
from termwise.models.streaming import generate_text
from termwise.results import RunFolder
from termwise.study import listing, recall
from termwise.study.evaluate import EvaluateConfig, describe, evaluate_models


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text and termwise-runs/one, a study of softmax in it."""
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        run(
            patch,
            small(write_text(place), variants=("softmax",), evaluation_tokens=1500),
            place / "termwise-runs" / "one",
        )
    return place


@pytest.fixture
def model(place, monkeypatch):
    monkeypatch.chdir(place)
    return place / "termwise-runs" / "one" / "runs" / "softmax" / "0" / "model"


def evaluate(config, out):
    said = io.StringIO()
    with folders.reserved(out, "evaluate"):
        evaluate_models(config, out, arguments={}, console=Console(file=said, width=200))
    return {(r.subject["variant"], r.metric): r for r in RunFolder.open(out).records()}, said.getvalue()


def test_a_folder_scores_what_its_study_measured(model, tmp_path):
    name = str(model.parent)
    records, said = evaluate(EvaluateConfig(models=(name,), max_tokens=1500), tmp_path / "out")
    (measured,) = [r for r in RunFolder.open(model.parents[3]).records() if r.metric == "held_out_nats"]
    found = records[name, "held_out_nats"]
    assert (found.value, found.n) == (pytest.approx(measured.value, rel=1e-9), measured.n)
    assert "held out of the text of study-" in said
    assert records[name, "accuracy"].method == "in-context pairs of its own tokens, untrained"


def test_other_weights_of_a_name_are_not_scored_into_the_same_folder(model, tmp_path):
    copied = shutil.copytree(model, tmp_path / "model")
    asked = EvaluateConfig(models=(str(copied),), tasks=("recall",), max_tokens=1500)
    evaluate(asked, tmp_path / "out")
    before = (tmp_path / "out" / "records.jsonl").read_bytes()
    (copied / "generation_config.json").write_text("{}")
    with pytest.raises(ValueError, match="was made with other weights of"):
        evaluate(asked, tmp_path / "out")
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == before


def test_a_named_text_is_scored_whole(model, tmp_path):
    text = write_text(tmp_path, num_words=400, seed=3)
    records, _ = evaluate(
        EvaluateConfig(models=(str(model),), tasks=("perplexity",), text=(str(text),)), tmp_path / "out"
    )
    # Every byte but the first of each of the two parts has a predecessor; one of them also holds the end of the document.
    assert records[str(model), "held_out_nats"].n == pytest.approx(text.stat().st_size, abs=3)


def test_a_context_beyond_the_model_is_said(model, tmp_path):
    text = write_text(tmp_path, num_words=400, seed=3)
    own = load(model)[0].config.max_position_embeddings
    asked = {"models": (str(model),), "tasks": ("perplexity",), "text": (str(text),)}
    _, said = evaluate(EvaluateConfig(**asked, context=own), tmp_path / "out")
    assert "beyond the model's own" not in said
    _, said = evaluate(EvaluateConfig(**asked, context=2 * own), tmp_path / "longer")
    assert f"--context {2 * own:,} is beyond the model's own {own:,}" in said


def test_a_name_is_untrained_aloud_and_trained_for_recall(model, tmp_path, monkeypatch):
    monkeypatch.setattr(recall, "MAX_STEPS", 60)
    monkeypatch.setattr(recall, "TEST_BATCHES", 1)
    config = EvaluateConfig(models=(str(model), "taylor:0..2"), max_tokens=300)
    records, said = evaluate(config, tmp_path / "out")
    assert "its loss is that of untrained weights" in said
    assert "a loss on so few is not worth much" in said
    assert records["taylor:0..2", "held_out_nats"].value == pytest.approx(5.6, abs=0.2)
    assert records["taylor:0..2", "accuracy"].method == "trained on the recall task"
    assert "not reached within 60 steps" in records["taylor:0..2", "steps_to_recall"].reason
    before = (tmp_path / "out" / "records.jsonl").read_bytes()
    evaluate(config, tmp_path / "out")
    assert (tmp_path / "out" / "records.jsonl").read_bytes() == before


def test_a_folder_wins_over_a_name_aloud(model, tmp_path, monkeypatch):
    shutil.copytree(model, tmp_path / "softmax")
    monkeypatch.chdir(tmp_path)
    named = find_model("softmax")
    assert named.folder is not None
    assert "the folder is taken" in named.note
    assert find_model("linear_elu").folder is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sofmax", "did you mean 'softmax'"),
        ("termwise-runs/oen/runs", "no such folder"),
        ("termwise-runs/oen", "did you mean 'one'"),
        ("termwise-runs/one", "models in it: termwise-runs/one/runs/softmax/0/model"),
        ("hf:org/name", "download it first"),
    ],
)
def test_what_is_no_model_is_named(model, name, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        find_model(name)


def test_tasks_are_checked_before_any_work():
    with pytest.raises(ValueError, match="tasks") as error:
        EvaluateConfig(models=("softmax",), tasks=("recal",))
    assert "did you mean 'recall'" in str(error.value)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_wrong_text_is_told_before_torch_is_loaded(tmp_path, more):
    arguments = ["evaluate", "softmax", "--text", "nowhere.txt", *more]
    code = f"""if True:
        import sys
        from termwise import cli
        try:
            cli.main({arguments})
        except SystemExit as ended:
            print(ended.code, "torch" in sys.modules)
    """
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    assert child.stdout.split() == ["2", "False"]
    assert "no such file or folder 'nowhere.txt'" in child.stderr


def test_the_true_number_of_scored_tokens_is_said(model, tmp_path):
    config = EvaluateConfig(models=(str(model),), tasks=("perplexity",), max_tokens=100)
    records, said = evaluate(config, tmp_path / "out")
    scored = records[str(model), "held_out_nats"].n
    assert scored != 100
    assert f"on {scored:,} tokens" in said


def test_describe_costs_nothing(model, tmp_path):
    told = describe(EvaluateConfig(models=(str(model), "elu1")), tmp_path / "out")
    assert told["models"]["elu1"].startswith("built untrained")


def test_greedy_text_is_the_same_in_pieces_and_whole(model):
    pieces = []
    told = generate_text(model, "the quick", max_tokens=40, temperature=0, write=pieces.append)
    assert "".join(pieces) == told["text"]
    assert told["text"] == generate_text(model, "the quick", max_tokens=40, temperature=0, seed=5)["text"]
    assert told["tokens"] <= 40
    assert told["state_bytes"] > 0


def test_draws_depend_on_the_seed_alone(model):
    first, again, other = (
        generate_text(model, "the", max_tokens=30, temperature=1.0, seed=seed)["text"] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_characters_cut_between_tokens_are_shown_whole():
    from termwise.models.streaming import TextStream

    class Bytes:
        def decode(self, ids, **_):
            return bytes(ids).decode(errors="replace")

    import torch

    pieces = []
    stream = TextStream(Bytes(), pieces.append)
    stream.put(torch.tensor([[1, 2]]))
    for byte in "aé語b".encode():
        stream.put(torch.tensor([byte]))
    stream.end()
    assert pieces == ["a", "é", "語", "b"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"temperature": -1.0}, "temperature"), ({"top_p": 0.0}, "top_p"), ({"prompt": ""}, "prompt is empty")],
)
def test_draws_that_cannot_be(model, fields, said):
    with pytest.raises(ValueError, match=said):
        generate_text(model, **({"prompt": "a"} | fields))


def test_a_model_without_tokenizer_says_so(model, tmp_path):
    shutil.copytree(model, tmp_path / "bare")
    for path in (tmp_path / "bare").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="no tokenizer"):
        generate_text(tmp_path / "bare", "a")
    with pytest.raises(ValueError, match="no tokenizer"):
        look(tmp_path / "bare", "a b")


def test_a_name_has_nothing_to_generate_with(model):
    with pytest.raises(ValueError, match="weights would be random; give a model folder; the last study's is"):
        trained_folder("taylor:0..2")
    assert trained_folder(str(model.parent)) == model


def test_the_last_study_is_drawn(model, tmp_path, monkeypatch):
    assert plotted_model(None, None) == last_model() == model.relative_to(model.parents[5])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="termwise study --variants softmax"):
        plotted_model(None, None)
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        plotted_model(None, "sofmax")


def test_a_look_agrees_with_the_model(model):
    """Its softmax weights give the model's own attention output: checked through torch's softmax of q and k by hand."""
    import torch

    from termwise.analysis.sentence import last_scores
    from termwise.models.build import load

    loaded, tokenizer = load(model)
    ids = tokenizer("the quick brown fox", return_tensors="pt", add_special_tokens=False)["input_ids"]
    scores = last_scores(loaded, ids)
    seen = {}

    def keep(module, inputs, output):
        seen["hidden"], seen["layout"] = inputs[0], inputs[1]

    attention = loaded.model.layers[1].self_attn
    handle = attention.register_forward_hook(keep)
    collected = {}
    inner = attention.o_proj.register_forward_pre_hook(lambda module, inputs: collected.update(out=inputs[0]))
    with torch.no_grad():
        loaded.eval()(input_ids=ids, use_cache=False)
    handle.remove()
    inner.remove()
    value = attention.v_proj(seen["hidden"]).unflatten(-1, (-1, attention.head_dim))[0].double()
    expected = torch.einsum("hs,shd->hd", scores[1].softmax(-1), value).flatten()
    torch.testing.assert_close(collected["out"][0, -1].double(), expected, rtol=1e-4, atol=1e-6)


def test_truncations_come_nearer_with_every_even_order(model):
    seen = look(model, "the quick brown fox jumps")
    for center in ("zero", "mean"):
        distances = [seen.distances[center, tuple(range(top + 1))] for top in (0, 2, 4, 6, 8)]
        assert distances == sorted(distances, reverse=True)
        assert distances[-1] < 1e-6
    assert sum(sum(term) for term in seen.terms) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "said"), [({"layer": 9}, "layers 0 to 3"), ({"head": 4}, "heads 0 to 3"), ({"sentence": "a"}, "2 to 96")]
)
def test_a_look_that_cannot_be(model, fields, said):
    with pytest.raises(ValueError, match=said):
        look(model, **({"sentence": "ab cd"} | fields))


def test_the_drawing_is_one_file_without_scripts(model, tmp_path):
    from termwise.report.sentence import write

    page = write(look(model, "it's <b> \\ a"), tmp_path / "deep" / "sentence.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert "it&#x27;s &lt;b&gt;" in page
    assert "http" not in page


def test_every_name_is_listed_with_its_costs():
    from termwise.attention.catalogue import catalogue

    listed = listing.all_variants()
    assert {one["name"] for one in listed["variants"]} >= set(catalogue.names())
    json.dumps(listed, allow_nan=False)
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(listing.table(listed))
    shown = console.export_text()
    assert shown.count("gated_softmax_no_gate_no_norm") == 1  # among the names equal to softmax_divs
    assert "the output gate cancels in the norm" in shown
    console.print(listing.text(listing.one_variant("2mamba")))
    assert "convolution of 2" in console.export_text()
