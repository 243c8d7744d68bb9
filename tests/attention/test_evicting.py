"""Exact slots that keys leave at fixed positions: which ones stay, what is refused."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.spec import AttentionSpec, Local
from tests.attention.compare import all_close, close, equal, holds, refused, same_bits
from tests.attention.running import gradients, run_form, run_oracle
from tests.attention.slicing import tokens
from tests.attention.values import inputs, spec_of

FORMS = (("chunked", None), ("chunked", 5), ("recurrent", None), ("parallel", None), ("reference", None))


@pytest.mark.parametrize("tail", ["drop", "taylor:0..2", "taylor:0..2@mean", "taylor:0..1@mean"])
def test_one_at_a_time_is_the_ordinary_window(tail):
    arguments = inputs(spec_of("exp"), batch=2, length=40, heads=4, kv_heads=2, requires_grad=True)
    expected = run_form(arguments, parse(f"{tail}+w6s2"), "parallel")
    for form in FORMS:
        out, found = run_form(arguments, parse(f"{tail}+w6s2e1"), *form)
        close(out, expected[0], "fp64", f"{tail}, {form}")
        all_close(found, expected[1], "fp64 gradient", f"{tail}, {form}: gradient of")


@pytest.mark.parametrize(
    "name", ["drop+w30h3e8", "taylor:0..2@mean+w4s2h24e7", "taylor:0+w1e31", "taylor:0@mean3+w1s29e2"]
)
def test_softmax_where_no_key_has_to_leave(name):
    spec = parse(name)
    arguments = inputs(spec, length=30, requires_grad=True)
    plain = {part: t for part, t in arguments.items() if part != "parameters"}
    expected = run_oracle(plain, spec_of("exp"))
    for form in FORMS:
        out, found = run_form(arguments, spec, *form)
        close(out, expected[0], "fp64", f"{name}, {form}")
        own = {part: found[part] for part in plain}
        all_close(own, expected[1], "fp64 gradient", f"{name}, {form}: gradient of")


def held(state) -> list[list[int]]:
    """Ranks in the slots of each kv head of the one sequence."""
    return state.rank[0].tolist()


def test_which_keys_stay():
    """One head whose queries give each key the weight of its own score: the window, the sinks, then the heaviest others."""
    spec = parse("drop+w2s1h2e4")
    scores = torch.tensor([0.0, 3.0, 0.1, 2.0, 0.2, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    key = scores.reshape(1, 12, 1, 1)
    given = {"query": torch.ones_like(key), "key": key, "value": key, "scale": 1.0}
    expected = {
        3: [0, 1, 2],
        # At the fourth key nothing has to leave: one sink, two of the window, and one other.
        4: [0, 1, 2, 3],
        7: [0, 1, 2, 3, 4, 5, 6],
        # 0 is the sink, 6 and 7 are the window; of 1, 2, 3, 4, 5 most was given to 1 and 3 (5 came only before two queries).
        8: [0, 1, 3, 6, 7] if weight_of(scores, 5, 7) < weight_of(scores, 3, 7) else [0, 1, 5, 6, 7],
    }
    for form in FORMS:
        for length, ranks in expected.items():
            part = {name: t[:, :length] if name != "scale" else t for name, t in given.items()}
            _, state = attend(**part, spec=spec, form=form[0], chunk_size=form[1], output_final_state=True)
            equal(held(state), [ranks], f"{form}: after {length} keys")
            equal(state.key.shape[2], spec.local.num_held(length), f"{form}: as many as the formula says")


def weight_of(scores: torch.Tensor, key: int, num_queries: int) -> float:
    """What the first queries give a key while every key is a slot."""
    return sum(float(torch.softmax(scores[: t + 1], dim=0)[key]) for t in range(key, num_queries))


def test_ties_go_to_the_older_key():
    spec = parse("drop+w1h2e5")
    flat = torch.zeros(1, 11, 2, 3, dtype=torch.float64)
    # Later keys have been given less; of equal keys that came together none has, so the first queries are padding for them all.
    value = torch.ones_like(flat)
    for form in FORMS:
        _, state = attend(flat, flat, value, spec, form=form[0], chunk_size=form[1], output_final_state=True)
        equal(held(state), [[0, 1, 9, 10]] * 2, f"{form}")
    # Two keys of one weight: the query between them gives nothing to either that it could see.
    key = torch.zeros(1, 6, 1, 1, dtype=torch.float64)
    key[0, :4, 0, 0] = torch.tensor([-800.0, -800.0, 0.0, 0.0])
    given = {"query": torch.ones_like(key), "key": key, "value": key, "scale": 1.0}
    query = given["query"].clone()
    query[0, :2] = 0
    for form in FORMS:
        _, state = attend(
            **given | {"query": query},
            spec=parse("drop+w1h3e6"),
            form=form[0],
            chunk_size=form[1],
            output_final_state=True,
        )
        holds(0 in held(state)[0], f"{form}: {held(state)}")


def test_heads_keep_different_keys_but_a_group_decides_together():
    spec = parse("taylor:0..2@mean+w4s1h3e8")
    arguments = inputs(spec, length=60, heads=6, kv_heads=3, spread=2.0)
    _, state = attend(**arguments, spec=spec, output_final_state=True)
    holds(len({tuple(ranks) for ranks in held(state)}) > 1, f"{held(state)}")
    first, _ = attend(**{**arguments, "query": arguments["query"][:, :, ::2]}, spec=spec)
    whole, _ = attend(**arguments, spec=spec)
    holds(not torch.allclose(first, whole[:, :, ::2]), "the other query of the group has a say")


def test_no_more_slots_than_are_paid_for():
    for local in (Local(8, 2, 4, 16), Local(3, 0, 5, 7), Local(1, 0, 0, 1), Local(5, 3, 2, 3)):
        spec = AttentionSpec(parse("taylor:0..2@mean").kernel, local=local)
        arguments = inputs(spec, length=50)
        most = local.window + local.sinks + local.heavy + local.evict_every - 1
        state = None
        for t in range(50):
            _, state = attend(**tokens(arguments, t, t + 1), spec=spec, initial_state=state, output_final_state=True)
            equal(state.key.shape[2], local.num_held(t + 1), f"{local} after {t + 1} keys")
            holds(state.key.shape[2] <= most, f"{local}: {state.key.shape[2]}")


def test_what_such_states_cannot_do_is_refused_by_name():
    spec = parse("taylor:0..2@mean+w3h2e8")
    arguments = inputs(spec, length=20, dtype=torch.float32)
    _, state = attend(**arguments, spec=spec, output_final_state=True)
    with refused("merge", spec.short_name, "initial_state"):
        state.merge(state)
    with refused("translate", spec.short_name):
        state.translate(torch.zeros(1, 1, 3))
    with refused("reading_half", spec.short_name, "--half-state"):
        state.reading_half()
    decay = torch.zeros(1, 20, 1)
    with refused("log_decay", spec.short_name):
        attend(**arguments, spec=spec, log_decay=decay)
    with refused("query_mask", spec.short_name):
        attend(**arguments, spec=spec, query_mask=torch.ones(1, 20, dtype=torch.bool))
    with refused("local", "causal=True"):
        attend(**arguments, spec=spec, causal=False)


def test_what_such_slots_do_not_go_with_is_refused_by_name():
    for name, words in (
        ("drop+w4h2|l2", ("heavy=2", "RowSum()")),
        ("taylor:0..2+w4e8|rowsum>=1", ("evict_every=8", "RowSum()")),
        ("drop+w4h2+decay", ("log_decay", "heavy=2")),
        ("elu1+w4h2", ("heavy=2", "Polynomial", "Drop()")),
        ("power:2+w4e8", ("evict_every=8", "Polynomial", "Drop()")),
        ("exp+w4h2", ("softmax", "Drop()")),
        ("drop+w4e0", ("evict_every=0", "from 1")),
    ):
        with refused(*words):
            parse(name)
    with refused("heavy=-1", "from 0"):
        Local(4, heavy=-1)
    with refused("evict_every=True"):
        Local(4, heavy=1, evict_every=True)


def test_bad_rows_are_counted_alike():
    from termwise.attention.rows import RowCounts

    spec = parse("taylor:0..1!+w2h1e4")
    arguments = inputs(spec, batch=2, length=60, heads=4, kv_heads=2, spread=3.0)
    totals = []
    for form in (("chunked", None), ("chunked", 3), ("recurrent", None), ("parallel", None), ("reference", None)):
        counts = RowCounts()
        attend(**arguments, spec=spec, form=form[0], chunk_size=form[1], row_counts=counts)
        totals.append((counts.rows.tolist(), counts.vanishing.tolist(), counts.negative.tolist()))
    for other in totals[1:]:
        equal(other, totals[0], "rows, vanishing, negative")
    holds(sum(totals[0][2]) > 0, "some are negative")
    equal(totals[0][0], [120] * 4, "every row is looked at")


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent", "reference"])
def test_a_sequence_of_padding_alone_hands_back_an_empty_state(form):
    spec = parse("taylor:0..1@mean+w2h3e4")
    mask = torch.tensor([[True] * 6, [False] * 6])
    out, state = attend(**inputs(spec, length=6, batch=2), spec=spec, key_mask=mask, form=form, output_final_state=True)
    same_bits(out[1], torch.zeros_like(out[1]), form)
    equal((state.count.tolist(), (state.rank[1] >= 0).any().item()), ([6, 0], False), form)
    equal(state.split()[1].decayed_count.sum().item(), 0.0, form)


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent", "reference"])
def test_a_detached_denominator_passes_no_gradient(form):
    """exp(y) v / sum exp(y), by hand: nothing has left yet."""
    spec = parse("drop+w9h3e16|rowsum~")
    arguments = inputs(spec, length=9, heads=1, kv_heads=1, requires_grad=True)
    query, key, value = (arguments[name][0, :, 0] for name in ("query", "key", "value"))
    weights = (query @ key.T * query.shape[1] ** -0.5).exp().tril()
    expected = (weights @ value / weights.sum(dim=1, keepdim=True).detach())[None, :, None]
    got, _ = attend(**arguments, spec=spec, form=form, **({"chunk_size": 4} if form == "chunked" else {}))
    all_close(gradients(got, arguments), gradients(expected, arguments), "fp64 gradient", form)


@pytest.mark.parametrize(
    "name", ["drop+w3h2e4|rowsum~", "taylor:0..1@mean2+w2e3|rowsum~", "taylor:0..2@mean+w2h2e4|rowsum~+gb"]
)
def test_a_detached_denominator_over_a_tail_is_that_of_the_definition(name):
    spec = parse(name)
    arguments = inputs(spec, length=20, heads=4, kv_heads=2, requires_grad=True)
    _, expected = run_form(arguments, spec, "reference")
    for form, chunk_size in (("parallel", None), ("chunked", None), ("chunked", 2), ("recurrent", None)):
        _, got = run_form(arguments, spec, form, chunk_size)
        all_close(got, expected, "fp64 gradient", f"{name}, {form}")
