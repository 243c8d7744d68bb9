"""Names to rows of a grid, wall times to steps."""

import json

import pytest

from termwise.attention.names import parse
from termwise.results import parse_duration
from termwise.study.budget import SAFETY, Grid, Speed, makespan, scored_within, steps_within
from termwise.study.grid import StudyConfig, resolve, split_names
from termwise.study.recall import allowed_steps


def test_groups_expand_and_equal_values_run_once():
    rows = resolve(["denominators", "paper"])
    assert rows[0].name == "softmax"
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    published = next(row for row in rows if row.name == "softmax_divs")
    assert "gated_softmax_no_gate_no_norm" in published.equal_names
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys))


def test_a_cancelling_gate_is_one_value_with_its_parts_named():
    rows = resolve(["exp|l2+gb", "exp|l2"], baseline=False)
    assert [(row.name, row.equal_names) for row in rows] == [("exp|l2+gb", ("exp|l2",))]
    assert "cancels" in rows[0].parts_that_cancel[0]


def test_layer_options_keep_values_apart():
    assert [row.name for row in resolve(["exp+decay", "forgetting_transformer"], baseline=False)] == [
        "exp+decay",
        "forgetting_transformer",
    ]


def test_a_spec_file_is_a_row(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(parse("taylor:0..2@mean").to_dict() | {"layer": {"qk_norm": True}}))
    (row,) = resolve([str(path)], baseline=False)
    assert (row.name, row.short_name, row.layer["qk_norm"]) == ("mine", "taylor:0..2@mean", True)


@pytest.mark.parametrize(("given", "near"), [("sofmax", "softmax"), ("laddr", "ladder"), ("taylr:0..2", "taylor")])
def test_a_misspelt_name_gets_the_near_one(given, near):
    with pytest.raises(ValueError, match=near):
        resolve([given])


def test_commas_inside_short_names_stay():
    assert split_names(["taylor:0,2,4+w64s4,softmax", "elu1"]) == ("taylor:0,2,4+w64s4", "softmax", "elu1")


def test_one_of_steps_and_budget():
    with pytest.raises(ValueError, match="one of --steps and --budget"):
        StudyConfig(steps=3, budget=60.0)
    assert StudyConfig().budget == 600


@pytest.mark.parametrize("fields", [{"seeds": 0}, {"preset_": "tiny"}, {"context": 1}, {"errors": "loose"}])
def test_a_broken_configuration_is_one_line(fields):
    with pytest.raises(ValueError, match=next(iter(fields))) as error:
        StudyConfig(**fields)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "10x", "-3m", "0", "m", "1h 30m"])
def test_a_time_that_is_none(text):
    with pytest.raises(ValueError, match="time"):
        parse_duration(text)


GRID = Grid(
    (Speed(step=0.1, scored_token=5e-4, recall_step=0.02, start=3.0), Speed(0.3, 1e-3, 0.05, 3.0)),
    num_seeds=3, scored_tokens=10_000, recall_steps=1000, num_workers=2,
)  # fmt: skip


def test_the_budget_holds_the_whole_grid_and_no_step_more_fits():
    steps = steps_within(600, GRID, most=10**6)
    assert GRID.seconds(steps) <= 600 * SAFETY < GRID.seconds(steps + 1)
    trained = [3 + 0.1 * steps + 5, 3 + 0.3 * steps + 10]
    assert GRID.seconds(steps) == pytest.approx(makespan([*trained, 23, 53, *trained * 2], 2))


def test_a_budget_too_small_says_what_would_do():
    with pytest.raises(ValueError, match=r"raise --budget, or ask for fewer"):
        steps_within(20, GRID, most=10**6)


def test_more_steps_than_allowed_are_never_planned():
    assert steps_within(10**9, GRID, most=500) == 500


def test_scores_take_their_share_and_no_more():
    scored = scored_within(10.0, GRID, least=100)
    assert 100 < scored < GRID.scored_tokens
    assert makespan([scored * 5e-4, scored * 1e-3] * 3, 2) == pytest.approx(10.0, rel=0.01)
    assert scored_within(1e6, GRID, least=100) == GRID.scored_tokens
    assert scored_within(0.0, GRID, least=100) == 100


def test_recall_is_judged_by_the_median_of_those_that_reached_it():
    assert allowed_steps([[(100, 1.0)], [(200, 1.0)], [(900, 1.0)], [(1500, 0.3)]]) == 600
    assert allowed_steps([[(1500, 0.3)]]) is None
