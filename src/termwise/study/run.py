"""One run of the grid as a plain function of its folder: train (resumable), evaluate, write result.json.

Nothing here knows of workers, so that another engine can run folders as well.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from termwise.attention.state import FOLD
from termwise.data.spread import SpreadWindows
from termwise.data.text import Text, open_text
from termwise.evaluation import held_out_loss
from termwise.models.build import build
from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.models.sizes import extra_parameters, num_parameters
from termwise.results import atomic_write_text, config_hash, now
from termwise.study.grid import BASELINE, RunConfig
from termwise.study.measures import RESULT_SCHEMA
from termwise.training.configuration import TrainingConfig
from termwise.training.faults import TrainingDiverged

EVALUATION_ROWS = 8
# A larger state is not built only to be counted; the formula still says what it would take.
LARGEST_STATE = 1 << 30


def run_one(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Do what `config` says inside `folder`, going on where it stopped; the result, also in FOLDER/result.json.

    A run that diverged, or that its configuration makes impossible, is a result with status "failed" and the reason.
    Stopped by a signal it saves and raises `termwise.training.loop.TrainingInterrupted`; OSError for a full disk.
    """
    from termwise.study.recall import measure_recall
    from termwise.study.speed import measure_speed

    started, clock, cpu = now(), time.perf_counter(), time.process_time()
    result: dict[str, Any] = {"schema": RESULT_SCHEMA, "kind": config.kind, "variant": config.variant}
    result |= {"seed": config.seed, "started": started}
    measure = {"train": train_and_evaluate, "recall": measure_recall, "speed": measure_speed}[config.kind]
    try:
        result |= measure(folder, config) | {"status": "ok", "reason": None}
    except TrainingDiverged as error:
        result |= {"status": "failed", "reason": f"diverged at {error}"}
    except ValueError as error:
        result |= {"status": "failed", "reason": str(error)}
    result |= {"seconds": time.perf_counter() - clock, "cpu_seconds": time.process_time() - cpu}
    result |= {"config_hash": config_hash(config.model_dump(mode="json"))}
    atomic_write_text(folder / "result.json", json.dumps(result, allow_nan=False, indent=1) + "\n")
    return result


def training_config(config: RunConfig, **fields: Any) -> TrainingConfig:
    """The loop's configuration of a run; `fields` go before what the run says."""
    given = {"lr": config.lr, "dtype": config.dtype}
    known: dict[str, Any] = {
        "steps": config.steps,
        "tokens_per_step": config.tokens_per_step,
        "context": config.context,
    }
    known |= {"seed": config.seed, "device": config.device}
    return TrainingConfig(**(known | {name: value for name, value in given.items() if value is not None} | fields))


def new_model(config: RunConfig, vocab_size: int, **overrides: Any) -> TermwiseForCausalLM:
    """The untrained model of a run. One seed gives all variants the same weights wherever names and shapes agree."""
    fields: dict[str, Any] = {"attention": config.spec, "layer_options": config.layer}
    fields |= {"max_position_embeddings": config.context} | overrides
    return build(BASELINE, preset=config.preset, vocab_size=vocab_size, seed=config.seed, **fields)


def open_run_text(config: RunConfig) -> Text:
    """The text every run of the grid reads. OSError when it is no longer what the grid was planned with."""
    wanted = dict(config.text)
    fingerprint, cache = wanted.pop("fingerprint"), Path(wanted.pop("cache"))
    try:
        text = open_text(wanted.pop("paths"), cache=cache, **wanted)
    except ValueError as error:
        raise OSError(f"the text of the study is no longer there: {error}") from error
    if text.fingerprint != fingerprint:
        raise OSError(f"the text changed since the study began (was {fingerprint}, is {text.fingerprint}); restore it")
    return text


def train_and_evaluate(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Train on the text and measure: held-out loss, bad rows, parameters, state bytes, speed."""
    from termwise.training.loop import train

    text = open_run_text(config)
    training = training_config(config)
    num_rows = config.tokens_per_step // config.context
    model = new_model(config, text.vocab_size, eos_token_id=text.end_of_document)
    trained = train(model, lambda step: text.train.batch(config.seed, step, num_rows, config.context), training, folder)
    for path in text.tokenizer_folder.iterdir():
        shutil.copyfile(path, folder / "model" / path.name)
    model.eval()
    measured = {
        "steps": trained.step,
        "train_loss": trained.loss,
        "tokens_per_second": trained.step * config.tokens_per_step / trained.seconds,
        "parameters": num_parameters(model),
        "extra_parameters": extra_parameters(model),
        "form": training_form(model, config),
    }
    return measured | held_out(model, text, config) | state_bytes(model, config.state_lengths)


def training_form(model: TermwiseForCausalLM, config: RunConfig) -> str:
    """The forms in which the layers ran over whole windows, e.g. "fused"."""
    from termwise.attention.choice import choose_form

    width, heads = model.config.head_dim, model.config.num_attention_heads * (config.tokens_per_step // config.context)
    sizes = {"num_queries": config.context, "num_keys": config.context, "key_width": width, "value_width": width}
    return ",".join(
        sorted({choose_form(spec, heads=heads, has_decay=spec.log_decay, **sizes)[0] for spec in model.config.specs})
    )


def held_out(model: TermwiseForCausalLM, text: Text, config: RunConfig) -> dict[str, Any]:
    """Held-out loss with its parts, and the shares of bad rows."""
    scored = SpreadWindows(text.held_out, config.evaluation_tokens or text.held_out.num_tokens)
    loss = held_out_loss(model, scored, context=config.context, num_rows=EVALUATION_ROWS)
    return {
        "held_out": {
            "nats": loss.nats_per_token,
            "bits": loss.bits_per_byte if math.isfinite(loss.bits_per_byte) else None,
            "tokens": loss.num_tokens,
            "documents": [[str(found.document), found.sum_nats, found.num_tokens] for found in loss.per_document],
            "by_position": binned(loss.by_position),
        },
        "rows": bad_rows(model, text, config),
    }


def binned(by_position: np.ndarray) -> list[list[float]]:
    """[low, high, mean] over positions low <= p < high, each bin about twice as wide as the one before.

    >>> binned(np.array([4.0, 3.0, 2.0, 2.0, 1.0]))
    [[0, 1, 4.0], [1, 2, 3.0], [2, 4, 2.0], [4, 5, 1.0]]
    """
    edges = [0, *(2**n for n in range(max(1, math.ceil(math.log2(max(len(by_position), 2)))))), len(by_position)]
    edges = sorted({edge for edge in edges if edge <= len(by_position)})
    bins = []
    for low, high in itertools.pairwise(edges):
        seen = by_position[low:high][np.isfinite(by_position[low:high])]
        if len(seen):
            bins.append([low, high, float(seen.mean())])
    return bins


def bad_rows(model: TermwiseForCausalLM, text: Text, config: RunConfig) -> list[tuple[str, int, int, float]]:
    """(metric, layer, head, share) of the worst head of every layer, on one batch of the held-out text.

    Vanishing row sums were moved away from zero, negative ones used as they are; layers without row sums are left out.
    """
    import torch

    packed = next(text.held_out.packed_windows(config.context, EVALUATION_ROWS))
    device = next(model.parameters()).device
    ids, borders = (torch.from_numpy(a).to(device) for a in (packed.batch.input_ids, packed.batch.cu_seqlens))
    with torch.no_grad(), model.count_rows() as counts:
        model(input_ids=ids, cu_seqlens=borders, use_cache=False)
    rows = []
    for layer, found in counts.items():
        if found.rows.numel():
            for metric, bad in (("vanishing_rows", found.vanishing), ("negative_rows", found.negative)):
                # Heads whose spec sums no rows have none.
                shares = bad / found.rows.clamp(min=1)
                rows.append((metric, layer, int(shares.argmax()), float(shares.max())))
    return rows


def state_bytes(model: TermwiseForCausalLM, lengths: Sequence[int]) -> dict[str, Any]:
    """The most bytes of live state held at any time up to so many tokens, and what the formula says."""
    return {
        "state": {str(n): _or_reason(functools.partial(measured_state, model, n)) for n in lengths},
        "state_formula": {str(n): _or_reason(functools.partial(state_formula, model, n)) for n in lengths},
    }


def measured_state(model: TermwiseForCausalLM, length: int) -> int:
    """Bytes of the tensors that decoding holds, over all layers and heads, for one sequence, when it holds most up to `length`."""
    import torch

    if (size := state_formula(model, length)) > LARGEST_STATE:
        raise ValueError(f"the state would take {size / 1e9:.3g} GB")

    length = fullest(model, length)
    ids = torch.arange(length, device=next(model.parameters()).device)[None] % model.config.vocab_size
    with torch.no_grad():
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    cache = getattr(out, "cache", None) or out.past_key_values
    return cache.nbytes


def state_formula(model: TermwiseForCausalLM, length: int) -> int:
    """The same from arithmetic alone."""
    return formula_bytes(model, fullest(model, length))


def fullest(model: TermwiseForCausalLM, length: int) -> int:
    """The length up to `length` with the largest state: exact buffers are fullest just before their keys are folded."""
    return max(range(max(1, length - FOLD + 1), length + 1), key=functools.partial(formula_bytes, model))


def formula_bytes(model: TermwiseForCausalLM, length: int) -> int:
    """The cost of each layer's spec after `length` tokens, and the last inputs of its convolutions in fp32."""
    from termwise.attention.cost import cost

    width, heads = model.config.head_dim, model.config.num_key_value_heads
    length += model.config.blank_tokens
    channels = width * (model.config.num_attention_heads + 2 * heads)
    past = sum(4 * channels * max(0, options.conv_size - 1) for options in model.config.options)
    groups = [group for layer in model.config.groups for group in layer]
    return past + sum(
        cost(group.spec, width, width, length, kv_heads=len(group.kv_heads)).state_bytes for group in groups
    )


def _or_reason(measure: Callable[[], int]) -> int | str:
    """The number, or why there is none: a state too large, or a kernel that has none."""
    try:
        return measure()
    except ValueError as error:
        return str(error).splitlines()[0]
