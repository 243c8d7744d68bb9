"""A converted folder: the original's weights and tokenizer under the plan's specs; whole or not there."""

from __future__ import annotations

import dataclasses
import json
import shutil
from io import StringIO

import pytest
import torch
from rich.console import Console
from tests.conversion.tiny_conversion import MIXED, group, original, plan, run, tokens
from transformers import AutoModelForCausalLM, AutoTokenizer

from termwise.attention.kernels import Drop
from termwise.attention.spec import AttentionSpec
from termwise.conversion import writing
from termwise.conversion.assemble import converted, open_source
from termwise.conversion.plan import OF_OTHERS, Plan, read_plan
from termwise.conversion.sizes import sizes, slots_alone, window_of_equal_bytes
from termwise.models import TermwiseCache, TermwiseForCausalLM, load
from termwise.models.naming import fingerprint
from termwise.models.streaming import generate_text


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
@torch.no_grad()
def test_an_identity_plan_gives_the_logits_of_transformers(family, tmp_path):
    theirs = original(tmp_path / "original", family)
    folder = run(tmp_path / "out", model=str(tmp_path / "original"), plan="identity")
    ours = AutoModelForCausalLM.from_pretrained(folder.path / "model")
    assert isinstance(ours, TermwiseForCausalLM)
    ids = tokens(2, 40)
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=2e-5, rtol=1e-4)
    asked = dict(max_new_tokens=9, do_sample=False, eos_token_id=None)
    assert torch.equal(ours.generate(ids, **asked), theirs.generate(ids, **asked))
    said = [
        AutoTokenizer.from_pretrained(place)("né!")["input_ids"]
        for place in (tmp_path / "original", folder.path / "model")
    ]
    assert said[0] == said[1] == list("né!".encode())


@torch.no_grad()
def test_a_plan_gives_every_head_its_spec_and_the_way_back_the_original(tmp_path):
    theirs = original(tmp_path / "original")
    folder = run(tmp_path / "out", model=str(tmp_path / "original"), plan=str(plan(tmp_path / "plan")))
    model, _ = load(folder.path / "model")
    found = [[(list(g.kv_heads), g.spec.to_dict()) for g in layer] for layer in model.config.groups]
    wanted = [sorted(((g["kv_heads"], g["spec"]) for g in layer), key=lambda g: g[0]) for layer in MIXED]
    assert found == wanted
    for name, weight in theirs.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    ids = tokens(2, 40)
    assert float((model(ids).logits - theirs(ids).logits).abs().max()) > 1e-2
    back = TermwiseForCausalLM.from_pretrained(folder.path / "model", attention=AttentionSpec())
    torch.testing.assert_close(back(ids).logits, theirs(ids).logits, atol=2e-5, rtol=1e-4)
    told = generate_text(folder.path / "model", "abc", max_tokens=4, temperature=0)
    assert told["tokens"] > 0 and told["state_bytes"] > 0


def test_the_card_and_the_records_say_what_was_kept_cut_and_not_measured(tmp_path):
    original(tmp_path / "original")
    folder = run(tmp_path / "out", model=str(tmp_path / "original"), plan=str(plan(tmp_path / "plan")))
    card = (folder.path / "model" / "README.md").read_text()
    for said in (
        "Kept exact: 3 kv heads. Reduced: 3.", "| 2 | `taylor:0..2@mean+w8s2` | summed into a state", "| 1 | `drop+w8s2` | dropped",
        "measured no loss", "The plan, predicted: loss 0.02", "The plan, measured: loss 0.03", "attention=AttentionSpec()",
        "vLLM", f"`{tmp_path / 'original'}` (llama, float32)", "Downstream tasks",
    ):  # fmt: skip
        assert said in card, said
    by_metric = {record.metric: record.value for record in folder.records()}
    assert by_metric["cache"] == 3 * 2 * 64 * 2 * 6 * 4 == 2 * by_metric["cache_half"]
    assert f"{by_metric['state']:,.0f} B (kept in fp32)" in card


@pytest.mark.parametrize("is_of_others", [True, False])
def test_a_plan_of_other_weights_is_taken_and_its_losses_are_not(is_of_others, tmp_path):
    original(tmp_path / "original")
    path = plan(tmp_path / "plan")
    told = json.loads(path.read_text())
    told["model"]["weights"] = "0" * 16 if is_of_others else fingerprint(tmp_path / "original")
    path.write_text(json.dumps(told))
    console = Console(file=StringIO(), width=200)
    folder = run(tmp_path / "out", console, model=str(tmp_path / "original"), plan=str(path))
    card = (folder.path / "model" / "README.md").read_text()
    assert ("The plan, measured: loss 0.03" not in card) == is_of_others
    assert (OF_OTHERS in card) == is_of_others == (OF_OTHERS in console.file.getvalue())


def test_a_finished_model_that_was_changed_is_not_called_finished(tmp_path):
    original(tmp_path / "original")
    asked = {"model": str(tmp_path / "original"), "plan": "taylor:0..2@mean+w8s2"}
    folder = run(tmp_path / "out", **asked)
    place = folder.path / "model" / "model.safetensors"
    whole = place.read_bytes()
    place.write_bytes(whole[:100])
    with pytest.raises(ValueError, match="is not what this conversion wrote; delete it"):
        run(tmp_path / "out", **asked)
    shutil.rmtree(folder.path / "model")
    run(tmp_path / "out", **asked)
    assert place.read_bytes() == whole


def test_weights_stay_in_the_type_of_the_original_and_large_ones_in_shards(tmp_path, monkeypatch):
    original(tmp_path / "original", dtype=torch.float16)
    monkeypatch.setattr(writing, "SHARD", "20KB")
    folder = run(tmp_path / "out", model=str(tmp_path / "original"), plan="taylor:0..2@mean+w8s2")
    assert len(list((folder.path / "model").glob("*.safetensors"))) > 1
    model, _ = load(folder.path / "model")
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert {group.spec.short_name for layer in model.config.groups for group in layer} == {"taylor:0..2@mean+w8s2"}


def test_a_spec_file_and_a_plans_folder_work_as_well(tmp_path):
    original(tmp_path / "original")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(group([0], "drop+w8s2")["spec"]))
    plan(tmp_path / "plan")
    for given, names in ((spec, {"drop+w8s2"}), (tmp_path / "plan", {"exp", "taylor:0..2@mean+w8s2", "drop+w8s2"})):
        source = open_source(str(tmp_path / "original"))
        found = read_plan(str(given), source.model.config, source.family)
        assert {g.spec.short_name for layer in found.layers for g in layer} == names
        assert not found.is_identity


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    original(tmp_path / "original")
    asked = {"model": str(tmp_path / "original"), "plan": "drop+w8s2"}
    whole = writing.write_tokenizer

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(writing, "write_tokenizer", full)
    with pytest.raises(OSError, match="disk full"):
        run(tmp_path / "out", **asked)
    assert not (tmp_path / "out" / "model").exists()
    monkeypatch.setattr(writing, "write_tokenizer", whole)
    folder = run(tmp_path / "out", **asked)
    assert folder.run["finished"] and (folder.path / "model" / "README.md").is_file()
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []
    before = (folder.path / "model" / "model.safetensors").stat().st_mtime_ns
    run(tmp_path / "out", **asked)
    assert (folder.path / "model" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "name",
    [
        "drop+w8s4e64",
        "drop+w8s4h8e16",
        "drop+w20s2h12e100",
        "drop+w16s2",
        "taylor:0..1@mean+w8s2h4e16",
        "taylor:0..2@mean",
    ],
)
def test_a_window_of_equal_bytes_is_within_them_and_no_longer_one_is(name, tmp_path):
    original(tmp_path / "original")
    source = open_source(str(tmp_path / "original"))
    config = source.model.config
    layers = read_plan(name, config, source.family).layers
    allowed = sizes(config, layers, 700).state
    (spec,) = {g.spec for layer in window_of_equal_bytes(layers, 6, 700) for g in layer}
    own = layers[0][0].spec.local
    assert spec.local.sinks == (own.sinks if own else 0)
    assert spec.local.evict_every == (own.evict_every if own else None)
    longer = AttentionSpec(Drop(), local=dataclasses.replace(spec.local, window=spec.local.window + 1))
    of = [read_plan(one.short_name, config, source.family).layers for one in (spec, longer)]
    assert sizes(config, of[0], 700).state <= allowed < sizes(config, of[1], 700).state


@torch.no_grad()
def test_bytes_are_those_of_live_states_and_the_window_of_equal_bytes_is_the_longest(tmp_path):
    original(tmp_path / "original")
    source = open_source(str(tmp_path / "original"))
    layers = read_plan("taylor:0..2@mean+w8s2", source.model.config, source.family).layers
    model = converted(source.model, Plan("p", layers))
    found, seen, cache = sizes(source.model.config, layers, 300), [], TermwiseCache(3)
    model(tokens(1, 236), cache=cache)
    for step in range(64):
        model(tokens(1, 64)[:, step : step + 1], cache=cache)
        # room for keys to come is the store's, not the state's
        seen.append(sum(t.nbytes for layer in cache.layers for s in layer.states for t in s.tensors.values()))
    assert found.state == max(seen)
    window = window_of_equal_bytes(layers, 6, 300)
    assert found.state >= sizes(source.model.config, window, 300).state > found.state - 3 * 2 * (2 * 6 * 4 + 8)
    assert window_of_equal_bytes(layers, 6, 100) is None
    assert {g.spec.short_name for layer in slots_alone(layers) for g in layer} == {"drop+w8s2"}
    assert slots_alone(window) is None


def test_what_cannot_be_converted_is_refused_by_name(tmp_path):
    for family in ("gpt2", "bert"):
        original(tmp_path / family, family)
        with pytest.raises(ValueError, match=f"{family} can be inspected but not converted"):
            open_source(str(tmp_path / family))
    original(tmp_path / "llama")
    config = tmp_path / "llama" / "config.json"
    before = config.read_text()
    config.write_text(json.dumps(json.loads(before) | {"model_type": "mamba"}))
    with pytest.raises(ValueError, match=r"'mamba'.*supported are llama, mistral, qwen2, qwen3, smollm3"):
        open_source(str(tmp_path / "llama"))
    config.write_text(before)
    folder = run(tmp_path / "out", model=str(tmp_path / "llama"), plan="drop+w8s2")
    with pytest.raises(ValueError, match="its heads are not exact; give the original"):
        open_source(str(folder.path / "model"))
