"""What a person gives to `generate_text`: refused by name before a model is read, or before it computes."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VOCAB, small
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from termwise.attention import compiled_step, step
from termwise.models import streaming
from termwise.models.devices import named_dtype, usable_device
from termwise.models.streaming import generate_text, token_ids


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "meta", "cuda:99", "", "CPU"])
def test_a_device_that_is_not_here_is_refused_before_the_model_is_read(name, tmp_path):
    with pytest.raises(ValueError, match=f"device={name!r}"):
        generate_text(tmp_path / "nowhere", "a", device=name)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="needs a machine without it")
def test_mps_is_refused_where_there_is_none():
    with pytest.raises(ValueError, match="device='mps': not usable here"):
        usable_device("mps")


def test_devices_and_number_types_have_names():
    assert usable_device("cpu").type == "cpu"
    assert usable_device("auto").type == ("cuda" if torch.cuda.device_count() else "cpu")
    assert [named_dtype(name) for name in (None, "auto", "float32", "bfloat16")] == [
        None, None, torch.float32, torch.bfloat16,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="allowed are auto, float32, bfloat16"):
        named_dtype("fp8")


@pytest.mark.parametrize("seed", [-1, 2**32, 10**30])
def test_a_seed_out_of_range_is_refused(seed, tmp_path):
    with pytest.raises(ValueError, match="allowed are whole numbers from 0 to 4294967295"):
        generate_text(tmp_path / "nowhere", "a", seed=seed)


def test_bytes_that_are_no_text_are_named():
    """A shell hands a character cut in two to Python, which keeps it as a surrogate."""
    with pytest.raises(ValueError, match=r"the prompt is no valid UTF-8: '\\udce6' at character 3"):
        token_ids(None, b"abc\xe6".decode(errors="surrogateescape"), "the prompt")


@pytest.mark.parametrize("name", ["softmax", "taylor:0..2@mean+w8s2", "softmax_taylor_80terms"])
def test_any_folder_writes_and_says_the_size_of_its_state(name, tmp_path):
    """With several ids that end a text; a state too large to hold is done without."""
    model = small(name, eos_token_id=[1, 2])
    model.save_pretrained(tmp_path)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    pieces = []
    told = generate_text(tmp_path, "w3 w4 w5", max_tokens=6, temperature=0.0, write=pieces.append)
    assert "".join(pieces) == told["text"]
    assert 1 <= told["tokens"] <= 6
    assert (told["tokens_per_second"] is None) == (told["tokens"] == 1)
    assert (told["state_bytes"] > 0) == (name != "softmax_taylor_80terms")


@pytest.fixture
def folder(tmp_path):
    """A model that never ends by itself, and says one token a word."""
    model = small("taylor:0..2@mean+w8s2", eos_token_id=None)
    model.save_pretrained(tmp_path)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    return tmp_path


class Clock:
    """perf_counter that shows what it is told to."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)

    def perf_counter(self) -> float:
        return self.seconds.pop(0)


def test_the_speed_counts_from_the_first_token_on(folder, monkeypatch):
    monkeypatch.setattr(streaming, "warm", lambda *given: None)
    monkeypatch.setattr(streaming, "time", Clock(100.0, 107.0, 107.5, 108.0, 108.5, 110.0))
    told = generate_text(folder, "w3 w4", max_tokens=4, temperature=0.0)
    assert (told["tokens_per_second"], told["first_token_seconds"], told["seconds"]) == (2.0, 7.0, 10.0)
    monkeypatch.setattr(streaming, "time", Clock(100.0, 107.0, 110.0))
    told = generate_text(folder, "w3 w4", max_tokens=1, temperature=0.0)
    assert (told["tokens"], told["tokens_per_second"]) == (1, None)


@pytest.mark.skipif(compiled_step.compiled_loops() is None, reason="needs numba")
@pytest.mark.parametrize(("prompt", "folds"), [(3, True), (400, False)])
def test_what_decoding_runs_is_compiled_before_the_clock_starts(folder, monkeypatch, prompt, folds):
    """Short prompts are not folded while they are read, so the first fold is run before as well."""
    ran = []
    for name in ("step_compiled", "fold"):
        home = step if name == "step_compiled" else compiled_step
        function = getattr(home, name)
        monkeypatch.setattr(home, name, lambda *given, f=function, n=name: (ran.append(n), f(*given))[1])
    model = small("taylor:0..2@mean+w8s2")
    streaming.warm(model, prompt, 400, False)
    assert ran.count("step_compiled") == 2 * model.config.num_hidden_layers
    assert ("fold" in ran) == folds


def test_softmax_has_nothing_to_compile(monkeypatch):
    model = small("softmax")
    monkeypatch.setattr(type(model), "forward", lambda *given, **more: pytest.fail("ran a step"))
    streaming.warm(model, 3, 400, False)
