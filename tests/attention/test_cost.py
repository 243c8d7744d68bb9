"""Costs: the counts and break-even figures of math section 9, live bytes against the formula, peak memory in a child process."""

from __future__ import annotations

import dataclasses
import json
import sys
from math import comb

import pytest
import torch

from termwise.attention.cost import TERMS, Work, chunked_terms, cost, parallel_terms, predicted_seconds
from termwise.attention.forms import attend, choose_form
from termwise.attention.kernels import Polynomial
from termwise.attention.machine import Machine, machine_file, this_machine
from termwise.attention.spec import AttentionSpec
from tests.attention.compare import close, equal, holds
from tests.attention.peak import MIB, peaks_of
from tests.attention.slicing import tokens
from tests.attention.values import inputs, spec_of


def full(top: int, center: str = "zero") -> AttentionSpec:
    return AttentionSpec(Polynomial(tuple(range(top + 1)), center=center, allow_negative=True))


# d: C(d+P, P) for P = 1, 2, ...
PRINTED = {
    16: (17, 153, 969, 4845),
    32: (33, 561, 6545, 58905),
    64: (65, 2145, 47905, 814385),
    128: (129, 8385, 366145),
}


def test_numbers_of_features():
    for d, counts in PRINTED.items():
        for top, count in enumerate(counts, start=1):
            for center in ("zero", "mean"):
                equal(cost(full(top, center), d, 64, 1).features, count, f"d={d}, orders 0..{top}")
    for n in range(1, 5):
        one = AttentionSpec(Polynomial((n,), allow_negative=True))
        equal(cost(one, 16, 16, 1).features, comb(16 + n - 1, n), f"order {n} alone around 0")
    around_mean = AttentionSpec(Polynomial((2,), center="mean"))
    equal(cost(around_mean, 16, 16, 1).features, 153, "any order set around the mean needs all orders below")
    equal(cost(spec_of("softmax"), 64, 64, 10).features, 0, "a cache has none")


@pytest.mark.parametrize(
    ("d", "top", "tokens_"), [(64, 2, 1089), (64, 3, 24327), (32, 3, 3375), (16, 4, 2574), (16, 2, 81)]
)
def test_break_even_lengths(d, top, tokens_):
    found = cost(full(top), d, d, 8192)
    equal(found.break_even, tokens_, f"d={d}, orders 0..{top}")
    equal(found.break_even_half, round(2 * comb(d + top, top) * (d + 1) / (2 * d)), "twice that against bfloat16")
    equal(found.moment_bytes, 4 * comb(d + top, top) * (d + 1), "4 C(d+P, P)(e+1) bytes")
    equal(
        (found.cache_bytes, found.cache_bytes_half),
        (4 * 2 * d * 8192, 2 * 2 * d * 8192),
        "the cache, in float32 and bfloat16",
    )
    at_even = cost(full(top), d, d, found.break_even)
    holds(abs(at_even.cache_bytes - at_even.moment_bytes) <= 4 * 2 * d, "where they cross")


KINDS = (
    *(
        "taylor:0..2",
        "taylor:0..2@mean+w8s2",
        "taylor:0..2@mean+w8s2+decay",
        "taylor:0..1@mean",
        "taylor:0..2+w70s3",
        "power:2+decay",
        "elu1",
    ),
    *(
        "unit|identity+gc",
        "taylor:0..2|runninggate",
        "elu1|runninggate+decay",
        "drop+w8s2",
        "drop+w1",
        "exp",
        "exp+decay",
        "exp<5|runninggate",
        "relu<5",
    ),
)


EVICTING = (
    "drop+w8s2h4e16",
    "drop+w8e16",
    "taylor:0@mean3+w8s2h4e16",
    "taylor:0..1@mean2+w4h3",
    "taylor:0..2@mean+w8s2e32",
    "taylor:0..2+w8h5",
)


@pytest.mark.parametrize("name", [*KINDS, *EVICTING])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_live_bytes_are_the_formulas(name, kv_heads):
    spec = spec_of(name)
    whole = inputs(spec, length=330, heads=kv_heads, kv_heads=kv_heads, dtype=torch.float32)
    for length in (1, 5, 64, 127, 128, 129, 192, 200, 263, 300, 330):
        _, state = attend(**tokens(whole, 0, length), spec=spec, output_final_state=True)
        live = sum(t.numel() * t.element_size() for t in state.tensors.values())
        equal(state.nbytes, live, f"{name}: bytes of the live tensors")
        equal(state.nbytes, cost(spec, 3, 4, length, kv_heads=kv_heads).state_bytes, f"{name} after {length} tokens")


@pytest.mark.parametrize("name", ["taylor:0..2", "taylor:0..2@mean+w8s2", "power:2+decay", "elu1"])
def test_a_copy_of_the_moments_is_in_the_formula(name):
    spec = spec_of(name)
    _, state = attend(
        **inputs(spec, length=200, heads=3, kv_heads=3, dtype=torch.float32), spec=spec, output_final_state=True
    )
    found = cost(spec, 3, 4, 200, kv_heads=3, reads_half=True)
    equal(state.reading_half().nbytes, found.state_bytes, f"{name}: with the copy")
    equal(
        found.state_bytes - cost(spec, 3, 4, 200, kv_heads=3).state_bytes,
        state.moments.nbytes // 2,
        f"{name}: the copy",
    )


@pytest.mark.parametrize("name", [n for n in KINDS if spec_of(n).is_constant_size])
def test_a_constant_state_stays_constant(name):
    spec = spec_of(name)
    sizes = [cost(spec, 3, 4, length).state_bytes for length in (512, 576, 1024, 65536, 2**20)]
    equal(len(set(sizes)), 1, f"{name}: {sizes}")
    between = [cost(spec, 3, 4, length).state_bytes for length in range(512, 640)]
    slot = 4 * 7 + 8 + (8 if spec.log_decay else 0) + (4 if spec.needs_running_gate else 0)
    equal(max(between) - min(between), 63 * slot, f"{name}: only the keys waiting to be folded, 63 at most")
    _, state = attend(
        **inputs(spec, length=1024, heads=1, dtype=torch.float32), spec=spec, form="chunked", output_final_state=True
    )
    equal(state.nbytes, sizes[0], f"{name}: a real state")


@pytest.mark.parametrize("name", EVICTING)
def test_slots_that_keys_leave_at_fixed_positions_are_bounded(name):
    """Least right behind such a position, most right before; the same at every one of them."""
    spec = spec_of(name)
    every = spec.local.evict_every
    rounds = [[cost(spec, 3, 4, t).state_bytes for t in range(n * every, (n + 1) * every)] for n in (8, 9, 1000)]
    equal(rounds[1:], rounds[:1] * 2, f"{name}: rounds are alike")
    equal((min(rounds[0]), max(rounds[0])), (rounds[0][0], rounds[0][-1]), f"{name}: rising between")
    equal(cost(spec, 3, 4, 10**6).moment_bytes, cost(spec, 3, 4, 1).moment_bytes, f"{name}: moments of one size")


def test_which_form_auto_takes():
    sizes = {"key_width": 64, "value_width": 64}
    for name in ("softmax", "exp|l2", "exp|rms", "drop+w8s2", "exp+gi"):
        equal(choose_form(spec_of(name), num_queries=999, num_keys=999, **sizes)[0], "fused", name)
    for name in ("exp<5", "exp|count", "exp|rowsum>=1", "relu<5"):
        equal(choose_form(spec_of(name), num_queries=9999, num_keys=9999, **sizes)[0], "parallel", name)
    equal(
        choose_form(spec_of("softmax"), num_queries=9, num_keys=9, has_decay=True, **sizes)[0],
        "parallel",
        "fused attention knows no decay",
    )
    equal(
        choose_form(spec_of("based"), num_queries=1, num_keys=1, has_state=True, **sizes)[0],
        "recurrent",
        "one token against a state",
    )
    form, why = choose_form(spec_of("drop+w8h4"), num_queries=99, num_keys=99, **sizes)
    equal(form, "chunked", "slots that depend on what was read")
    holds("fixed positions" in why, why)
    for name in ("softmax", "based", "elu1"):
        holds(len(choose_form(spec_of(name), num_queries=9, num_keys=9, **sizes)[1]) > 20, "with a reason in words")


def planted(**seconds: float) -> Machine:
    return Machine(dict.fromkeys(TERMS, 0.0) | seconds, source="planted")


def test_the_choice_follows_the_constants():
    """A second for a pass over a score against 675 for a block: even at 15 keys."""
    spec, machine = spec_of("taylor:0..2"), planted(parallel_scores=1.0, chunked_blocks=675.0)
    sizes = {"key_width": 4, "value_width": 2, "machine": machine}
    # 3 passes over T^2 scores.
    for length, expected in ((14, "parallel"), (15, "parallel"), (16, "chunked"), (99, "chunked")):
        form, why = choose_form(spec, num_queries=length, num_keys=length, **sizes)
        equal(form, expected, f"{length} keys")
        work = Work(length, length, 1, 1, 4, 2)
        for terms in (parallel_terms(spec, work), chunked_terms(spec, work)):
            holds(f"{predicted_seconds(terms, machine.seconds):.3g} s" in why, f"{why} names both predictions")


def test_the_choice_counts_what_a_call_does():
    spec = spec_of("taylor:0..2@mean+w64s4")
    plain = Work(1000, 1000, heads=8, kv_heads=2, key_width=16, value_width=8)
    for terms in (parallel_terms, chunked_terms):
        base = terms(spec, plain)
        holds(set(base) <= set(TERMS), "every term has a constant")
        for change in ({"heads": 16}, {"num_queries": 2000}, {"key_width": 17}, {"value_width": 9}):
            more = terms(spec, dataclasses.replace(plain, **change))
            holds(sum(more.values()) > sum(base.values()), f"{terms.__name__}: {change} costs more")
    width = comb(16 + 2, 2) * 9
    equal(parallel_terms(spec, plain)["reads"], 0, "no state is read")
    equal(
        parallel_terms(spec, dataclasses.replace(plain, has_state=True))["reads"],
        1000 * 8 * width,
        "a read a query head",
    )
    equal(
        parallel_terms(spec, dataclasses.replace(plain, hands_back=True))["folds"],
        (1000 - 64 - 68) * 2 * width,
        "a fold a kv head for all keys but those of a block and the slots",
    )
    equal(chunked_terms(spec, plain)["chunked_blocks"], 4, "blocks of 256")


def test_so_many_scores_are_never_made_at_once():
    """However cheap: their memory is bounded."""
    machine = planted(reads=1.0)
    sizes = {"key_width": 64, "value_width": 64, "machine": machine}
    for length, heads, expected in (
        (8192, 4, "parallel"),
        (8192, 5, "chunked"),
        (2**14, 1, "parallel"),
        (2**15, 1, "chunked"),
    ):
        form, why = choose_form(spec_of("taylor:0..2"), num_queries=length, num_keys=length, heads=heads, **sizes)
        equal(form, expected, f"{length} keys, {heads} heads")
        holds(("GiB" in why) == (expected == "chunked"), why)


def test_constants_of_a_machine_are_kept_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TERMWISE_CACHE", str(tmp_path / "cache"))
    this_machine.cache_clear()
    equal(this_machine(), Machine(), "the usual constants before any calibration")
    machine = planted(reads=3.0)
    machine.save(machine_file(), cpu="some cpu")
    equal(machine_file().is_relative_to(tmp_path), True, "in the folder that is named")
    equal(dict(this_machine().seconds), dict(machine.seconds), "round trip")
    holds("measured" in this_machine().source, "and it says where from")
    this_machine.cache_clear()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"schema": 2, "seconds": {}}', '{"schema": 1, "seconds": {"reads": 1}}',
     json.dumps({"schema": 1, "seconds": dict.fromkeys(TERMS, 0.0) | {"reads": -1}}),
     json.dumps({"schema": 1, "seconds": dict.fromkeys(TERMS, 0.0) | {"reads": "1"}})],
)  # fmt: skip
def test_damaged_constants_are_left_aside_aloud(tmp_path, monkeypatch, caplog, content):
    monkeypatch.setenv("TERMWISE_CACHE", str(tmp_path))
    machine_file().write_text(content)
    this_machine.cache_clear()
    equal(this_machine(), Machine(), "the usual constants")
    equal(this_machine(), Machine(), "read once")
    equal(len(caplog.records), 1, "said once")
    holds("--calibrate" in caplog.text and str(machine_file()) in caplog.text, caplog.text)
    this_machine.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_chunked_form_holds_a_state_and_a_few_blocks():
    """16,384 tokens: never tokens x features (429 MiB at d = 32 and orders 0..3), never tokens x tokens (1 GiB)."""
    length, width = 16384, 32
    cases = {
        "orders 0..3": ("taylor:0..3!", length, width, {}),
        "both ways": ("taylor:0..2", length, width, {"causal": False}),
        "a window": ("taylor:0..2@mean+w64s4", length, width, {}),
    }
    peaks = peaks_of(cases, trains=False)
    tokens_bytes = 4 * length * width  # of one query, key, value or output tensor
    features_bytes = 4 * length * comb(width + 3, 3)
    for name, peak in peaks.items():
        holds(peak < 8 * tokens_bytes + 32 * MIB, f"{name}: {peak / MIB:.0f} MiB beside its inputs")
        holds(
            peak < features_bytes / 4,
            f"{name}: {peak / MIB:.0f} MiB, tokens x features are {features_bytes / MIB:.0f} MiB",
        )


def test_training_in_chunks_keeps_states_not_features():
    """The backward pass of the chunked form saves what lies between chunks: its saved tensors are far fewer than tokens x features."""
    spec, length = spec_of("taylor:0..3!"), 2048
    arguments = inputs(
        spec, length=length, heads=1, key_width=12, value_width=4, dtype=torch.float32, requires_grad=True
    )
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (saved.append(t.numel() * t.element_size()), t)[1], lambda t: t
    ):
        out, _ = attend(**arguments, spec=spec, form="chunked", chunk_size=64)
    features_bytes = 4 * length * comb(12 + 3, 3)
    holds(sum(saved) < features_bytes / 2, f"{sum(saved)} bytes are saved, tokens x features are {features_bytes}")
    out.sum().backward()
    close(out.detach(), attend(**arguments, spec=spec, form="parallel")[0].detach(), "fp32", "and it is right")
