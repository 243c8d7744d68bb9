"""What each part is worth: orders, heads and layers of an inspection, variants of a study that differ in one part."""

from __future__ import annotations

import json

import pytest
from planted_runs import CONTEXT, entry, inspect, spec, study

from termwise.report.decision.case import gather
from termwise.report.decision.gathering.ablations import steps_of
from termwise.report.decision.limits import Limits
from termwise.results import Record, RunFolder

LIMITS = Limits(context=CONTEXT)
KEPT = {
    "drop+w64s4": 50.0,
    "taylor:0..0@mean+w64s4": 60.0,
    "taylor:0..2@mean+w64s4": 250.0,
    "taylor:0..4@mean+w64s4": 1900.0,
}


def parts(case, kind):
    return {one.name: one for one in case.components if one.kind == kind}


def test_each_step_down_the_ladder_is_an_order_that_is_kept_or_cut_by_its_interval(tmp_path):
    found = parts(gather([inspect(tmp_path / "i", kept=KEPT)], LIMITS), "order")
    assert list(found) == ["0@mean+w64s4", "1..2@mean", "1..2@mean+w64s4", "3..4@mean", "3..4@mean+w64s4"]
    middle = found["1..2@mean+w64s4"]
    assert middle.loss.value == pytest.approx(0.5, abs=0.01) and middle.loss.low < 0.499 < 0.5 < middle.loss.high
    assert middle.recommendation == "keep" and middle.saved.value == pytest.approx(0.19)
    top = found["3..4@mean+w64s4"]
    assert top.loss.value == pytest.approx(0.01, abs=0.001) and top.recommendation == "cut"
    assert top.saved.value == pytest.approx(1.65) and top.saved.unit == "share"
    assert found["0@mean+w64s4"].loss.value == pytest.approx(0.3, abs=0.01)


def test_the_intervals_of_orders_are_paired_by_text(tmp_path):
    """Texts differ by far more than rungs do; a rung less another on the same texts does not see that."""
    loss = parts(gather([inspect(tmp_path / "i")], LIMITS), "order")["3..4@mean+w64s4"].loss
    assert loss.high - loss.low < 0.02 and loss.n == 4


def test_heads_and_layers_each_have_their_share_of_the_limit(tmp_path):
    case = gather([inspect(tmp_path / "i", kept=KEPT)], Limits(context=CONTEXT, accuracy=0.05))
    heads = parts(case, "head")
    assert list(heads) == ["0.0", "0.1", "1.0", "1.1"]
    assert [one.recommendation for one in heads.values()] == ["keep", "cut", "open", "not_measured"]
    assert heads["1.1"].loss.why == "the budget was spent" and heads["1.1"].loss.value is None
    assert heads["0.0"].saved.value == pytest.approx((1 - 0.25) / 4)
    layers = parts(case, "layer")
    assert [(name, one.recommendation) for name, one in layers.items()] == [("0", "keep"), ("1", "not_measured")]
    assert layers["0"].saved.value == pytest.approx((1 - 0.25) / 2)
    # A fourth of 0.05 is 0.0125: the far end 0.01 is within; of 0.03 it is not.
    strict = parts(gather([inspect(tmp_path / "j", kept=KEPT)], Limits(context=CONTEXT, accuracy=0.03)), "head")
    assert strict["0.1"].recommendation == "open"


def test_a_head_or_layer_without_a_record_is_not_measured_and_does_not_vanish(tmp_path):
    folder = inspect(tmp_path / "i", kept=KEPT)
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    left = [line for line in lines if json.loads(line)["subject"].get("kv_head") != 1]
    (folder / "records.jsonl").write_text("".join(left))
    heads = parts(gather([folder], LIMITS), "head")
    assert list(heads) == ["0.0", "0.1", "1.0", "1.1"]
    assert [heads[name].recommendation for name in ("0.1", "1.1")] == ["not_measured"] * 2
    assert heads["0.1"].loss.why == "decision.why.not_evaluated"


def test_without_bytes_at_the_context_the_saving_is_missing_not_zero(tmp_path):
    case = gather([inspect(tmp_path / "i", kept=KEPT)], Limits(context=8192))
    saved = parts(case, "head")["0.0"].saved
    assert saved.value is None and saved.why == "decision.why.lengths"
    assert dict(saved.fields) == {"context": 8192, "lengths": (CONTEXT,)}


def test_an_encoder_has_no_loss_and_so_no_parts(tmp_path):
    assert (
        gather([inspect(tmp_path / "i", is_encoder=True), study(tmp_path / "s", {"a": None})], LIMITS).components == ()
    )


GATE = {"output_gate": "after"}
WINDOW = {"local": {"window": 64, "sinks": 4, "heavy": 0, "evict_every": None}}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (spec(orders=(0, 1, 2)), spec(orders=(0, 1)), "order"),
        (spec(orders=(0, 1, 2, 3, 4)), spec(orders=(0, 1, 2)), "order"),
        (spec(orders=(0, 2)), spec(orders=(0, 1)), None),
        (spec(center="mean"), spec(center="zero"), "center"),
        (spec(**WINDOW), spec(), "window"),
        (spec(**GATE), spec(), "gate"),
        (spec(log_decay=True), spec(), "decay"),
        (spec("Exp"), spec("Exp", normalizer={"type": "L2"}), "denominator"),
        (spec(**GATE, log_decay=True), spec(), None),
        (spec("Exp"), spec(), None),
        (spec(), spec(), None),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_variants_that_differ_in_exactly_one_part_are_a_step_whichever_comes_first(first, second, expected, is_turned):
    entries = [entry("a", spec=first), entry("b", spec=second)]
    found = list(steps_of(entries[::-1] if is_turned else entries))
    assert [(one.with_it, one.without, one.kind) for one in found] == ([("a", "b", expected)] if expected else [])


def test_layer_options_count_as_parts_and_controls_do_not():
    plain = {"rotary": True, "conv_size": 0}
    entries = [entry("a", spec=spec(), layer=plain | {"conv_size": 4}), entry("b", spec=spec(), layer=plain)]
    assert [(one.with_it, one.kind) for one in steps_of(entries)] == [("a", "option")]
    assert list(steps_of([entry("a", spec=spec()), entry("b", spec=spec(**GATE), control_of="a")])) == []
    assert [one.with_it for one in steps_of([*entries, "text", {"name": "c"}, {"name": "d", "spec": 3}])] == ["a"]
    assert list(steps_of("nonsense")) == []


def test_of_nested_orders_only_neighbours_are_steps():
    ladder = [entry(f"o{top}", spec=spec(orders=tuple(range(top + 1)))) for top in (1, 2, 4)]
    assert [(one.with_it, one.without) for one in steps_of(ladder)] == [("o2", "o1"), ("o4", "o2")]


def test_a_step_of_a_study_is_paired_by_seed_and_document(tmp_path):
    entries = [
        entry("softmax", spec=spec("Exp")), entry("o2", spec=spec(orders=(0, 1, 2))), entry("o1", spec=spec(orders=(0, 1))),
    ]  # fmt: skip
    changes = {"o2": (0.09, 0.11), "o1": (0.49, 0.51)}
    folder = study(tmp_path / "s", changes, entries=entries, states={"o2": 900.0, "o1": 200.0})
    (step,) = gather([folder], Limits()).components
    assert (step.name, step.kind, step.recommendation) == ("o2 \N{RIGHTWARDS ARROW} o1", "order", "keep")
    assert step.loss.value == pytest.approx(0.4, abs=0.01) and step.loss.n == 3 and step.loss.low > 0.05
    assert step.saved.value == pytest.approx(0.7)


def test_one_seed_leaves_a_step_open(tmp_path):
    entries = [entry("softmax", spec=spec("Exp")), entry("exp_l2", spec=spec("Exp", normalizer={"type": "L2"}))]
    folder = study(tmp_path / "s", {"exp_l2": None}, entries=entries, seeds=(0,))
    (step,) = gather([folder], Limits()).components
    assert step.kind == "denominator" and step.recommendation == "open"
    assert step.loss.why == "decision.why.too_few_seeds" and step.loss.value is not None


@pytest.mark.parametrize(
    ("value", "low", "high", "wanted"),
    [
        (-0.02, -0.05, -0.01, "keep"),
        (0.02, 0.01, 0.05, "cut"),
        (0.01, -0.01, 0.02, "open"),
        (-0.02, None, None, "open"),
    ],
)
def test_a_plan_is_worth_what_its_rivals_of_equal_bytes_lose(tmp_path, value, low, high, wanted):
    point = {"method": "termwise", "share": 0.25, "is_chosen": True}
    folder = RunFolder.create(tmp_path / "plan", "plan", {"source": "m"}, {"about": {"name": "m"}, "context": 4096})
    gain = {
        "run_id": "r",
        "kind": "plan",
        "subject": point,
        "metric": "gain",
        "unit": "nats/token",
        "level": 0.95,
        "n": 8,
    }
    rise = gain | {"metric": "loss_rise", "value": 0.01, "low": 0.0, "high": 0.02, "baseline": "exact"}
    folder.append(Record(**rise), Record(**gain, value=value, low=low, high=high, baseline="slots"))
    (part,) = gather([tmp_path / "plan"], Limits()).components
    assert (part.kind, part.name, part.recommendation) == ("sums", "25%", wanted)
    assert part.loss.value == -value and part.saved.value == 0.0
    assert (part.loss.low, part.loss.high) == (None if high is None else -high, None if low is None else -low)
