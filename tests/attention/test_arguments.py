"""What is no argument of attend at all gets one message too."""

from __future__ import annotations

import pytest
import torch

import termwise as tw
from tests.attention.compare import close, refused
from tests.attention.test_calls import call

Q = torch.randn(1, 4, 2, 3)
DECAY = -torch.ones(1, 4, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"spec": "softmax"}, ("spec is a str", "catalogue[name]")),
        ({"initial_state": 5}, ("initial_state is a int", "AttentionState")),
        ({"cu_seqlens": [0, 4]}, ("cu_seqlens is a list", "Tensor")),
        ({"parameters": [1]}, ("parameters is a list", "dict")),
    ],
)
def test_arguments_of_another_kind(given, words):
    with refused(*words):
        call(**{"query": Q, "key": Q, "value": Q, "spec": tw.catalogue["2mamba"], "log_decay": DECAY, **given})


def test_decays_do_not_grow():
    with refused("log_decay reaches 1", "up to 0"):
        tw.attend(Q, Q, Q, tw.catalogue["2mamba"], log_decay=-DECAY)


def test_growing_decay_under_padding_is_no_fault():
    decay = DECAY.clone()
    decay[:, :2] = 7.0
    mask = torch.tensor([[False, False, True, True]])
    out, _ = tw.attend(Q, Q, Q, tw.catalogue["2mamba"], log_decay=decay, key_mask=mask)
    alone, _ = tw.attend(Q[:, 2:], Q[:, 2:], Q[:, 2:], tw.catalogue["2mamba"], log_decay=DECAY[:, 2:])
    close(out[:, 2:], alone, "fp32")


def test_sizes_are_whole_numbers():
    with refused("key_width=0", "from 1"):
        tw.cost(tw.AttentionSpec(), key_width=0, value_width=1, length=1)
