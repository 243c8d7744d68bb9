"""Oracles from outside: torch's fused attention, and loops written out by hand that call nothing of the package."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from termwise.attention.forms import attend
from tests.attention.compare import all_close, close
from tests.attention.values import forms, inputs, leaves, spec_of

LENGTH = 11


def by_hand(arguments: dict, row) -> torch.Tensor:
    """(1, T, 1, e): `row(t, q, keys, values, c)` for each query of one head; keys and values are lists up to t."""
    q, k, v = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    return torch.stack([row(t, q[t], k[: t + 1], v[: t + 1]) for t in range(len(q))])[None, :, None]


def check(name: str, arguments: dict, expected: torch.Tensor) -> None:
    spec = spec_of(name)
    expected_gradients = torch.autograd.grad(expected.pow(3).sum(), list(leaves(arguments).values()), allow_unused=True)
    wanted = dict(zip(leaves(arguments), expected_gradients, strict=True))
    for form, size in (*forms(name), ("reference", None)):
        out, _ = attend(**arguments, spec=spec, form=form, chunk_size=size)
        close(out.detach(), expected.detach(), "outside", f"{name}, {form}")
        found = torch.autograd.grad(out.pow(3).sum(), list(leaves(arguments).values()), allow_unused=True)
        all_close(dict(zip(leaves(arguments), found, strict=True)), wanted, "outside", f"{name}, {form}: gradient of")


def one_head(name: str, seed: int = 0, length: int = LENGTH) -> dict:
    return inputs(spec_of(name), length=length, heads=1, seed=seed, requires_grad=True)


# torch's own attention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_softmax_is_torchs(causal, scale):
    spec = spec_of("softmax")
    arguments = inputs(spec, batch=2, length=20, heads=4, kv_heads=2, requires_grad=True)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[0, 15:] = False
    query, key, value = (arguments[n].transpose(1, 2) for n in ("query", "key", "value"))
    visible = mask[:, None, None, :].expand(2, 1, 20, 20) & (
        torch.ones(20, 20, dtype=torch.bool).tril() if causal else True
    )
    expected = scaled_dot_product_attention(
        query, key, value, attn_mask=visible, scale=scale, enable_gqa=True
    ).transpose(1, 2)
    for form, size in forms("softmax"):
        out, _ = attend(**arguments, spec=spec, form=form, chunk_size=size, causal=causal, scale=scale, key_mask=mask)
        close(out[mask].detach(), expected[mask].detach(), "outside", f"{form}")


@pytest.mark.parametrize("name", ["exp|l2", "exp|rms", "exp|layer", "exp+gi", "drop+w5s2"])
def test_norms_and_windows_of_torchs(name):
    spec = spec_of(name)
    arguments = inputs(spec, batch=2, length=20, heads=4, kv_heads=2)
    t, s = torch.arange(20)[:, None], torch.arange(20)[None]
    visible = (s <= t) & ((t - s < 5) | (s < 2) if spec.local else True)
    value = arguments["value"] * arguments["input_gate"][..., None] if spec.input_gate else arguments["value"]
    query, key, value = (x.transpose(1, 2) for x in (arguments["query"], arguments["key"], value))
    out = scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True).transpose(1, 2)
    learned = arguments["parameters"]
    if name == "exp|l2":
        out = torch.nn.functional.normalize(out, dim=-1)
    elif name == "exp|rms":
        out = torch.nn.functional.rms_norm(out, (4,), eps=1e-6) * learned["norm_weight"]
    elif name == "exp|layer":
        out = torch.nn.functional.layer_norm(out, (4,), eps=1e-5) * learned["norm_weight"] + learned["norm_bias"]
    for form, size in forms(name):
        close(attend(**arguments, spec=spec, form=form, chunk_size=size)[0], out, "outside", f"{name}, {form}")


# Loops by hand ------------------------------------------------------------------------------------------------------


def test_linear_attention():
    """Katharopoulos et al. 2020: phi(x) = elu(x) + 1, S <- S + phi(k) v^T, z <- z + phi(k), o = phi(q) S / phi(q).z"""
    arguments = one_head("linear_elu")
    q, k, v = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    memory, total, outputs = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), []
    for t in range(LENGTH):
        phi_k, phi_q = torch.nn.functional.elu(k[t]) + 1, torch.nn.functional.elu(q[t]) + 1
        memory, total = memory + phi_k[:, None] * v[t], total + phi_k
        outputs.append(phi_q @ memory / (phi_q @ total))
    check("linear_elu", arguments, torch.stack(outputs)[None, :, None])


def test_cosine_attention_with_its_gate():
    """Cottention: unit vectors over the key width; the value of the c-th key times c^-sigmoid(p); no denominator."""
    arguments = one_head("linear_cosine")
    exponent = 1 / (1 + torch.exp(-arguments["parameters"]["count_exponent"][0]))

    def row(t, q, keys, values):
        total = torch.zeros(4, dtype=torch.float64)
        for s in range(t + 1):
            cosine = (q @ keys[s]) / (q @ q).sqrt() / (keys[s] @ keys[s]).sqrt()
            total = total + cosine * values[s] * torch.exp(-exponent * math.log(s + 1))
        return total

    check("linear_cosine", arguments, by_hand(arguments, row))


def test_retention():
    """RetNet with a decay a token: S <- exp(log_decay_t) S + k v^T, o = q S; the new key is not decayed."""
    arguments = one_head("retnet")
    q, k, v = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    memory, outputs = torch.zeros(3, 4, dtype=torch.float64), []
    for t in range(LENGTH):
        memory = torch.exp(arguments["log_decay"][0, t, 0]) * memory + k[t][:, None] * v[t]
        outputs.append(q[t] @ memory)
    check("retnet", arguments, torch.stack(outputs)[None, :, None])


def test_a_window_sinks_and_a_tail_around_its_mean():
    """Slots e^x, the rest e^m (1 + (x-m) + (x-m)^2/2), m the mean score of the rest, one sum."""
    name = "taylor:0..2@mean+w3s2"
    arguments = one_head(name)

    def row(t, q, keys, values):
        scores = [q @ key / math.sqrt(3) for key in keys]
        rest = [s for s in range(t + 1) if s >= 2 and t - s >= 3]
        mean = sum(scores[s] for s in rest) / len(rest) if rest else torch.zeros((), dtype=torch.float64)
        weights = []
        for s in range(t + 1):
            y = scores[s] - mean
            weights.append(torch.exp(mean) * (1 + y + y * y / 2) if s in rest else torch.exp(scores[s]))
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    check(name, arguments, by_hand(arguments, row))


def test_a_decayed_tail_around_its_decayed_mean():
    """The same with decay: a_ts = exp(sum of log decays after s up to t) on slots and tail, and in the mean."""
    name = "taylor:0..2@mean+w2s1+decay"
    arguments = one_head(name)

    def row(t, q, keys, values):
        decay = arguments["log_decay"][0, :, 0]
        a = [torch.exp(decay[s + 1 : t + 1].sum()) for s in range(t + 1)]
        scores = [q @ key / math.sqrt(3) for key in keys]
        rest = [s for s in range(t + 1) if s >= 1 and t - s >= 2]
        mean = (
            sum(a[s] * scores[s] for s in rest) / sum(a[s] for s in rest)
            if rest
            else torch.zeros((), dtype=torch.float64)
        )
        weights = []
        for s in range(t + 1):
            y = scores[s] - mean
            weights.append(a[s] * (torch.exp(mean) * (1 + y + y * y / 2) if s in rest else torch.exp(scores[s])))
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    check(name, arguments, by_hand(arguments, row))


def test_first_order_around_the_mean_is_a_covariance():
    """Orders {0, 1} around the mean: mean(v) + cov(score, v), the population covariance."""
    name = "taylor:0..1@mean"
    arguments = one_head(name)

    def row(t, q, keys, values):
        scores = torch.stack([q @ key / math.sqrt(3) for key in keys])
        return values.mean(dim=0) + ((scores - scores.mean())[:, None] * (values - values.mean(dim=0))).mean(dim=0)

    check(name, arguments, by_hand(arguments, row))


@pytest.mark.parametrize(
    ("name", "floor", "by_count"), [("exp<5|runninggate>=1", 1.0, False), ("exp<5|runninggate*count", None, True)]
)
def test_the_running_gate_sum(name, floor, by_count):
    arguments = one_head(name)
    score = arguments["parameters"]["running_gate_score"][0, :, 0]

    def row(t, q, keys, values):
        weighted = sum(
            torch.exp((q @ key / math.sqrt(3)).clamp(max=5)) * v for key, v in zip(keys, values, strict=True)
        )
        running = torch.exp(score[: t + 1]).sum()
        running = running.clamp(min=floor) if floor else running
        return weighted / running / ((t + 1) if by_count else 1)

    check(name, arguments, by_hand(arguments, row))


def test_vector_norms():
    """L2, RMS and LayerNorm of U, written out; RMS and LayerNorm of U / c with their eps."""
    for name in ("taylor:0..2|l2", "taylor:0..2|rms", "taylor:0..2|layer", "taylor:0..2|l2e"):
        arguments = one_head(name)
        learned = arguments["parameters"]

        def row(t, q, keys, values, name=name, learned=learned):
            total = torch.zeros(4, dtype=torch.float64)
            for key, v in zip(keys, values, strict=True):
                x = q @ key / math.sqrt(3)
                total = total + (1 + x + x**2 / 2) * v
            if "l2" in name:
                return total / (total @ total).sqrt() * (4 if name.endswith("e") else 1)
            mean = total / (t + 1)
            if name.endswith("rms"):
                return learned["norm_weight"][0] * mean / ((mean @ mean) / 4 + 1e-6).sqrt()
            centred = mean - mean.sum() / 4
            return (
                learned["norm_weight"][0] * centred / ((centred @ centred) / 4 + 1e-5).sqrt() + learned["norm_bias"][0]
            )

        check(name, arguments, by_hand(arguments, row))


def test_gates_before_and_after():
    """o = g' normalize(g U): under RMS with its eps the one before nearly cancels, the one after does not."""
    for name, before in (("exp<5|count+gi+ga", False), ("exp<5|rms+gb", True), ("exp<5|identity+gi+ga", False)):
        arguments = one_head(name)

        def row(t, q, keys, values, name=name, before=before, arguments=arguments):
            gate = arguments["output_gate"][0, t, 0]
            total, mass = torch.zeros(4, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
            for s, (key, v) in enumerate(zip(keys, values, strict=True)):
                weight = torch.exp((q @ key / math.sqrt(3)).clamp(max=5))
                total, mass = (
                    total + weight * v * (arguments["input_gate"][0, s, 0] if "gi" in name else 1),
                    mass + weight,
                )
            if before:
                mean = gate * total / mass
                return arguments["parameters"]["norm_weight"][0] * mean / ((mean @ mean) / 4 + 1e-6).sqrt()
            return gate * total / ((t + 1) if "count" in name else 1)

        check(name, arguments, by_hand(arguments, row))


def test_powers_of_features_and_of_the_product():
    """(elu+1)^2 elementwise and ((elu+1).(elu+1))^2 are two values; both exist."""
    for name in ("elu1^2", "elu1:2"):
        arguments = one_head(name)

        def row(t, q, keys, values, name=name):
            phi = torch.nn.functional.elu
            if name == "elu1^2":
                weights = [((phi(q) + 1) ** 2) @ ((phi(key) + 1) ** 2) for key in keys]
            else:
                weights = [((phi(q) + 1) @ (phi(key) + 1)) ** 2 for key in keys]
            return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

        check(name, arguments, by_hand(arguments, row))


def test_squared_scores_with_decay():
    """2Mamba: (q.k)^2, row sum, decay."""
    arguments = one_head("2mamba")

    def row(t, q, keys, values):
        decay = arguments["log_decay"][0, :, 0]
        weights = [torch.exp(decay[s + 1 : t + 1].sum()) * (q @ keys[s]) ** 2 for s in range(t + 1)]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    check("2mamba", arguments, by_hand(arguments, row))


def test_a_detached_denominator_passes_no_gradient():
    arguments = one_head("softmax_detach_denom")

    def row(t, q, keys, values):
        weights = [torch.exp((q @ key / math.sqrt(3)).clamp(max=5)) for key in keys]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights).clamp(min=1).detach()

    check("softmax_detach_denom", arguments, by_hand(arguments, row))


def test_the_default_scales():
    """1/sqrt(d) for exponentials and polynomials, 1 for feature maps and powers; slots keep 1/sqrt(d); a feature map's scale is outside."""
    for name, scale in (
        ("exp", 3**-0.5),
        ("taylor:0..2", 3**-0.5),
        ("elu1", 1.0),
        ("power:2|count", 1.0),
        ("relu/sqrtd|count", 3**-0.5),
        ("taylor:0..2+w3", 3**-0.5),
    ):
        arguments = one_head(name)
        close(
            attend(**arguments, spec=spec_of(name))[0],
            attend(**arguments, spec=spec_of(name), scale=scale)[0],
            "fp64",
            name,
        )
    arguments = one_head("elu1|identity")
    q, k, v = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    weights = 0.25 * ((torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).T).tril()
    close(
        attend(**arguments, spec=spec_of("elu1|identity"), scale=0.25)[0].detach(),
        (weights @ v)[None, :, None].detach(),
        "outside",
        "a feature map's scale",
    )
