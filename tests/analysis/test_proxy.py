"""A model under a plan, and the proxies, against brute force on tiny models."""

from __future__ import annotations

import pytest
import torch
from tests.analysis.tiny_pretrained import tiny, tokens
from torch.nn.functional import cross_entropy, log_softmax

import termwise as tw
from termwise.analysis.options import EXACT, uniform
from termwise.analysis.proxy import layer_keys, proxies
from termwise.analysis.replacing import replaced
from termwise.analysis.replanned import num_unscored, passed_through, replayed, scored, under_plan
from termwise.attention.kernels import Drop, Polynomial
from termwise.attention.spec import AttentionSpec, Local

LENGTH = 60
FAMILIES = ("llama", "qwen3", "smollm3")
HEAVY = AttentionSpec(Drop(), local=Local(6, 2, heavy=4, evict_every=8))
GROUPED = AttentionSpec(Polynomial((0,), center="mean", centers=3), local=Local(6, 2, heavy=4, evict_every=8))
MEAN = AttentionSpec(Polynomial((0, 1), center="mean"), local=Local(6, 2, evict_every=8))


def centers_of(pretrained, ids):
    keys = list(layer_keys(pretrained, ids))
    return {(layer, head, 3): key[:3, head].clone() for layer, key in enumerate(keys) for head in range(key.shape[1])}


def alone(pretrained, layer, head, spec):
    layers = [[EXACT] * pretrained.num_kv_heads for _ in range(pretrained.num_layers)]
    layers[layer][head] = spec
    return layers


@pytest.mark.parametrize("family", FAMILIES)
def test_the_exact_plan_is_the_model(family):
    pretrained, ids = tiny(family), tokens(1, LENGTH)
    first = num_unscored(LENGTH)
    with torch.no_grad():
        logits = pretrained.model(input_ids=ids).logits[0]
    expected = cross_entropy(logits[first - 1 : -1], ids[0, first:], reduction="none")
    everything = [[EXACT] * pretrained.num_kv_heads] * pretrained.num_layers
    for compute in (None, under_plan(everything, {})):
        torch.testing.assert_close(scored(pretrained, ids, compute), expected, rtol=1e-5, atol=1e-5)
    assert len(expected) == LENGTH // 2


def test_every_head_runs_its_own_spec():
    pretrained, ids = tiny("llama"), tokens(1, LENGTH)
    centers = centers_of(pretrained, ids)
    plan = [[HEAVY, EXACT], [GROUPED, MEAN], [uniform(LENGTH, 0.4), GROUPED]]
    seen = {}

    def by_hand(layer, query, key, value, scale):
        out = []
        for head, spec in enumerate(plan[layer]):
            given = {"centers": centers[layer, head, 3][None]} if spec == GROUPED else None
            rows = slice(2 * head, 2 * head + 2)
            one = key[:, :, head : head + 1], value[:, :, head : head + 1]
            out.append(tw.attend(query[:, :, rows], *one, spec, scale=scale, parameters=given, form="reference")[0])
        seen[layer] = torch.cat(out, dim=2)
        return seen[layer]

    expected = scored(pretrained, ids, by_hand)
    found = scored(pretrained, ids, under_plan(plan, centers))
    assert set(seen) == {0, 1, 2}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (found - scored(pretrained, ids)).abs().max() > 0.01


@pytest.mark.parametrize("layer", range(3))
def test_replay_from_a_layer_is_the_whole_run(layer):
    pretrained, ids = tiny("llama"), tokens(1, LENGTH)
    compute = under_plan(alone(pretrained, layer, 1, HEAVY), {})
    found = replayed(pretrained, passed_through(pretrained, ids), ids, layer, compute)
    torch.testing.assert_close(found, scored(pretrained, ids, compute), rtol=1e-5, atol=1e-5)


def drawn_gradients(pretrained, ids, seed):
    """Gradient at every layer's attention output (L, T, H, e), by one backward pass through the whole model."""
    probes, outputs = [], []

    def compute(layer, query, key, value, scale):
        out = tw.attend(query, key, value, EXACT, scale=scale)[0]
        outputs.append(out.detach())
        probes.append(torch.zeros_like(out, requires_grad=True))
        return out + probes[-1]

    first = num_unscored(ids.shape[1])
    with replaced(pretrained, compute):
        logs = log_softmax(pretrained.model(input_ids=ids).logits[0, first - 1 : -1].float(), dim=-1)
    labels = torch.multinomial(logs.detach().exp(), 1, generator=torch.Generator().manual_seed(seed))
    (-logs.gather(1, labels).sum()).backward()
    return [probe.grad[0] for probe in probes], [out[0] for out in outputs]


@pytest.mark.parametrize("family", FAMILIES)
def test_proxies_are_their_definition(family):
    pretrained, ids = tiny(family), tokens(1, LENGTH)
    pretrained.model.requires_grad_(False)
    centers, given = centers_of(pretrained, ids), [EXACT, HEAVY, GROUPED, MEAN]
    found = proxies(pretrained, ids, given, centers, seed=3)
    gradients, outputs = drawn_gradients(pretrained, ids, seed=3)
    for layer in range(pretrained.num_layers):
        changed = []
        for number, spec in enumerate(given):

            def keep(at, query, key, value, scale, spec=spec, layer=layer, changed=changed):
                if at != layer:
                    return None
                several = spec.kernel.centers > 1
                own = (
                    {"centers": torch.stack([centers[at, head, 3] for head in range(key.shape[2])])}
                    if several
                    else None
                )
                changed.append(tw.attend(query, key, value, spec, scale=scale, parameters=own)[0][0])
                return None

            scored(pretrained, ids, keep)
            delta = changed[-1] - outputs[layer]
            weight = pretrained.outputs[layer].weight
            for head in range(pretrained.num_kv_heads):
                rows = slice(2 * head, 2 * head + 2)
                pull = (gradients[layer][:, rows] * delta[:, rows]).sum(dim=(1, 2))
                rise = float(pull.square().sum()) / (2 * (LENGTH // 2))
                only = torch.zeros_like(delta)
                only[:, rows] = delta[:, rows]
                change = float((only.flatten(1) @ weight.T).norm() / (outputs[layer].flatten(1) @ weight.T).norm())
                assert float(found.rise[layer, head, number]) == pytest.approx(rise, rel=2e-3, abs=1e-9)
                assert float(found.change[layer, head, number]) == pytest.approx(change, rel=1e-3, abs=1e-5)
    assert float(found.rise[..., 0].abs().max()) == 0.0
    assert float(found.rise[..., 1:].min()) > 0.0
