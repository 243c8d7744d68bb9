"""What a kv head may keep, and what it costs."""

from __future__ import annotations

import pytest
import torch

import termwise as tw
from termwise.analysis.options import EXACT, kind_of, num_slots, options, served_bytes, uniform
from termwise.attention.kernels import Drop, Polynomial
from termwise.attention.spec import AttentionSpec, Local


def spec(kernel, **slots):
    return AttentionSpec(kernel, local=Local(**slots))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_option_is_cheaper_than_the_cache_and_of_a_known_kind(dtype):
    found = options(4096, 64, 64, dtype)
    assert found[0] == EXACT and len(set(found)) == len(found)
    whole = served_bytes(EXACT, 4096, 64, 64, dtype)
    assert all(served_bytes(one, 4096, 64, 64, dtype) < whole for one in found[1:])
    assert {kind_of(one) for one in found} == {"exact", "slots", "mean", "centers"}
    assert {one.local.evict_every for one in found[1:]} == {64}


def test_slots_alone_come_in_every_size_beside_sums():
    sizes = {kind: [] for kind in ("exact", "slots", "mean", "centers")}
    for one in options(4096, 64, 64, "bfloat16"):
        sizes[kind_of(one)].append(served_bytes(one, 4096, 64, 64, "bfloat16"))
    for size in sizes["centers"] + sizes["mean"]:
        assert any(abs(size - other) < 0.02 * size for other in sizes["slots"])


def test_bytes_are_slots_in_the_cache_s_precision_and_sums_in_fp32():
    pair = 64 + 64
    assert served_bytes(EXACT, 1000, 64, 64, "bfloat16") == 2 * pair * 1000
    assert served_bytes(uniform(1000, 0.1), 1000, 64, 64, "float32") == 4 * pair * 100
    lazy = spec(Drop(), window=10, sinks=4, heavy=6, evict_every=16)
    assert num_slots(lazy) == 10 + 4 + 6 + 15
    assert served_bytes(lazy, 1000, 64, 64, "bfloat16") == num_slots(lazy) * (2 * pair + 4)
    grouped = spec(Polynomial((0,), center="mean", centers=8), window=10, evict_every=16)
    assert served_bytes(grouped, 1000, 64, 64, "bfloat16") == 25 * 2 * pair + 8 * 4 * (64 + 1 + 64 + 1)
    assert served_bytes(lazy, 20, 64, 64, "bfloat16") == 20 * (2 * pair + 4)


@pytest.mark.parametrize(
    "kernel", [Drop(), Polynomial((0,), center="mean", centers=4), Polynomial((0, 1), center="mean")]
)
def test_slots_and_sums_are_what_the_state_holds(kernel):
    """The largest buffer over a text has `num_slots` keys; the sums are the state's moments, mass and counts."""
    one = spec(kernel, window=5, sinks=2, heavy=3, evict_every=8)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 40, 1, 6, generator=generator) for _ in range(3))
    centers = key[0, :4, 0][None] if kernel.centers > 1 else None
    parameters = None if centers is None else {"centers": centers}
    largest, state = 0, None
    for t in range(40):
        here = slice(t, t + 1)
        _, state = tw.attend(
            query[:, here], key[:, here], value[:, here], one, parameters=parameters, initial_state=state,
            output_final_state=True,
        )  # fmt: skip
        largest = max(largest, state.key.shape[2])
    assert largest == num_slots(one)
    sums = (
        0 if state.moments is None else 4 * (state.moments.numel() + state.mass.numel() + state.decayed_count.numel())
    )
    own_reference = 4 * 6 if one.has_tail and kernel.centers == 1 else 0
    slots = num_slots(one) * (4 * 12 + 4)
    assert served_bytes(one, 40, 6, 6, "float32") == slots + sums + own_reference
    _, full = tw.attend(query[:, :39], key[:, :39], value[:, :39], one, parameters=parameters, output_final_state=True)
    # As the package runs it: the rank of each slot, two counts, and of dropped keys their number.
    beside = 0 if one.has_tail else 4
    live = served_bytes(one, 39, 6, 6, "float32") + 8 * num_slots(one) + 16 + beside
    assert full.nbytes == live == tw.cost(one, 6, 6, 39).state_bytes


def test_other_specs_are_no_options():
    with pytest.raises(ValueError, match="no option of a plan"):
        kind_of(AttentionSpec(Polynomial((0, 1, 2))))
