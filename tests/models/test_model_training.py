"""Losses, gradient checkpointing, row counts, Trainer and PEFT."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VARIANTS, error, small, tokens
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from termwise.models import TermwiseCache


def test_the_loss_follows_transformers():
    model, ids = small(), tokens(2, 9)
    labels = ids.clone()
    labels[0, :4] = -100
    logits = model(ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert error(model(ids, labels=labels).loss, expected) < 1e-6
    count = int((labels[:, 1:] != -100).sum())
    assert error(model(ids, labels=labels, num_items_in_batch=2 * count).loss, expected / 2) < 1e-6
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    assert error(model(ids, shift_labels=shifted).loss, expected) < 1e-6


def test_no_label_is_scored_across_a_boundary_or_after_padding():
    model = small("power:2+decay")
    rows = [tokens(5, seed=1), tokens(9, seed=2)]
    alone = [model(row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    expected = sum(alone) / 12
    packed = torch.cat(rows)[None]
    assert error(model(packed, labels=packed, cu_seqlens=torch.tensor([0, 5, 14])).loss, expected) < 1e-5
    positions = torch.cat([torch.arange(5), torch.arange(9)])[None]
    assert error(model(packed, labels=packed, position_ids=positions).loss, expected) < 1e-5
    for side in ("left", "right"):
        ids, mask = torch.zeros(2, 11, dtype=torch.long), torch.zeros(2, 11, dtype=torch.long)
        for i, row in enumerate(rows):
            place = slice(11 - len(row), 11) if side == "left" else slice(0, len(row))
            ids[i, place], mask[i, place] = row, 1
        assert error(model(ids, labels=ids, attention_mask=mask).loss, expected) < 1e-5


def test_a_pad_that_is_eos_keeps_its_label_at_true_ends():
    """Token 2 ends the text and pads it: the real one is scored and its embedding learns."""
    model = small(pad_token_id=2, eos_token_id=2)
    ids = torch.tensor([[5, 6, 2, 2, 2]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    loss = model(ids, labels=ids, attention_mask=mask).loss
    assert error(loss, model(ids[:, :3], labels=ids[:, :3]).loss) < 1e-6
    with_two_inside = torch.tensor([[5, 2, 6]])
    model(with_two_inside, labels=with_two_inside).loss.backward()
    assert bool((model.model.embed_tokens.weight.grad[2] != 0).any())


def test_logits_to_keep():
    model, ids = small(), tokens(2, 9)
    full = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, full[:, -3:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([1, 4])).logits, full[:, [1, 4]])
    places = torch.tensor([[0, 8], [2, 3]])
    torch.testing.assert_close(
        model(ids, logits_to_keep=places).logits, torch.stack([full[0, [0, 8]], full[1, [2, 3]]])
    )
    chosen = torch.zeros(2, 9, dtype=torch.bool)
    chosen[0, 1] = chosen[1, 5] = True
    torch.testing.assert_close(model(ids, logits_to_keep=chosen).logits, torch.stack([full[0, 1], full[1, 5]]))


def test_hidden_states_and_tuples():
    model, ids = small("exp<5|layer+gi+ga"), tokens(2, 9)
    out = model(ids, output_hidden_states=True)
    assert [tuple(h.shape) for h in out.hidden_states] == [(2, 9, 32)] * 3
    assert torch.equal(model.lm_head(out.hidden_states[-1]), out.logits)
    assert torch.equal(model(ids, return_dict=False)[0], out.logits)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradient_checkpointing_changes_nothing(name):
    model, ids = small(name).train(), tokens(2, 20)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(ids, labels=ids).loss, parameters)
    model.gradient_checkpointing_enable()  # renamed in transformers 6
    assert model.model.layers[0].gradient_checkpointing
    got = torch.autograd.grad(model(ids, labels=ids).loss, parameters)
    for a, b in zip(got, expected, strict=True):
        assert error(a, b) < 1e-5 or torch.equal(a, b)
    with pytest.raises(ValueError, match="exclude each other"):
        model(ids, cache=TermwiseCache(2))


@pytest.mark.parametrize("name", VARIANTS)
def test_mixed_precision(name):
    """bfloat16 autocast around fp32 weights, as training on a card: close to fp32, gradients finite."""
    model, ids = small(name, initializer_range=0.05).train(), tokens(2, 20)
    exact = model(ids).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(ids, labels=ids)
    assert error(out.logits.float(), exact) < 0.03
    out.loss.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_training_makes_no_cache():
    model, ids = small().train(), tokens(1, 9)
    assert model(ids).cache is None
    assert model(ids, use_cache=True).cache.get_seq_length() == 9
    assert model.eval()(ids, cu_seqlens=torch.tensor([0, 4, 9])).cache is None


@torch.no_grad()
def test_rows_are_counted_by_layer_and_head():
    model, ids = small("taylor:0..1!"), tokens(3, 40)
    with model.count_rows() as counts:
        model(ids, use_cache=False)
        model(ids, attention_mask=(torch.arange(40) < 10).long().expand(3, -1), use_cache=False)
    assert set(counts) == {0, 1}
    for layer in counts.values():
        assert layer.rows.tolist() == [3 * 40 + 3 * 10] * 4
    assert sum(int(layer.negative.sum()) for layer in counts.values()) > 0
    model(ids)
    assert counts[0].rows.tolist() == [150] * 4


@pytest.mark.parametrize("name", ["elu1", "taylor:0..2", "taylor:0..2@mean+w8s2", "power:2+decay"])
@torch.no_grad()
def test_a_decode_step_costs_the_same_at_any_length(name):
    """Operations of one step after 300 and 1,516 tokens, counted by torch."""
    model = small(name)
    cache, operations = TermwiseCache(2), []
    for length in (300, 1216):
        model(tokens(1, length), cache=cache)
        with FlopCounterMode(display=False) as counter:
            model(tokens(1, 1), cache=cache.copy())
        operations.append(counter.get_total_flops())
    assert operations[0] == operations[1] > 0


def test_trainer_trains_and_saves(tmp_path):
    from transformers import Trainer, TrainingArguments

    from termwise.models import load

    model = small("taylor:0..2").train()
    rows = [
        {"input_ids": row, "labels": row.clone(), "attention_mask": torch.ones(12, dtype=torch.long)}
        for row in tokens(1, 12).repeat(16, 1)
    ]
    settings = TrainingArguments(
        str(tmp_path), max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2, report_to=[],
        save_strategy="no", use_cpu=True, logging_steps=1, disable_tqdm=True, gradient_checkpointing=True,
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=rows, eval_dataset=rows[:4])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.5 * losses[0]
    assert trainer.evaluate()["eval_loss"] < losses[0]
    trainer.save_model(tmp_path / "model")
    again, _ = load(tmp_path / "model")
    assert torch.equal(again(tokens(1, 12)).logits, model.eval()(tokens(1, 12)).logits)


def test_lora_trains_merges_and_generates(tmp_path):
    peft = pytest.importorskip("peft")
    model = small("exp<5|layer+gi+ga")
    ids = tokens(2, 9)
    before = model(ids).logits.detach()
    settings = peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj", "input_gate_proj"], task_type="CAUSAL_LM", init_lora_weights=False
    )
    tuned = peft.get_peft_model(model, settings)
    tuned.train()(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids)).loss.backward()
    with_gradient = {n for n, p in tuned.named_parameters() if p.grad is not None}
    assert with_gradient
    assert all("lora_" in n for n in with_gradient)
    tuned.eval()
    after = tuned(input_ids=ids).logits.detach()
    assert error(after, before) > 1e-3
    out = tuned.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(small("exp<5|layer+gi+ga"), tmp_path)
    assert torch.equal(again(input_ids=ids).logits, after)
    merged = tuned.merge_and_unload()
    assert error(merged(ids).logits, after) < 1e-5
    assert torch.equal(merged.generate(ids, max_new_tokens=4, do_sample=False), out)
