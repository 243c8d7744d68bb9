"""Rises by replay against whole runs, proxies against autograd over the whole model."""

from __future__ import annotations

import pytest
import torch
from tests.analysis.tiny_pretrained import LENGTH, tiny, tokens
from torch.nn import functional as F

from termwise.analysis.importance import expected_loss, sweep, text_loss, true_loss
from termwise.analysis.reducing import everything, exact_attention, one_place, reduced_attention, truncation
from termwise.analysis.replacing import replaced
from termwise.analysis.replaying import record, run
from termwise.attention.spec import AttentionSpec, Local

SPEC = truncation(2, "mean", Local(3, 1))
ENCODER_SPEC = truncation(2, "mean", None)


@pytest.fixture(params=["llama", "qwen3", "gpt2 by layer", "bert"])
def model(request):
    return tiny(request.param)


def spec_for(model) -> AttentionSpec:
    return SPEC if model.is_causal else ENCODER_SPEC


def test_the_exact_spec_everywhere_is_the_model(model):
    ids = tokens(1, LENGTH)
    with torch.no_grad():
        own = run(model, ids)
        with replaced(model, everything(AttentionSpec(), is_causal=model.is_causal)):
            torch.testing.assert_close(run(model, ids), own, rtol=1e-5, atol=2e-5)


def test_a_true_loss_is_that_of_the_whole_run(model):
    ids, spec = tokens(1, LENGTH), spec_for(model)
    with torch.no_grad():
        recorded = record(model, ids)
        for layer, kv_head in ((0, None), (1, 0), (2, model.num_kv_heads - 1)):
            with replaced(model, one_place(spec, layer, kv_head, is_causal=model.is_causal)):
                whole = text_loss(model, run(model, ids), ids, recorded.result)
            assert true_loss(model, recorded, ids, spec, layer, kv_head) == pytest.approx(whole, abs=1e-6)
            assert whole != pytest.approx(text_loss(model, recorded.result, ids, recorded.result), abs=1e-6)


def test_one_head_reduced_leaves_the_others(model):
    torch.manual_seed(0)
    query = torch.randn(1, LENGTH, model.num_heads, 6)
    key, value = torch.randn(2, 1, LENGTH, model.num_kv_heads, 6)
    spec, causal = spec_for(model), {"is_causal": model.is_causal}
    exact = exact_attention(query, key, value, 0.4, **causal)
    reduced = reduced_attention(query, key, value, 0.4, spec, **causal)
    shared = model.num_heads // model.num_kv_heads
    for kv_head in range(model.num_kv_heads):
        found = one_place(spec, 1, kv_head, **causal)(1, query, key, value, 0.4)
        of = slice(kv_head * shared, (kv_head + 1) * shared)
        torch.testing.assert_close(found[:, :, of], reduced[:, :, of])
        torch.testing.assert_close(found[:, :, : of.start], exact[:, :, : of.start])
        torch.testing.assert_close(found[:, :, of.stop :], exact[:, :, of.stop :])
    assert one_place(spec, 1, None, **causal)(0, query, key, value, 0.4) is None


def test_the_sweep_gives_the_proxies_of_their_definitions(model):
    ids, spec = tokens(1, LENGTH), spec_for(model)
    with torch.no_grad():
        recorded = record(model, ids)
    outs, changes = by_autograd(model, ids, spec)
    found = {layer.number: layer for layer in sweep(model, recorded, ids, spec)}
    assert list(found) == [2, 1, 0]
    shared = model.num_heads // model.num_kv_heads
    for number, layer in found.items():
        module = model.outputs[number]
        weight = (module.weight if hasattr(module, "in_features") else module.weight.T).detach()
        for g in range(model.num_kv_heads):
            of = slice(g * shared, (g + 1) * shared)
            columns = weight[:, of.start * model.head_dim : of.stop * model.head_dim]
            error = (changes[number][0, :, of].flatten(1) @ columns.T).norm()
            whole = (outs[number][0].detach().flatten(1) @ weight.T).norm()
            assert float(layer.output_error[g]) == pytest.approx(float(error / whole), rel=1e-4)
            if model.head is None:
                assert layer.fisher is None
                continue
            dots = (outs[number].grad[0, :, of] * changes[number][0, :, of]).sum(dim=(1, 2))
            assert float(layer.fisher[g]) == pytest.approx(
                float(dots.square().sum() / (2 * LENGTH)), rel=1e-3, abs=1e-9
            )


def by_autograd(model, ids, spec):
    """Every layer's exact output with its gradient from one backward pass through the whole model, and the changes."""
    outs, changes = {}, {}

    def keep(layer, query, key, value, scale):
        out = exact_attention(query, key, value, scale, is_causal=model.is_causal)
        out.retain_grad()
        outs[layer] = out
        reduced = reduced_attention(query, key, value, scale, spec, is_causal=model.is_causal)
        changes[layer] = (reduced - out).detach()
        return out

    with replaced(model, keep):
        result = run(model, ids)
    if model.head is not None:
        F.cross_entropy(result[0, :-1], ids[0, 1:], reduction="sum").backward()
    return outs, changes


def test_losses_of_texts():
    model, encoder = tiny("llama"), tiny("bert")
    ids = tokens(1, LENGTH)
    even = torch.zeros(1, LENGTH, 40)
    assert text_loss(model, even, ids) == pytest.approx(torch.log(torch.tensor(40.0)).item())
    assert expected_loss(even) == pytest.approx(torch.log(torch.tensor(40.0)).item(), rel=1e-6)
    hidden = torch.ones(1, LENGTH, 24)
    assert text_loss(encoder, hidden, ids) == 0
    assert text_loss(encoder, hidden * 1.5, ids, hidden) == pytest.approx(0.5)
