"""A few timed steps of a variant as it would be trained here: what a wall time is turned into steps with."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from termwise.study.grid import RunConfig

NUM_STEPS = 5
NUM_WARM = 2
TIMED_ROWS = 8


def measure_speed(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Seconds of building, a training step, evaluating one token, a recall step, the other measures; and parameters."""
    from termwise.data.synthetic import RECALL_VOCAB, recall
    from termwise.models.sizes import extra_parameters, num_parameters
    from termwise.study import recall as task
    from termwise.study.run import bad_rows, new_model, open_run_text, state_bytes

    clock = time.perf_counter()
    text = open_run_text(config)
    rows = config.tokens_per_step // config.context
    model = new_model(config, text.vocab_size, eos_token_id=text.end_of_document)
    build = time.perf_counter() - clock
    step = seconds_per_step(model, lambda step: text.train.batch(config.seed, step, rows, config.context), config)
    small = task.recall_config(config, NUM_STEPS)
    recall_step = seconds_per_step(
        new_model(small, RECALL_VOCAB), lambda step: recall(small.seed, step, task.BATCH, length=task.LENGTH), small
    )
    clock = time.perf_counter()
    bad_rows(model, text, config)
    state_bytes(model, config.state_lengths)
    return {
        "seconds_to_build": build,
        "seconds_of_other_measures": time.perf_counter() - clock,
        "seconds_per_step": step,
        "seconds_per_evaluated_token": seconds_per_token(model, text, config),
        "seconds_per_recall_step": recall_step,
        "parameters": num_parameters(model),
        "extra_parameters": extra_parameters(model),
    }


def seconds_per_step(model: Any, batches: Any, config: RunConfig) -> float:
    """The median of some steps of the real loop, the first ones apart."""
    from termwise.study.run import training_config
    from termwise.training.loop import train

    clock = [0.0]
    with tempfile.TemporaryDirectory() as folder:
        training = training_config(config, steps=NUM_STEPS, checkpoint_every=NUM_STEPS, warmup_steps=0)
        train(model, batches, training, Path(folder), on_step=lambda line: clock.append(line["seconds"]))
    steps = [after - before for before, after in itertools.pairwise(clock)]
    return statistics.median(steps[NUM_WARM:])


def seconds_per_token(model: Any, text: Any, config: RunConfig) -> float:
    """Time of the forward pass alone, on one batch of the held-out text."""
    import torch

    packed = next(text.held_out.packed_windows(config.context, TIMED_ROWS))
    device = next(model.parameters()).device
    ids, borders = (torch.from_numpy(a).to(device) for a in (packed.batch.input_ids, packed.batch.cu_seqlens))
    started = time.perf_counter()
    with torch.no_grad():
        model.eval()(input_ids=ids, cu_seqlens=borders, use_cache=False).logits.sum().item()
    return (time.perf_counter() - started) / ids.numel()
