"""A whole plan: every figure a record, the files that conversion reads, resumed, refused."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file
from tests.planning.tiny_plan import CONTEXT, config, planned, tiny_folder, write_text

from termwise.analysis.options import EXACT, kind_of, options, served_bytes
from termwise.analysis.pretrained import open_pretrained
from termwise.analysis.replanned import scored, under_plan
from termwise.attention.cost import cost
from termwise.attention.names import parse
from termwise.attention.spec import AttentionSpec
from termwise.conversion.assemble import open_source
from termwise.conversion.plan import read_plan
from termwise.models import naming
from termwise.models.naming import model_hash
from termwise.planning.config import PlanConfig, parse_context, parse_share, parse_shares
from termwise.planning.opening import check_disjoint, opened
from termwise.planning.plan_file import Plan, write_plan
from termwise.planning.run import describe
from termwise.report import page, plan_figures, terminal
from termwise.report.words import words
from termwise.results import Record, RunFolder

LAYERS, HEADS = 3, 2


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    top = tmp_path_factory.mktemp("plan")
    return tiny_folder(top / "model"), write_text(top / "text")


@pytest.fixture(scope="module")
def finished(places, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, planned(config(*places), out)


def of(folder, metric, **subject):
    found = [r for r in RunFolder.open(folder).records() if r.metric == metric]
    return [r for r in found if subject.items() <= r.subject.items()]


def plan_of(folder):
    told = json.loads((folder / "plan.json").read_text())
    layers = []
    for groups in told["layers"]:
        specs = {head: AttentionSpec.from_dict(group["spec"]) for group in groups for head in group["kv_heads"]}
        layers.append([specs[head] for head in range(HEADS)])
    return told, layers


def test_the_plan_file_is_what_was_evaluated(places, finished):
    out, _ = finished
    told, layers = plan_of(out)
    assert set(told) == {"schema", "model", "context", "target", "cache_dtype", "layers", "predicted", "measured"}
    assert (told["schema"], told["context"], told["target"]) == (1, CONTEXT, {"max_state": 0.5})
    sizes = {"num_layers": LAYERS, "num_heads": 4, "num_kv_heads": HEADS, "head_dim": 6}
    assert sizes.items() <= told["model"].items() and told["model"]["family"] == "llama"
    assert len(told["layers"]) == LAYERS
    tensors = load_file(out / "plan.safetensors") if (out / "plan.safetensors").exists() else {}
    several = {
        (layer, head): spec.kernel.centers for layer, specs in enumerate(layers) for head, spec in enumerate(specs)
    }
    wanted = {f"layers.{layer}.centers.{head}": m for (layer, head), m in several.items() if m > 1}
    assert {name: tensor.shape for name, tensor in tensors.items()} == {name: (m, 6) for name, m in wanted.items()}
    centers = {
        (layer, head, m): tensors[f"layers.{layer}.centers.{head}"] for (layer, head), m in several.items() if m > 1
    }
    found = opened(config(*places))
    text = found.reporting[0]
    loss = float(scored(found.pretrained, found.ids(text), under_plan(layers, centers)).double().mean())
    exact = float(scored(found.pretrained, found.ids(text)).double().mean())
    records = of(out, "held_out_nats", text=text, method="termwise", share=0.5)
    assert records[0].value == pytest.approx(loss, abs=1e-5)
    assert of(out, "held_out_nats", text=text, method="exact")[0].value == pytest.approx(exact, abs=1e-5)


def test_conversion_reads_the_plan_of_this_model_alone(places, finished):
    out, _ = finished
    _, layers = plan_of(out)
    source = open_source(str(places[0]))
    found = read_plan(str(out), source.model.config, source.family, model_hash(source.place))
    for specs, groups in zip(layers, found.layers, strict=True):
        assert [spec for head in range(HEADS) for g in groups if head in g.kv_heads for spec in [g.spec]] == specs
    several = {
        (layer, head) for layer, specs in enumerate(layers) for head, s in enumerate(specs) if s.kernel.centers > 1
    }
    assert set(found.centers) == several
    with pytest.raises(ValueError, match="another one of the same sizes"):
        read_plan(str(out), source.model.config, source.family, "0" * 16)


def test_centers_travel_with_the_plan(places, tmp_path):
    source = open_source(str(places[0]))
    grouped = parse("taylor:0@mean3+w8s4h4")
    layers = ((EXACT, grouped), (grouped, grouped), (parse("drop+w8s4e64"), EXACT))
    centers = {place: torch.randn(3, 6) for place in ((0, 1), (1, 0), (1, 1))}
    sizes = {"num_layers": LAYERS, "num_heads": 4, "num_kv_heads": HEADS, "head_dim": 6}
    model = {"folder": "m", "family": "llama", "config_hash": "abc"} | sizes
    write_plan(Plan(model, CONTEXT, {"max_state": 0.5}, "bfloat16", layers, centers, {}, {}), tmp_path)
    found = read_plan(str(tmp_path), source.model.config, source.family, "abc")
    assert [[(g.kv_heads, g.spec) for g in groups] for groups in found.layers] == [
        [((0,), EXACT), ((1,), grouped)], [((0, 1), grouped)], [((0,), layers[2][0]), ((1,), EXACT)],
    ]  # fmt: skip
    assert set(found.centers) == set(centers)
    assert all(torch.equal(found.centers[place], centers[place]) for place in centers)


def test_the_budget_holds_and_bytes_are_those_of_the_options(finished):
    out, _ = finished
    told, layers = plan_of(out)
    for dtype in ("bfloat16", "float32"):
        kept = sum(served_bytes(spec, CONTEXT, 6, 6, dtype) for specs in layers for spec in specs)
        whole = LAYERS * HEADS * served_bytes(EXACT, CONTEXT, 6, 6, dtype)
        assert told["measured"][f"share_{dtype}"] == pytest.approx(kept / whole)
        (record,) = of(out, "chosen_share", cache_dtype=dtype)
        assert record.value == pytest.approx(kept / whole)
    assert told["measured"]["share_bfloat16"] <= 0.5
    states = [
        max(cost(spec, 6, 6, n).state_bytes for n in (CONTEXT - 1, CONTEXT)) for specs in layers for spec in specs
    ]
    assert of(out, "live_bytes")[0].value == told["measured"]["state_bytes"] <= sum(states)
    kept_records = of(out, "kept_bytes")
    assert len(kept_records) == LAYERS * HEADS
    assert sum(r.value for r in kept_records) / sum(r.subject["whole"] for r in kept_records) == pytest.approx(
        told["measured"]["share_bfloat16"]
    )


def test_every_share_has_the_plan_and_both_baselines_with_paired_intervals(finished):
    out, _ = finished
    for share in (0.4, 0.5):
        by_text = {}
        for method in ("exact", "termwise", "slots", "uniform"):
            (rise,) = of(out, "loss_rise", method=method, share=share) or [None]
            if method == "exact":
                continue
            assert rise.n == 3 and rise.low <= rise.value <= rise.high and rise.method == "t over texts"
            by_text[method] = rise.value
        for baseline in ("slots", "uniform"):
            (gain,) = [r for r in of(out, "gain", share=share) if r.baseline == baseline]
            assert gain.value == pytest.approx(by_text["termwise"] - by_text[baseline], abs=1e-9)
        (planned_rise,) = of(out, "planning_rise", method="termwise", share=share)
        assert planned_rise.n == 1


def test_planning_texts_do_not_report(finished):
    out, _ = finished
    roles = {}
    for record in of(out, "held_out_nats"):
        roles.setdefault(record.subject["text"], set()).add(record.subject["role"])
    assert all(len(role) == 1 for role in roles.values())
    assert sum(role == {"reporting"} for role in roles.values()) == 3


def test_anchors_say_how_far_proxies_can_be_trusted(finished):
    out, said = finished
    assert len(of(out, "anchor_rise")) == 3
    assert {r.metric for r in RunFolder.open(out).records()} >= {"rank_of_proxy", "rank_of_change", "longer_rise"}
    assert "forward passes of" in said and "the budget is" in said


def test_the_same_command_measures_nothing_twice(places, finished):
    out, _ = finished
    before, plan = len(RunFolder.open(out).records()), (out / "plan.json").read_text()
    said = planned(config(*places), out)
    assert len(RunFolder.open(out).records()) == before
    assert "nats (" not in said and "nats exact" not in said
    assert len(of(out, "longer_rise")) == 1
    assert (out / "plan.json").read_text() == plan


def test_a_run_says_which_weights_it_is_of_and_refuses_others(places, finished, monkeypatch):
    out, _ = finished
    assert RunFolder.open(out).run["resolved"]["weights"] == naming.fingerprint(places[0])
    monkeypatch.setattr(naming, "fingerprint", lambda place: "others")
    with pytest.raises(ValueError, match="other settings: weights"):
        planned(config(*places), out)
    with pytest.raises(ValueError, match="other settings: weights"):
        describe(config(*places), out)


def test_every_share_of_the_front_has_its_tick():
    """Rounded ones can lie outside a narrow frame, which leaves an axis without numbers."""
    rows = [
        {"line": name, "color": "#000", "x": x, "y": 0.0, "low": 0.0, "high": 0.0}
        for name, x in (("termwise", 0.8958), ("uniform", 0.8984))
    ]
    text = json.dumps(plan_figures._front(rows, words("en")))
    low, high = json.loads(re.search(r'"scale": \{"domain": (\[0\.8[^\]]*\])', text).group(1))
    ticks = json.loads(re.search(r'"values": (\[[^\]]*\])', text).group(1))
    assert ticks == [0.8958, 0.8984] and low < ticks[0] < ticks[1] < high


def test_page_and_terminal_show_the_front(finished):
    out, _ = finished
    text = page.write(out).read_text()
    for part in (
        "of a float32 cache",
        "figure-plan-front",
        "figure-plan-heads",
        "the best plan of exact slots alone",
        "uniform window",
    ):
        assert part in text
    assert "not_measured" not in text
    from rich.console import Console

    console = Console(width=160, record=True)
    console.print(terminal.summary(out))
    assert "exact slots only" in console.export_text()


def test_a_target_of_loss_is_met_on_the_planning_texts_or_said_not_to_hold(places, tmp_path):
    asked = config(*places, max_state=None, max_loss=0.5, anchors=0, longer=None, shares=(0.1,))
    said = planned(asked, tmp_path / "out")
    assert "left out of the front: 10.0% of the cache; the smallest plan takes 29.3%" in said
    told, _ = plan_of(tmp_path / "out")
    assert told["target"] == {"max_loss": 0.5}
    assert told["measured"]["target_holds"] is (told["measured"]["high"] <= 0.5)
    assert told["predicted"]["rise_on_planning_texts"] <= 0.5
    assert "the target of 0.5" in page.write(tmp_path / "out").read_text()


def test_an_inspection_names_the_model_and_the_text_and_is_ranked_against(places, finished, tmp_path):
    model, text = places
    resolved = {"model": str(model), "text": [str(text)], "column": None, "errors": "strict", "window": 31}
    inspection = RunFolder.create(tmp_path / "inspection", "inspect", {}, resolved)
    common = {"run_id": "inspect-1", "kind": "importance", "metric": "rise", "unit": "nats/token"}
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    proxies = load_file(next((finished[0] / "parts").glob("proxies-*.safetensors")))["rise"]
    plain = options(CONTEXT, 6, 6, "bfloat16")
    windows = {
        n: spec.local.window for n, spec in enumerate(plain) if kind_of(spec) == "slots" and not spec.local.heavy
    }
    near = min(windows, key=lambda n: abs(windows[n] - 31))
    for layer, head in heads:
        # opposite in rank to the proxies
        value = -float(proxies[layer, head, near])
        inspection.append(Record(subject={"layer": layer, "kv_head": head}, value=value, **common))
    asked = PlanConfig(
        **(config(*places).model_dump() | {"source": str(tmp_path / "inspection"), "text": (), "anchors": 0})
    )
    planned(asked, tmp_path / "out")
    (record,) = of(tmp_path / "out", "rank_of_inspection")
    assert (record.n, record.subject["variant"]) == (LAYERS * HEADS, plain[near].short_name)
    assert record.value == pytest.approx(-1.0)
    assert "inspection's true rises of 6 kv heads" in page.write(tmp_path / "out").read_text().replace("&#39;", "'")


def test_an_inspection_of_other_heads_is_refused(places, tmp_path):
    resolved = {"model": str(places[0]), "text": [str(places[1])], "column": None, "errors": "strict", "window": 31}
    inspection = RunFolder.create(tmp_path / "inspection", "inspect", {}, resolved)
    common = {"run_id": "inspect-1", "kind": "importance", "metric": "rise", "unit": "nats/token", "value": 0.1}
    inspection.append(Record(subject={"layer": 3, "kv_head": 0}, **common))
    with pytest.raises(ValueError, match="has figures of layer 3 kv head 0; model has 3 layers of 2"):
        planned(config(tmp_path / "inspection", places[1]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_inspection_of_other_weights_is_refused(places, tmp_path):
    resolved = {
        "model": str(places[0]),
        "text": [str(places[1])],
        "column": None,
        "errors": "strict",
        "weights": "0" * 16,
    }
    RunFolder.create(tmp_path / "inspection", "inspect", {}, resolved)
    with pytest.raises(ValueError, match=r"is of other weights of .* inspect this model again"):
        planned(config(tmp_path / "inspection", places[1]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_command_s_folder_is_no_source(places, tmp_path):
    RunFolder.create(tmp_path / "study", "study", {}, {})
    with pytest.raises(ValueError, match="was made by 'termwise study'; give an inspection or a model"):
        describe(config(tmp_path / "study", places[1]), tmp_path / "out")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_state": None}, "no target; give one of them"),
        ({"max_loss": 0.1}, "both --max-loss and --max-state"),
        ({"length": 300}, "--length 300 is beyond --context 256"),
        (
            {"longer": 255},
            "--longer 255 is not beyond --context 256; give more tokens than the context, or leave it out",
        ),
        ({"longer": 256}, "--longer 256 is not beyond --context 256"),
        ({"shares": (0.5, 1.5)}, "shares of the cache lie above 0 and below 100%"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_work(fields, message):
    with pytest.raises(ValueError, match=message):
        config("model", "text", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_state": 0.05}, "less than the smallest plan takes, 29"),
        ({"context": 1024, "longer": None}, "--context 1024: model was made for 512 tokens"),
        ({"longer": 1024}, "--longer 1024: model was made for 512 tokens"),
        ({"texts": 200}, "passages overlap|hold"),
    ],
)
def test_what_cannot_be_planned_is_refused(places, fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        describe(config(*places, **fields), tmp_path / "out")


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_family_that_cannot_be_converted_is_refused(places, family, tmp_path):
    model = tiny_folder(tmp_path / family, family)
    with pytest.raises(ValueError, match="a plan is for causal models"):
        describe(config(model, places[1]), tmp_path / "out")


def test_overlapping_passages_are_refused():
    check_disjoint([(0, 0, 10), (0, 10, 20), (1, 5, 9)])
    with pytest.raises(ValueError, match="3 passages overlap in document 1"):
        check_disjoint([(0, 0, 11), (0, 10, 20), (1, 5, 9)])


def test_numbers_as_they_are_typed():
    assert (parse_context("4k"), parse_context("300")) == (4096, 300)
    assert (parse_share("25%", "--max-state"), parse_shares("25%,0.1,10%")) == (0.25, (0.1, 0.25))
    for call in (lambda: parse_context("4kk"), lambda: parse_share("much", "--max-state")):
        with pytest.raises(ValueError, match="allowed are like"):
            call()


def test_centers_come_from_the_first_planning_text_alone(places, finished):
    """Centers of the run are those calibrated on the rotated keys of that text."""
    from termwise.analysis.proxy import layer_keys
    from termwise.attention.centers import calibrate_centers

    out, _ = finished
    found = opened(config(*places))
    keys = list(layer_keys(open_pretrained(str(places[0])), found.ids(found.planning[0])))
    held = load_file(out / "parts" / "centers.safetensors")
    assert held
    for name, centers in held.items():
        layer, head, number = map(int, name.split("."))
        torch.testing.assert_close(centers, calibrate_centers(keys[layer][:, head], number, 0))
