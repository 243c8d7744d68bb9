"""The options of `termwise study`, apart from the command line because there are many. Loads typer alone."""

from __future__ import annotations

from typing import Annotated

import typer

Variants = Annotated[
    list[str] | None,
    typer.Option(
        help="Groups (ladder, denominators, gates, paper, all), names, short names like taylor:0..2@mean, or spec.json files, "
        "comma-separated. [default: softmax,linear_elu,taylor:0..2,taylor:0..4]",
        show_default=False,
    ),
]
Preset = Annotated[
    str, typer.Option(help="tiny (0.8 M parameters, bytes), small (10 M, BPE) or paper (275 M, for GPUs).")
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="Wall time of the whole grid, evaluation included: 90s, 10m, 1h30m; a bare number is minutes. [default: 10m]",
        show_default=False,
    ),
]
Steps = Annotated[int | None, typer.Option(help="Steps of every run, in place of --budget.", show_default=False)]
Seeds = Annotated[int, typer.Option(help="Runs of each variant; two or more give intervals over seeds.")]
FirstSeed = Annotated[int, typer.Option(help="The first seed.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Runs at a time, one core each. [default: the number of cores]", show_default=False),
]
Recall = Annotated[
    bool | None,
    typer.Option(
        "--recall/--no-recall",
        help="Train a small model of each variant to look up pairs. [default: yes, unless it would take a third of the budget]",
        show_default=False,
    ),
]
Baseline = Annotated[
    bool, typer.Option("--baseline/--no-baseline", help="Add softmax, which all others are compared with.")
]
Control = Annotated[
    bool,
    typer.Option(
        "--control",
        help="Train softmax a second time under other seeds and compare it with itself: a check of the method.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="bytes, bpe:N or a folder with tokenizer.json. [default: the preset's]", show_default=False),
]
Document = Annotated[str, typer.Option(help="What a document is: auto (a file, a row), file, row or line.")]
Context = Annotated[
    int | None, typer.Option(help="Tokens a model sees at once. [default: the preset's]", show_default=False)
]
TokensPerStep = Annotated[
    int | None, typer.Option(help="Tokens of one step. [default: 8 windows of the context]", show_default=False)
]
EvaluationTokens = Annotated[
    int | None,
    typer.Option(
        help="About how many held-out tokens are scored, in whole windows spread over the text. [default: 131,072]",
        show_default=False,
    ),
]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate. [default: 0.001]", show_default=False)]
Demonstration = Annotated[bool, typer.Option("--demonstration", help="Mark the page as a demonstration.")]
