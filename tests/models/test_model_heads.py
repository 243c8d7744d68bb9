"""Heads of one layer that run different specs: each computes what it would alone, and each keeps its own kind of state."""

from __future__ import annotations

import pytest
import torch
from tiny_models import error, heads, small, tokens

from termwise.attention.names import parse
from termwise.models import TermwiseCache, TermwiseConfig, load
from termwise.models.groups import HeadGroup, layer_groups

SHAPE = dict(
    vocab_size=17, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4,
)  # fmt: skip
NAMES = ("exp", "taylor:0..2@mean+w8s2", "drop+w8s2", "taylor:0..2")


def head_outputs(model, ids):
    """(B, T, H, d) what the heads of the first layer hand to the output projection."""
    seen = []
    handle = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(ids, use_cache=False)
    handle.remove()
    return seen[0].unflatten(2, (model.config.num_attention_heads, -1))


@torch.no_grad()
def test_every_head_computes_what_it_would_in_a_layer_of_its_spec():
    ids, shape = tokens(2, 70), {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 1}
    mixed = head_outputs(small("softmax", attention=[heads(*NAMES)], **shape), ids)
    for head, name in enumerate(NAMES):
        alone = head_outputs(small(name, **shape), ids)
        own = slice(2 * head, 2 * head + 2)
        assert error(mixed[:, :, own], alone[:, :, own]) < 1e-6
        others = [i for i in range(8) if not own.start <= i < own.stop]
        assert error(mixed[:, :, others], alone[:, :, others]) > 1e-3


@torch.no_grad()
def test_exact_heads_keep_a_growing_cache_and_the_others_a_constant_state():
    model = small("softmax", attention=[heads("exp", "taylor:0..2@mean+w8s2"), heads("drop+w8s2", "exp")])
    sizes = {}
    for length in (300, 1516):  # 64 divides the difference: buffers are in the same phase
        cache = TermwiseCache(2)
        model(tokens(1, length - 1), cache=cache)
        model(tokens(1, 1), cache=cache)
        sizes[length] = [[state.key.shape[2] for state in layer.states] for layer in cache.layers]
        assert [[len(state.spec.short_name) > 3 for state in layer.states] for layer in cache.layers] == [
            [False, True],
            [True, False],
        ]
    assert (sizes[300][0][0], sizes[300][1][1]) == (300, 300)
    assert (sizes[1516][0][0], sizes[1516][1][1]) == (1516, 1516)
    assert (sizes[300][0][1], sizes[300][1][0]) == (sizes[1516][0][1], sizes[1516][1][0])


def test_heads_of_one_spec_are_one_group_with_plain_names():
    spec = parse("taylor:0..2|layer+gi+ga")
    alike = [{"kv_heads": [1], "spec": spec}, {"kv_heads": [0], "spec": spec.to_dict()}]
    model, plain = small("softmax", attention=[alike, alike]), small("taylor:0..2|layer+gi+ga")
    assert model.config.attention == [spec.to_dict()] * 2
    assert list(model.state_dict()) == list(plain.state_dict())
    assert torch.equal(model(tokens(1, 9)).logits, plain(tokens(1, 9)).logits)


def test_parameters_of_a_group_have_the_size_of_its_heads_and_names_that_survive(tmp_path):
    names = ("taylor:0..2|layer+gi+ga", "exp", "unit|identity+gc", "taylor:0..2|layer+gi+ga")
    shape = {"num_attention_heads": 8, "num_key_value_heads": 4}
    model = small("softmax", attention=[heads(*names), heads("exp", "exp", "exp", "drop+w8s2")], **shape)
    held = {name: tuple(p.shape) for name, p in model.named_parameters() if ".groups." in name}
    first = "model.layers.0.self_attn.groups."
    assert held == {
        first + "0.norm_weight": (4, 4),
        first + "0.norm_bias": (4, 4),
        first + "0.input_gate_proj.weight": (2, 32),
        first + "0.input_gate_proj.bias": (2,),
        first + "0.output_gate_proj.weight": (4, 32),
        first + "0.output_gate_proj.bias": (4,),
        first + "2.count_exponent": (1,),
    }
    model.save_pretrained(tmp_path)
    again, _ = load(tmp_path)
    assert again.config.groups == model.config.groups
    assert torch.equal(again(tokens(2, 9)).logits, model(tokens(2, 9)).logits)


@torch.no_grad()
def test_rows_are_counted_for_the_heads_that_sum_them():
    model = small("softmax", attention=[heads("taylor:0..2", "exp<5|layer"), heads("exp", "taylor:0..3!")])
    with model.count_rows() as counts:
        model(tokens(2, 30), use_cache=False)
    assert counts[0].rows.tolist()[:2] == [60, 60]
    assert counts[1].rows.tolist() == [60] * 4
    assert counts[1].negative[:2].tolist() == [0, 0]
    assert int(counts[1].negative[2:].sum()) > 0


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([{"kv_heads": [0, 1], "spec": {}}], "kv heads .2, 3. not at all"),
        ([{"kv_heads": [0, 1, 2, 3, 3], "spec": {}}], "kv heads .3. twice"),
        ([{"kv_heads": [0, 1, 2, 3, 4], "spec": {}}], "kv heads .4. that are not there"),
        ([{"kv_heads": [], "spec": {}}], "a list of whole numbers"),
        ([{"kv_heads": [True], "spec": {}}], "a list of whole numbers"),
        ([{"heads": [0], "spec": {}}], "a group of heads is"),
        ([{"kv_heads": [0, 1, 2, 3], "spec": {"kernle": {}}}], "did you mean 'kernel'"),
        ([{"kv_heads": [0, 1, 2, 3], "spec": "exp"}], "no table of fields"),
        ([], "not at all"),
    ],
)
def test_wrong_groups_are_refused(groups, says):
    with pytest.raises(ValueError, match=rf"attention\[1\]: .*{says}"):
        TermwiseConfig(**SHAPE, attention=[{}, groups])


def test_a_layer_of_several_specs_has_no_one_spec():
    config = TermwiseConfig(**SHAPE, attention=[{}, heads("exp", "exp", "drop+w8", "exp")])
    assert config.groups[1] == (HeadGroup((0, 1, 3), parse("exp")), HeadGroup((2,), parse("drop+w8")))
    assert layer_groups(config.attention[1], 4) == config.groups[1]
    with pytest.raises(ValueError, match="layer 1 has 2 specs"):
        _ = config.specs
