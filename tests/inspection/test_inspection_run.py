"""A whole inspection: every figure a record, equal to what the model itself gives; resumed, bounded, refused."""

from __future__ import annotations

import pytest
import torch
from tests.inspection.tiny_inspection import ASKED, config, inspected, tiny_folder, write_text
from torch.nn import functional as F

from termwise.analysis.importance import true_loss
from termwise.analysis.passages import take_passages
from termwise.analysis.pretrained import open_pretrained
from termwise.analysis.reducing import everything
from termwise.analysis.replacing import replaced
from termwise.analysis.replaying import record, run
from termwise.attention.names import parse
from termwise.inspection import measuring
from termwise.inspection.config import DEFAULT_LENGTH, InspectConfig, default_folder, fitted
from termwise.inspection.run import describe
from termwise.models import naming
from termwise.results import RunFolder

LAYERS, HEADS = 3, 2


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    top = tmp_path_factory.mktemp("inspection")
    return tiny_folder(top / "model"), write_text(top / "text")


@pytest.fixture(scope="module")
def finished(places, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, inspected(config(*places), out)


def of(folder, kind, metric, **subject):
    found = [r for r in RunFolder.open(folder).records() if (r.kind, r.metric) == (kind, metric)]
    return [r for r in found if subject.items() <= r.subject.items()]


def passages(model, text):
    tokenizer = open_pretrained(model).tokenizer
    sizes = {name: ASKED[name] for name in ("texts", "length")}
    return take_passages([str(text)], tokenizer, seed=0, column=None, errors="strict", **sizes).ids


def test_losses_and_rises_are_those_of_the_model(places, finished):
    out, _ = finished
    model, ids = open_pretrained(places[0]), passages(*places)
    with torch.no_grad():
        exact = [float(F.cross_entropy(run(model, text)[0, :-1], text[0, 1:])) for text in ids.split(1)]
    for n, loss in enumerate(exact):
        assert of(out, "loss", "loss", variant="exact", text=n)[0].value == pytest.approx(loss, abs=1e-5)
    for name in ("drop+w6s2", "taylor:0..2@mean", "taylor:0..4", "taylor:0..3!@mean+w6s2"):
        with torch.no_grad(), replaced(model, everything(parse(name), is_causal=True)):
            losses = [float(F.cross_entropy(run(model, text)[0, :-1], text[0, 1:])) for text in ids.split(1)]
        (rise,) = of(out, "loss", "rise", variant=name)
        assert rise.value == pytest.approx((sum(losses) - sum(exact)) / 3, abs=2e-5), name
        assert rise.low <= rise.value <= rise.high and rise.n == 3 and rise.unit == "nats/token"
        assert [r.value for r in of(out, "loss", "loss", variant=name)][:3] == pytest.approx(losses, abs=1e-5)


def test_every_head_and_layer_has_its_rise(places, finished):
    out, _ = finished
    model, ids, spec = open_pretrained(places[0]), passages(*places), parse("taylor:0..2@mean+w6s2")
    rises = {(r.subject["layer"], r.subject.get("kv_head")): r for r in of(out, "importance", "rise")}
    assert set(rises) == {(layer, head) for layer in range(LAYERS) for head in (*range(HEADS), None)}
    exact = [of(out, "loss", "loss", variant="exact", text=n)[0].value for n in range(3)]
    with torch.no_grad():
        recordings = [record(model, text) for text in ids.split(1)]
    for layer, head in ((0, 1), (2, None)):
        losses = [true_loss(model, r, t, spec, layer, head) for r, t in zip(recordings, ids.split(1), strict=True)]
        assert rises[layer, head].value == pytest.approx((sum(losses) - sum(exact)) / 3, abs=2e-5)
    for proxy in ("fisher", "projected_error"):
        assert len(of(out, "importance", proxy)) == LAYERS * HEADS


def test_every_promised_figure_of_the_terms_is_there(finished):
    out, _ = finished
    for metric in ("score_mean", "score_spread", "score_above_mean", "first_token_weight"):
        assert len(of(out, "score", metric)) == LAYERS * HEADS
    for head in range(HEADS):
        shares = sum(r.value for r in of(out, "score", "distance_weight", layer=1, kv_head=head))
        assert 0 < shares <= 1
    for metric in ("total_variation", "output_error", "negative_weight", "vanishing_sums", "top_weight"):
        assert len(of(out, "term", metric)) == LAYERS * HEADS * 9 * 2 * 2
    assert len(of(out, "term", "magnitude")) == LAYERS * HEADS * 9 * 2
    assert all(r.value == 0 for r in of(out, "term", "negative_weight", order=4))


def test_a_second_run_measures_nothing_again(places, finished, monkeypatch):
    out, _ = finished
    before = (out / "records.jsonl").read_bytes()
    monkeypatch.setattr(measuring, "rung_losses", None)
    monkeypatch.setattr(measuring, "place_losses", None)
    monkeypatch.setattr(measuring, "measure_text", None)
    inspected(config(*places), out)
    assert (out / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize("stop_at", ["measure_text", "rung_losses", "place_losses"])
def test_stopped_anywhere_the_same_command_ends_with_the_same_figures(places, finished, stop_at, tmp_path, monkeypatch):
    own, calls = getattr(measuring, stop_at), []

    def stopping(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return own(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(measuring, stop_at, stopping)
        with pytest.raises(KeyboardInterrupt):
            inspected(config(*places), tmp_path / "out")
    inspected(config(*places), tmp_path / "out")
    assert figures(tmp_path / "out") == figures(finished[0])


def figures(folder):
    return {
        (r.kind, r.metric, str(sorted(r.subject.items()))): round(r.value, 9) for r in RunFolder.open(folder).records()
    }


def test_a_small_budget_leaves_heads_out_and_a_larger_one_goes_on(places, tmp_path, finished):
    said = inspected(config(*places, budget=1e-6), tmp_path / "out")
    assert "buys true evaluations of about 0 of 9 heads and layers" in said
    left = [r for r in RunFolder.open(tmp_path / "out").records() if r.status == "not_measured"]
    assert {r.kind for r in left} == {"importance", "loss"} and all(
        "the same command with more" in r.reason for r in left
    )
    even = {r.subject["order"] for r in of(tmp_path / "out", "loss", "rise") if r.value is not None}
    assert even == {None, 0, 2, 4, 6, 8}
    assert default_folder(config(*places)) == default_folder(config(*places, budget=5.0))
    inspected(config(*places), tmp_path / "out")
    latest = {(r.kind, r.metric, str(sorted(r.subject.items()))): r for r in RunFolder.open(tmp_path / "out").records()}
    assert {key: round(r.value, 9) for key, r in latest.items()} == figures(finished[0])


def test_the_heads_with_the_largest_proxy_are_evaluated_first(finished):
    out, _ = finished
    order = [
        (r.subject["layer"], r.subject["kv_head"]) for r in of(out, "importance", "rise") if "kv_head" in r.subject
    ]
    proxy = {(r.subject["layer"], r.subject["kv_head"]): r.value for r in of(out, "importance", "fisher")}
    assert order == sorted(proxy, key=lambda place: -proxy[place])


def test_an_encoder_is_measured_by_its_final_hidden_state(tmp_path):
    model = tiny_folder(tmp_path / "model", "bert")
    text = write_text(tmp_path / "text")
    said = inspected(config(model, text), tmp_path / "out")
    assert "an encoder has no loss" in said
    opened, ids = open_pretrained(model), passages(model, text)
    with torch.no_grad():
        exact = [run(opened, one) for one in ids.split(1)]
        with replaced(opened, everything(parse("taylor:0..4@mean"), is_causal=False)):
            changed = [run(opened, one) for one in ids.split(1)]
    expected = [float((a - b).norm() / b.norm()) for a, b in zip(changed, exact, strict=True)]
    (rise,) = of(tmp_path / "out", "loss", "rise", variant="taylor:0..4@mean")
    assert rise.value == pytest.approx(sum(expected) / 3, rel=1e-4) and rise.unit == "relative change"
    assert {r.subject["slots"] for r in of(tmp_path / "out", "loss", "rise")} == {None}
    assert len(of(tmp_path / "out", "importance", "rise")) == LAYERS * 5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"length": 65}, "context of 64; give shorter texts"),
        ({"reduced": "taylor:0..2+decay"}, "decays and learned parameters are not there"),
        ({"reduced": "taylor:0..3@mean"}, "taylor|order|negative"),
        ({"reduced": "exp"}, "softmax itself, so nothing would be reduced"),
        ({"text": ("nowhere.txt",)}, "no such file"),
    ],
)
def test_what_cannot_be_measured_is_told_first(places, asked, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        inspected(config(*places).model_copy(update=asked), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("context", "length"), [(64, 64), (600, 512)])
def test_texts_are_as_long_as_is_usual_or_as_the_model_allows(context, length, tmp_path):
    model = tiny_folder(tmp_path / "model", max_position_embeddings=context, num_hidden_layers=1)
    asked = config(model, write_text(tmp_path / "text"), length=None, texts=2, budget=1e-3)
    assert describe(asked, tmp_path / "out")["tokens_of_each_text"] == length
    told = inspected(asked, tmp_path / "out")
    assert ("texts of 64 tokens, the most that model takes" in told) == (length < 512)
    assert RunFolder.open(tmp_path / "out").run["resolved"]["length"] == length
    assert of(tmp_path / "out", "memory", "kept_bytes", length=length)


def test_slots_that_cover_all_that_a_model_was_made_for_are_refused(places, tmp_path):
    asked = config(*places, length=None, window=60, sinks=4)
    with pytest.raises(
        ValueError,
        match=r"--window 60 and --sinks 4 cover the 64 tokens that .* takes.*smaller slots, e.g. --window 16",
    ):
        describe(asked, tmp_path / "out")
    with pytest.raises(ValueError, match=r"cover a text of --length 48: .*give longer texts or smaller slots"):
        describe(config(*places, length=48, window=60, sinks=4), tmp_path / "out")


def test_a_context_too_short_for_any_text_is_named():
    with pytest.raises(ValueError, match="m has a context of 4; an inspection reads texts of at least 8 tokens"):
        fitted(InspectConfig(model="m"), 4)


def test_the_usual_length_has_the_folder_it_always_had():
    usual = InspectConfig(model="m", length=DEFAULT_LENGTH)
    assert default_folder(InspectConfig(model="m")) == default_folder(usual)


def test_single_texts_are_refused():
    with pytest.raises(ValueError, match="texts"):
        InspectConfig(model="m", texts=1)


def test_a_folder_without_tokenizer_reads_no_text(places, tmp_path):
    from tests.analysis.tiny_pretrained import raw

    raw("llama").save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        inspected(config(tmp_path / "bare", places[1]), tmp_path / "out")


def test_a_run_says_which_weights_it_is_of_and_refuses_others(places, finished, monkeypatch):
    assert RunFolder.open(finished[0]).run["resolved"]["weights"] == naming.fingerprint(places[0])
    monkeypatch.setattr(naming, "fingerprint", lambda place: "others")
    with pytest.raises(ValueError, match=r"other settings: weights \(was '\w{16}', now 'others'\)"):
        inspected(config(*places), finished[0])


def test_another_text_in_the_same_folder_is_refused(places, finished, tmp_path):
    other = write_text(tmp_path / "other", 500)
    with pytest.raises(ValueError, match="other settings"):
        inspected(config(places[0], other), finished[0])
