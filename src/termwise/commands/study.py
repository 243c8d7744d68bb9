"""`termwise study`."""

from __future__ import annotations

import time
from typing import Any

import typer

from termwise.commands.shared import (
    Column,
    Data,
    Device,
    DryRun,
    Dtype,
    Errors,
    Json,
    Out,
    finish,
    given,
    progress_console,
    show,
)
from termwise.study import options as study_options


def study(
    context_of_call: typer.Context,
    data: Data = None,
    variants: study_options.Variants = None,
    preset: study_options.Preset = "tiny",
    budget: study_options.Budget = None,
    steps: study_options.Steps = None,
    seeds: study_options.Seeds = 3,
    seed: study_options.FirstSeed = 0,
    workers: study_options.Workers = None,
    recall: study_options.Recall = None,
    baseline: study_options.Baseline = True,
    control: study_options.Control = False,
    tokenizer: study_options.Tokenizer = None,
    column: Column = None,
    document: study_options.Document = "auto",
    errors: Errors = "strict",
    context: study_options.Context = None,
    tokens_per_step: study_options.TokensPerStep = None,
    evaluation_tokens: study_options.EvaluationTokens = None,
    lr: study_options.LearningRate = None,
    demonstration: study_options.Demonstration = False,
    out: Out = None,
    as_json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    dry_run: DryRun = False,
) -> None:
    """Train variants of attention on your text, several seeds each, and compare them in pairs with softmax.

    Equal tokens, order of data and starting weights for all. The same command goes on where it stopped; in the same --out
    more variants or seeds extend the study.
    """
    started = time.monotonic()
    from termwise.commands.folders import check_reservable, reserved
    from termwise.results import parse_duration
    from termwise.study.experiment import default_workers, dry_run_study, run_study
    from termwise.study.grid import DEFAULT_VARIANTS, StudyConfig, split_names
    from termwise.study.opening import default_folder

    asked: dict[str, Any] = {
        "data": tuple(data or ()), "column": column, "document": document, "errors": errors, "tokenizer": tokenizer,
        "variants": split_names(variants) if variants else DEFAULT_VARIANTS, "baseline": baseline, "control": control, "preset": preset,
        "seeds": seeds, "first_seed": seed, "steps": steps, "budget": parse_duration(budget) if budget else None,
        "tokens_per_step": tokens_per_step, "context": context, "evaluation_tokens": evaluation_tokens, "lr": lr,
        "recall": recall, "device": device, "dtype": dtype, "demonstration": demonstration,
    }  # fmt: skip
    config = StudyConfig(**asked)
    num_workers = workers or default_workers(device)
    console = progress_console()
    folder = out or default_folder(config)
    if dry_run:
        check_reservable(folder, "study")
        show(dry_run_study(config, folder, num_workers=num_workers, console=console, started=started), as_json)
        return
    with reserved(folder, "study"):
        done = run_study(
            config, folder, arguments=given(context_of_call), num_workers=num_workers, console=console, started=started
        )
        finish(done.folder, as_json, failures=done.failures)
    if done.failures:
        raise typer.Exit(1)
