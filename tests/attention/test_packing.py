"""Packed documents of very different lengths: little padding, their own order, and nothing of one in another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from termwise.attention import packing
from termwise.attention.forms import attend
from tests.attention.compare import close, equal, holds, same_bits
from tests.attention.running import gradients
from tests.attention.slicing import tokens
from tests.attention.values import NAMES, forms, inputs, is_long_series, spec_of


def bounds_of(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(dim=0)


@given(some.lists(some.integers(1, 5000), min_size=1, max_size=200))
def test_padding_at_most_doubles_the_tokens(lengths):
    groups = [group.tolist() for group in packing.documents_of_one_length(lengths)]
    equal(sorted(i for group in groups for i in group), list(range(len(lengths))), "every document once")
    padded = sum(len(group) * max(lengths[i] for i in group) for group in groups)
    holds(padded < 2 * sum(lengths), f"{padded} padded tokens for {sum(lengths)}")
    holds(len(groups) <= max(lengths).bit_length() + 1, "few calls")


@given(some.lists(some.integers(1, 300), min_size=2, max_size=20), some.integers(1, 300))
def test_a_documents_group_depends_on_its_own_length(lengths, other):
    """Whatever the last document is, the others are grouped in the same way."""
    found = []
    for last in (lengths[-1], other):
        groups = packing.documents_of_one_length([*lengths[:-1], last])
        without = [[i for i in group.tolist() if i < len(lengths) - 1] for group in groups]
        found.append([group for group in without if group])
    equal(found[0], found[1], "groups of the documents before the last")


def test_two_long_documents_and_many_short_ones():
    """Padding 500 documents of 8 tokens to the length of the second longest would take 1.9 million tokens."""
    lengths = [4000, *[8] * 250, 3900, *[8] * 250]
    spec = spec_of("elu1")
    arguments = inputs(spec, length=sum(lengths), heads=1, dtype=torch.float32)
    shapes = []

    def recording(**rows):
        shapes.append(tuple(rows["key"].shape[:2]))
        return attend(**rows)

    call = dict.fromkeys(
        ("scale", "input_gate", "output_gate", "log_decay", "initial_state", "row_counts", "query_mask")
    )
    call |= {"causal": True, "output_final_state": False, "form": "auto", "chunk_size": None, **arguments, "spec": spec}
    out, _ = packing.attend_packed({**call, "cu_seqlens": bounds_of(lengths)}, recording)
    equal(shapes, [(2, 4000), (500, 8)], "documents and their padded length, call by call")
    for document in (0, 1, 251, 501):
        start, stop = bounds_of(lengths)[document : document + 2].tolist()
        alone = attend(**tokens(arguments, start, stop), spec=spec)[0]
        close(out[:, start:stop], alone, "fp32", f"document {document}")


LENGTHS = [3, 150, 1, 70, 3, 9, 140, 16]


@pytest.mark.parametrize(
    "name", ["taylor:0..2@mean+w8s2+decay", "elu1|runninggate+decay", "exp", "exp+decay", "2mamba"]
)
def test_states_stand_in_the_order_of_the_documents(name):
    spec, ends = spec_of(name), bounds_of(LENGTHS)
    first = inputs(spec, length=sum(LENGTHS), heads=2, requires_grad=True)
    out, state = attend(**first, spec=spec, cu_seqlens=ends, output_final_state=True)
    equal(state.with_batch_ranks().count.tolist(), LENGTHS, "real keys")
    more, after = attend(**first, spec=spec, cu_seqlens=ends, initial_state=state, output_final_state=True)
    found = gradients(torch.cat([out, more]), first)
    singles, expected = after.split(), []
    for i, (start, stop) in enumerate(zip(ends.tolist(), ends.tolist()[1:], strict=False)):
        document = tokens(first, start, stop)
        one, own = attend(**document, spec=spec, output_final_state=True)
        two, _ = attend(**document, spec=spec, initial_state=own, output_final_state=True)
        close(out[:, start:stop], one, "fp64", f"{name}: document {i}")
        close(more[:, start:stop], two, "fp64", f"{name}: document {i} once more")
        equal(singles[i].with_batch_ranks().count.tolist(), [2 * LENGTHS[i]], "real keys")
        expected.append((one, two))
    joined = torch.cat([torch.cat([pair[i] for pair in expected], dim=1) for i in (0, 1)])
    wanted = gradients(joined, first)
    for which, gradient in wanted.items():
        close(found[which], gradient, "fp64 gradient", f"{name}: gradient of {which}")


FEWER = [3, 90, 1, 70, 9]

# Values whose far keys stand in groups: how many keys a group has depends on the data.
GROUPED = tuple(f"taylor:{orders}@mean4+w8s4{more}" for orders in ("0", "0..1", "0..2") for more in ("h4", "e64"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("name", [*NAMES, *GROUPED])
def test_documents_are_apart_bit_by_bit(name, dtype):
    """Outputs, gradients and states, in every form of a value.

    The changed document's keys also move together, so that most of them have one nearest center.
    """
    spec, ends, changed = spec_of(name), bounds_of(FEWER), 1
    start, stop = ends[changed : changed + 2].tolist()
    rest = torch.ones(sum(FEWER), dtype=torch.bool)
    rest[start:stop] = False
    has_state = not is_long_series(spec)
    for number, form in enumerate(sorted({form for form, _ in forms(name)} - {"recurrent", "auto"})):
        found = []
        for factor, shift in ((1.0, 0.0), (0.1, -0.1)):
            arguments = inputs(spec, length=sum(FEWER), heads=2, seed=number, dtype=dtype)
            for which in ("key", "value"):
                arguments[which][:, start:stop] = arguments[which][:, start:stop] * factor + shift
            learning = {which: t.requires_grad_() for which, t in arguments.items() if torch.is_tensor(t)}
            out, state = attend(**arguments, spec=spec, cu_seqlens=ends, form=form, output_final_state=has_state)
            slopes = torch.autograd.grad(out.square().sum(), list(learning.values()), allow_unused=True)
            found.append((out, dict(zip(learning, slopes, strict=True)), state))
        (before, slopes, state), (after, other_slopes, other_state) = found
        what = f"{name}, {form}"
        holds(not torch.equal(after[:, ~rest], before[:, ~rest]), f"{what}: the changed document is another")
        same_bits(after[:, rest], before[:, rest], f"{what}: outputs")
        for which in slopes:
            if slopes[which] is not None and slopes[which].dim() > 1 and slopes[which].shape[1] == sum(FEWER):
                same_bits(other_slopes[which][:, rest], slopes[which][:, rest], f"{what}: gradient of {which}")
        for i, (a, b) in enumerate(zip(other_state.split(), state.split(), strict=True) if has_state else ()):
            for part in a.tensors if i != changed else ():
                same_bits(a.tensors[part], b.tensors[part], f"{what}: {part} of document {i}")
