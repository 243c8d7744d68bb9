"""Held-out loss and recall against brute force; models that leak get no score."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from termwise.data import synthetic
from termwise.evaluation import check_causal, held_out_loss, in_context_recall, recall_accuracy, recall_by_distance
from termwise.models import build

VOCAB = 23


def small(name="softmax", **overrides):
    shape = dict(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    return build(name, preset="tiny", vocab_size=VOCAB, seed=1, **shape | overrides)


class FakeText:
    """Documents of given lengths, cut into windows as a part of a text is."""

    vocab_size = VOCAB

    def __init__(self, lengths, byte_level=True):
        random = np.random.default_rng(0)
        self.documents = [random.integers(0, VOCAB, n) for n in lengths]
        self.bytes_of = np.arange(VOCAB) % 4 if byte_level else None

    def token_bytes(self, vocab_size):
        return self.bytes_of

    document_bytes = property(lambda self: np.array([100] * len(self.documents)))
    document_lengths = property(lambda self: np.array([len(d) for d in self.documents]))

    def windows(self, context):
        for index, ids in enumerate(self.documents):
            for start in range(0, len(ids) - 1, context):
                end = min(start + context, len(ids) - 1)
                yield SimpleNamespace(
                    document=index, start=start, input_ids=ids[start:end], labels=ids[start + 1 : end + 1]
                )


def brute_force(model, text, context):
    """One window at a time, in float64 sums: nats of each label, with its document and place."""
    model.eval()
    found = []
    for window in text.windows(context):
        with torch.no_grad():
            logs = model(torch.tensor(window.input_ids)[None]).logits[0].log_softmax(dim=-1)
        found += [
            (window.document, place, -float(logs[place, label]), label) for place, label in enumerate(window.labels)
        ]
    return found


@pytest.mark.parametrize("name", ["softmax", "taylor:0..2@mean+w8s2"])
@pytest.mark.parametrize("num_rows", [1, 3, 8])
def test_held_out_loss_equals_brute_force_whatever_the_batch(name, num_rows):
    model, text = small(name), FakeText([40, 2, 17, 1, 33])
    expected = brute_force(model, text, 16)
    model.train()
    result = held_out_loss(model, text, context=16, num_rows=num_rows)
    assert model.training
    total = math.fsum(nats for _, _, nats, _ in expected)
    assert result.num_tokens == len(expected) == 39 + 1 + 16 + 32
    assert result.nats_per_token == pytest.approx(total / len(expected), rel=1e-6)
    num_bytes = sum(label % 4 for *_, label in expected)
    assert result.bits_per_byte == pytest.approx(total / math.log(2) / num_bytes, rel=1e-6)
    assert [d.document for d in result.per_document] == [0, 1, 2, 4]
    for document in result.per_document:
        assert document.sum_nats == pytest.approx(
            math.fsum(n for d, _, n, _ in expected if d == document.document), rel=1e-6
        )
    for place in range(16):
        assert result.by_position[place] == pytest.approx(
            np.mean([n for _, p, n, _ in expected if p == place]), rel=1e-6
        )


def test_loss_without_lengths_of_tokens_uses_bytes_of_documents():
    model, text = small(), FakeText([41, 21], byte_level=False)
    result = held_out_loss(model, text, context=16)
    assert [d.num_bytes for d in result.per_document] == pytest.approx([100 * 40 / 41, 100 * 20 / 21])


def test_loss_of_a_part():
    model, text = small(), FakeText([40, 40])
    assert held_out_loss(model, text, context=16, max_tokens=20).num_tokens == 32
    assert held_out_loss(model, text, context=16, max_tokens=1000).num_tokens == 78


def test_labels_that_are_not_scored_do_not_count():
    model, text = small(), FakeText([33])
    windows = list(text.windows(16))
    windows[0].labels = np.where(np.arange(16) < 10, -100, windows[0].labels)
    text.windows = lambda context: iter(windows)
    result = held_out_loss(model, text, context=16)
    assert result.num_tokens == 22
    assert result.by_position[3] == pytest.approx(brute_force(model, FakeText([33]), 16)[16 + 3][2], rel=1e-6)


class Leaky(nn.Module):
    """A causal model plus a whisper of the last token."""

    def __init__(self, model, strength):
        super().__init__()
        self.model, self.strength, self.config = model, strength, model.config

    def forward(self, input_ids, **kwargs):
        out = self.model(input_ids=input_ids, **kwargs)
        out.logits = out.logits + self.strength * input_ids[:, -1:, None]
        return out


def test_a_model_that_leaks_gets_no_score():
    for name in ("softmax", "power:2+decay", "exp<5|layer+gi+ga"):
        check_causal(small(name), length=40, vocab_size=VOCAB)
    leaky = Leaky(small(), strength=1e-5)
    for score in (
        lambda: held_out_loss(leaky, FakeText([40]), context=16),
        lambda: in_context_recall(leaky, num_pairs=3, num_sequences=2),
        lambda: recall_accuracy(Leaky(build("softmax", preset="recall", vocab_size=64), 1e-5), num_batches=1, batch=2),
    ):
        with pytest.raises(ValueError, match="sees the future"):
            score()
    held_out_loss(Leaky(small(), strength=0.0), FakeText([40]), context=16)


def test_scores_that_are_no_scores_are_refused():
    broken = small()
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite in document 0"):
        held_out_loss(Finite(broken), FakeText([40]), context=16)
    with pytest.raises(ValueError, match="nothing to score"):
        held_out_loss(small(), FakeText([1, 1]), context=16)
    text = FakeText([40])
    text.vocab_size = 50
    with pytest.raises(ValueError, match="50 symbols, the model 23"):
        held_out_loss(small(), text, context=16)
    with pytest.raises(ValueError, match="the recall task has symbols up to"):
        recall_accuracy(small(), num_batches=1, batch=8)
    with pytest.raises(ValueError, match="use fewer pairs"):
        in_context_recall(small(), num_pairs=20)


class Finite(nn.Module):
    """Probes see zeros, text sees the model: the leak check passes."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config, self.calls = model, model.config, 0

    def forward(self, input_ids, **kwargs):
        self.calls += 1
        out = self.model(input_ids=input_ids, **kwargs)
        if self.calls <= 4:
            out.logits = torch.zeros_like(out.logits)
        return out


class LookUp(nn.Module):
    """Predicts, after a token, what stood behind its earlier occurrence: perfect recall, and causal."""

    def __init__(self, vocab_size):
        super().__init__()
        self.unit = nn.Parameter(torch.ones(()))
        self.config = SimpleNamespace(vocab_size=vocab_size, bos_token_id=1, eos_token_id=[2, 3], pad_token_id=None)

    def forward(self, input_ids, **kwargs):
        logits = torch.zeros(*input_ids.shape, self.config.vocab_size)
        for row, ids in enumerate(input_ids.tolist()):
            for place, token in enumerate(ids):
                if token in ids[:place]:
                    logits[row, place, ids[ids.index(token) + 1]] = 1
        return SimpleNamespace(logits=logits)


def test_recall_of_a_perfect_and_of_a_blind_model():
    perfect = LookUp(64)
    assert recall_accuracy(perfect, num_batches=2, batch=4) == 1.0
    result = in_context_recall(perfect, num_sequences=6, num_pairs=5)
    assert (result.accuracy, result.num_queries, result.chance) == (1.0, 30, 1 / 61)
    blind = build("softmax", preset="recall", vocab_size=64)
    assert recall_accuracy(blind, num_batches=2, batch=16) < 0.2
    assert in_context_recall(blind, num_sequences=16).accuracy < 0.2


def test_recall_is_seeded_and_asks_for_the_scored_labels():
    model = build("softmax", preset="recall", vocab_size=64, initializer_range=0.5)
    assert recall_accuracy(model, seed=3, num_batches=2, batch=8) == recall_accuracy(
        model, seed=3, num_batches=2, batch=8
    )
    found = synthetic.recall(3, 10**9, 8)
    ids, labels = (torch.from_numpy(x).reshape(8, -1) for x in (found.input_ids, found.labels))
    with torch.no_grad():
        guess = model.eval()(ids).logits.argmax(dim=-1)
    expected = float((guess == labels)[labels >= 0].float().mean())
    assert recall_accuracy(model, seed=3, num_batches=1, batch=8) == pytest.approx(expected)


class ShortMemory(nn.Module):
    """Knows the value after a symbol that stood at most `reach` tokens before, and guesses a symbol that is never right beyond."""

    def __init__(self, reach):
        super().__init__()
        self.reach, self.weight = reach, nn.Parameter(torch.zeros(1))
        self.config = build("softmax", preset="recall", vocab_size=65).config

    def forward(self, input_ids, **_):
        logits = torch.zeros(*input_ids.shape, 65)
        for row, ids in enumerate(input_ids.tolist()):
            for t, symbol in enumerate(ids):
                before = [s for s in range(max(0, t - self.reach), t) if ids[s] == symbol]
                logits[row, t, ids[before[-1] + 1] if before else 64] = 1.0
        return SimpleNamespace(logits=logits)


def test_recall_by_distance_is_that_of_a_memory_of_known_reach():
    found = recall_by_distance(ShortMemory(reach=15), num_batches=2, batch=16)
    assert [(one.low, one.high) for one in found] == [(1, 8), (8, 16), (16, 24), (24, 32)]
    assert [one.accuracy for one in found] == [1.0, 1.0, 0.0, 0.0]
    whole = recall_accuracy(ShortMemory(reach=15), num_batches=2, batch=16)
    queries = [one.num_queries for one in found]
    assert sum(queries) == 2 * 16 * 8 and min(queries) > 0
    assert whole == pytest.approx(sum(queries[:2]) / sum(queries))
