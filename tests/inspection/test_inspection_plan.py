"""What is measured always, what the budget buys, and how estimates learn."""

from __future__ import annotations

import pytest

from termwise.attention.spec import Local
from termwise.inspection.planning import Cost, Place, Remaining, affordable, ladder


def test_even_orders_come_first_and_order_zero_once():
    first, later = ladder(Local(64, 4))
    assert first[0].spec.short_name == "drop+w64s4"
    assert [rung.order for rung in first[1:]] == [0] * 3 + [2] * 4 + [4] * 4 + [6] * 4 + [8] * 4
    assert {rung.order for rung in later} == {1, 3, 5, 7} and len(later) == 16
    assert len({rung.spec.short_name for rung in first + later}) == len(first + later)


def test_an_encoder_has_no_slots():
    first, later = ladder(None)
    assert {rung.local for rung in first + later} == {None}
    assert [rung.spec.short_name for rung in first][:3] == ["taylor:0@mean", "taylor:0..2@mean", "taylor:0..2"]


def test_later_layers_are_cheaper_and_estimates_follow_what_work_takes():
    cost = Cost(num_layers=10, num_texts=2, forward=1.0, head=0.2, reduced=0.1, terms=0.5)
    assert cost.rise(Place(9, 0)) == pytest.approx(2 * (0.2 + 0.08 + 0.1))
    assert cost.rise(Place(0, None)) > cost.rise(Place(5, None))
    assert cost.rung() == pytest.approx(2 * (1 + 1))
    cost.learn("rung", cost.plain("rung"), 8.0)
    assert cost.rung() == pytest.approx(8.0)
    cost.learn("rung", cost.plain("rung"), 4.0)
    assert cost.rung() == pytest.approx(6.0)
    assert affordable([Place(9, 0)] * 5, cost, 2.0) == 2


def test_time_left_counts_what_the_budget_pays_for():
    cost = Cost(num_layers=10, num_texts=1, forward=1.0, head=0.0, reduced=0.0, terms=0.1)
    places = [Place(0, head) for head in range(4)]
    left = Remaining(texts=1, rungs=2, places=places, later=3)
    assert left.always(cost) == pytest.approx(4 + 1 + 2)
    assert left.seconds(cost, budget=1.0) == pytest.approx(7)
    assert left.seconds(cost, budget=10.0) == pytest.approx(10)
    assert left.seconds(cost, budget=100.0) == pytest.approx(7 + 4 + 3)
