"""Planted faults: each is a mistake that a cache, a state or a form could make, and each must be found and placed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from small_exam import examined, small

from termwise.attention import compiled_step, forms, reading
from termwise.attention.kernels import Polynomial
from termwise.attention.normalizers import RowSum
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState
from termwise.evaluation import agreement
from termwise.evaluation.judging import Outcome
from termwise.models import backbone, convolution, layers
from termwise.models.cache import LayerCache, TermwiseCache

MEAN = "taylor:0..2@mean+w16s4"
DECAY = "power:2+decay"


def first_failure(model: Any, stage: str = "float64") -> tuple[str, Outcome] | None:
    """The first of all checks of a stage that fails."""
    exam = examined(model, stage)
    for _, check in agreement.planned([stage], is_quick=True):
        outcome = agreement.run_check(check, exam)
        if outcome.status == "failed":
            return check.name, outcome
    return None


def through(monkeypatch, change):
    """The layers' attention with changed arguments."""
    original = forms.attend

    def attend(query, key, value, spec, **given):
        return original(**change({"query": query, "key": key, "value": value, "spec": spec, **given}))

    monkeypatch.setattr(layers, "attend", attend)


def forgets_the_mask(monkeypatch):
    through(monkeypatch, lambda given: given | ({"key_mask": None} if given["output_final_state"] else {}))


def restarts_positions(monkeypatch):
    original = backbone.arrange
    monkeypatch.setattr(
        backbone, "arrange", lambda *a, **k: original(*a, **k | ({"offset": None} if "offset" in k else {}))
    )


def permutes_kv_heads(monkeypatch):
    through(
        monkeypatch, lambda given: given | ({"key": given["key"].flip(2)} if given["initial_state"] is not None else {})
    )


def folds_a_little_too_much(monkeypatch):
    from termwise.attention import blocks, folding

    def fold(state, target, is_ours=False, original=folding.fold):
        done = original(state, target, is_ours)
        if done.moments is None or not bool((done.boundary > state.boundary).any()):
            return done
        return dataclasses.replace(done, moments=1.001 * done.moments)

    monkeypatch.setattr(blocks, "fold", fold)
    monkeypatch.setattr(compiled_step, "fold", fold)


def leaks_one_key_early(monkeypatch):
    def visible(state, queries):
        return ((state.rank >= 0)[:, None, :] & (state.rank[:, None, :] <= queries.rank[:, :, None] + 1))[:, None, None]

    monkeypatch.setattr(reading, "_visible", visible)


def drops_sinks_of_a_filled_state(monkeypatch):
    def change(given):
        state = given["initial_state"]
        if state is None or state.count.max() < 100:
            return given
        return given | {
            "initial_state": dataclasses.replace(state, rank=torch.where(state.rank == 0, -1, state.rank), room=None)
        }

    through(monkeypatch, change)


def decays_twice_at_a_border(monkeypatch):
    def change(given):
        if given["initial_state"] is None or given["log_decay"] is None:
            return given
        decay = given["log_decay"].clone()
        decay[:, 0] *= 2
        return given | {"log_decay": decay}

    through(monkeypatch, change)


def rounds_its_sums(monkeypatch):
    original = forms.attend

    def attend(*arguments, **given):
        out, state = original(*arguments, **given)
        if state is not None and state.moments is not None:
            state = dataclasses.replace(state, moments=state.moments.bfloat16().to(state.moments.dtype))
        return out, state

    monkeypatch.setattr(layers, "attend", attend)


def shares_a_cache_between_beams(monkeypatch):
    def permute(self, indices, original=AttentionState.permute):
        return original(self, torch.arange(len(indices)) % self.batch_size)

    monkeypatch.setattr(AttentionState, "permute", permute)


def crops_one_token_too_few(monkeypatch):
    def crop(self, count, original=LayerCache.crop):
        original(self, count + 1 if count < -1 else count)

    monkeypatch.setattr(LayerCache, "crop", crop)


def skips_the_gate_in_a_step(monkeypatch):
    def change(given):
        is_step = given["query"].shape[1] == 1
        return given | ({"output_gate": torch.ones_like(given["output_gate"])} if is_step else {})

    through(monkeypatch, change)


def has_another_eps_in_the_cached_path(monkeypatch):
    def change(given):
        spec = given["spec"]
        if given["initial_state"] is None:
            return given
        wider = dataclasses.replace(spec, normalizer=dataclasses.replace(spec.normalizer, eps=2 * spec.normalizer.eps))
        return given | {"spec": wider, "initial_state": dataclasses.replace(given["initial_state"], spec=wider)}

    original = forms.attend

    def attend(query, key, value, spec, **given):
        out, state = original(**change({"query": query, "key": key, "value": value, "spec": spec, **given}))
        return out, None if state is None else dataclasses.replace(state, spec=spec)

    monkeypatch.setattr(layers, "attend", attend)


def branches_share_their_layers(monkeypatch):
    monkeypatch.setattr(TermwiseCache, "copy", lambda self: self)


def convolves_with_an_old_past(monkeypatch):
    def next_past(x, layout, past, size, is_recording, original=convolution.next_past):
        return original(x, layout, past, size, is_recording) * 0.99

    monkeypatch.setattr(layers, "next_past", next_past)


def loses_a_tensor_of_a_file(monkeypatch):
    @classmethod
    def load(cls, path, device="cpu", original=AttentionState.load.__func__):
        state = original(cls, path, device)
        return dataclasses.replace(state, decayed_count=torch.zeros_like(state.decayed_count))

    monkeypatch.setattr(AttentionState, "load", load)


FAULTS = {
    forgets_the_mask: ("exp<5|layer+gi+ga", {}),
    restarts_positions: ("softmax", {}),
    permutes_kv_heads: (MEAN, {}),
    folds_a_little_too_much: ("taylor:0..2", {}),
    leaks_one_key_early: ("taylor:0..2", {}),
    drops_sinks_of_a_filled_state: (MEAN, {}),
    decays_twice_at_a_border: (DECAY, {}),
    rounds_its_sums: ("elu1", {}),
    shares_a_cache_between_beams: ("softmax", {}),
    crops_one_token_too_few: ("elu1", {}),
    skips_the_gate_in_a_step: ("exp<5|layer+gi+ga", {}),
    has_another_eps_in_the_cached_path: (
        "taylor:0..2",
        {"attention": AttentionSpec(Polynomial((0, 1, 2)), RowSum(eps=1e-6))},
    ),
    branches_share_their_layers: ("elu1", {}),
    convolves_with_an_old_past: ("elu1", {"layer_options": {"conv_size": 3}}),
    loses_a_tensor_of_a_file: (MEAN, {}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault, monkeypatch):
    name, overrides = FAULTS[fault]
    model = small(name, **overrides)
    fault(monkeypatch)
    found = first_failure(model)
    assert found is not None
    # By a comparison, not by an exception.
    assert "differs from" in str(found[1].reason)
