"""The command line: parse, call one function, print, write. Heavy imports stand inside the command that needs them."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import termwise
from termwise.bench import options as bench_options
from termwise.study import options as study_options

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="termwise",
    help="Softmax attention, one term at a time: compare attention by its parts, on your own text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# typer brings its own copy of click or uses the installed one, by version; this is ClickException in either.
_ParseError: type[Exception] = typer.BadParameter.__mro__[2]

Data = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DATA",
        help="Files, folders, globs (.txt .md .jsonl .parquet .csv .py ...) or hf:org/name; "
        "without it the source of Python's standard library.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Run folder. [default: termwise-runs/COMMAND-HASH, so that the same command resumes]", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end instead of a table.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps or auto.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or auto. [default: what the device does well]", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what it would cost, and stop.")]
Errors = Annotated[str, typer.Option(help="Bad UTF-8: strict stops and names it, replace counts it.")]
Column = Annotated[str | None, typer.Option(help="The column that holds the text of tables.", show_default=False)]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"termwise {termwise.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Softmax attention, one term at a time: compare attention by its parts, on your own text."""


@app.command()
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
    from termwise.study.budget import parse_duration
    from termwise.study.experiment import default_workers, dry_run_study, run_study
    from termwise.study.grid import DEFAULT_VARIANTS, StudyConfig, split_names
    from termwise.study.opening import default_folder, reserved

    asked: dict[str, Any] = {
        "data": tuple(data or ()), "column": column, "document": document, "errors": errors, "tokenizer": tokenizer,
        "variants": split_names(variants) if variants else DEFAULT_VARIANTS, "baseline": baseline, "preset": preset,
        "seeds": seeds, "first_seed": seed, "steps": steps, "budget": parse_duration(budget) if budget else None,
        "tokens_per_step": tokens_per_step, "context": context, "evaluation_tokens": evaluation_tokens, "lr": lr,
        "recall": recall, "device": device, "dtype": dtype, "demonstration": demonstration,
    }  # fmt: skip
    config = StudyConfig(**asked)
    num_workers = workers or default_workers(device)
    console = _progress_console()
    if dry_run:
        _print(dry_run_study(config, num_workers=num_workers, console=console, started=started), as_json)
        return
    folder = out or default_folder(config)
    with reserved(folder, "study"):
        done = run_study(
            config, folder, arguments=_given(context_of_call), num_workers=num_workers, console=console, started=started
        )
        _finish(done.folder, as_json, failures=done.failures)
    if done.failures:
        raise typer.Exit(1)


@app.command()
def evaluate(
    context_of_call: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Model folders, or catalogue names.", show_default=False)
    ],
    tasks: Annotated[str, typer.Option(help="perplexity, recall, or both.")] = "perplexity,recall",
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Score these files or folders. [default: what the model's study held out]", show_default=False
        ),
    ] = None,
    column: Column = None,
    errors: Errors = "strict",
    preset: Annotated[str, typer.Option(help="The size in which a catalogue name is built.")] = "tiny",
    context: Annotated[
        int | None, typer.Option(help="Window of the scores. [default: the model's]", show_default=False)
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(help="About how many tokens are scored, in whole windows (one at least) spread over the text."),
    ] = 131_072,
    seed: Annotated[int, typer.Option(help="Seed of the weights of a catalogue name and of the recall task.")] = 0,
    out: Out = None,
    as_json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    dry_run: DryRun = False,
) -> None:
    """Score models: held-out loss (perplexity) and recall.

    A catalogue name is built untrained for perplexity, and trained on the recall task for recall.
    """
    from termwise.study.evaluate import EvaluateConfig, default_folder, describe, evaluate_models
    from termwise.study.opening import reserved

    asked: dict[str, Any] = {
        "models": tuple(models), "tasks": tuple(task.strip() for task in tasks.split(",")), "text": tuple(text or ()),
        "column": column, "errors": errors, "preset": preset, "context": context, "max_tokens": max_tokens, "seed": seed,
        "device": device, "dtype": dtype,
    }  # fmt: skip
    config = EvaluateConfig(**asked)
    if dry_run:
        _print(describe(config), as_json)
        return
    folder = out or default_folder(config)
    with reserved(folder, "evaluate"):
        evaluate_models(config, folder, arguments=_given(context_of_call), console=_progress_console())
        _finish(folder, as_json)


@app.command()
def generate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model folder, e.g. termwise-runs/demo/runs/softmax/0/model.", show_default=False
        ),
    ],
    prompt: Annotated[str, typer.Option(help="The text to go on from.", show_default=False)],
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token each time.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Draw from the likeliest tokens that have this share together.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the draws.")] = 0,
    half_state: Annotated[
        bool,
        typer.Option(
            "--half-state",
            help="Read states from a bfloat16 copy: half the bytes a token, half as much memory again, about 1e-3 of precision.",
        ),
    ] = False,
    as_json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Write on from a prompt, token by token as they come; the speed is said at the end."""
    from termwise.models.naming import trained_folder
    from termwise.models.streaming import generate_text

    write = (lambda piece: None) if as_json else (lambda piece: (sys.stdout.write(piece), sys.stdout.flush()))
    told = generate_text(
        trained_folder(model),
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        device=device,
        dtype=dtype,
        reads_half=half_state,
        write=write,
    )
    if as_json:
        typer.echo(json.dumps(told, ensure_ascii=False))
        return
    typer.echo("")
    typer.echo(
        f"{told['tokens']} tokens, {told['tokens_per_second']:.1f} tokens/s, state {told['state_bytes']:,} B", err=True
    )


@app.command()
def bench(
    context_of_call: typer.Context,
    variants: bench_options.Subjects = None,
    lengths: bench_options.Lengths = "1k,4k,16k,64k",
    heads: bench_options.Heads = 8,
    kv_heads: bench_options.KvHeads = None,
    key_width: bench_options.KeyWidth = 64,
    value_width: bench_options.ValueWidth = None,
    batch: bench_options.Batch = 1,
    dtype: bench_options.Dtype = "float32",
    threads: bench_options.Threads = 1,
    repeats: bench_options.Repeats = 5,
    measures: bench_options.Measures = None,
    half_state: bench_options.HalfState = False,
    seed: bench_options.Seed = 0,
    calibrate: bench_options.Calibrate = False,
    out: Out = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with llama-bench's names instead of a table.")
    ] = False,
    device: Device = "cpu",
    dry_run: DryRun = False,
) -> None:
    """Measure time and memory of variants and models against torch's fused attention with a key/value cache.

    A form that disagrees with the definition at the very shape has no figure. The same command goes on where it stopped.
    """
    from termwise.bench.config import BenchConfig, default_folder, parse_lengths

    if calibrate:
        _calibrate(variants, out, as_json=as_json, dry_run=dry_run, threads=threads)
        return
    asked: dict[str, Any] = {
        "variants": tuple(variants or ()), "lengths": parse_lengths(lengths), "heads": heads, "kv_heads": kv_heads,
        "key_width": key_width, "value_width": value_width, "batch": batch, "dtype": dtype, "threads": threads,
        "repeats": repeats, "measures": tuple(m.strip() for m in measures.split(",")) if measures else (),
        "half_state": half_state, "seed": seed, "device": device,
    }  # fmt: skip
    config = BenchConfig(**asked)
    from termwise.bench.run import describe, json_lines, run_bench
    from termwise.study.opening import reserved

    if dry_run:
        _print(describe(config), as_json)
        return
    folder = out or default_folder(config)
    with reserved(folder, "bench"):
        run_bench(config, folder, arguments=_given(context_of_call), console=_progress_console())
        _finish(folder, as_json, lines=json_lines(folder))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
    lang: Annotated[str, typer.Option(help="Language of the page.")] = "en",
) -> None:
    """Write the page of run folders again from their records, and print what it says."""
    for folder in runs:
        _finish(folder, as_json=False, lang=lang)


@app.command()
def variants(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A name, a short name, or a spec.json file.", show_default=False),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw what each order does to a sentence, with a trained model.")
    ] = False,
    sentence: Annotated[
        str, typer.Option(help="The sentence for --plot.")
    ] = "In the beginning was the word, and the word was with",
    model: Annotated[
        str | None, typer.Option(help="The model for --plot. [default: of the last study]", show_default=False)
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="The layer for --plot. [default: the most telling head]", show_default=False)
    ] = None,
    head: Annotated[int | None, typer.Option(help="The head for --plot.", show_default=False)] = None,
    length: Annotated[int, typer.Option(min=1, help="Context length for the sizes of states.")] = 8192,
    width: Annotated[int, typer.Option(min=1, help="Width of keys and values of one head for the sizes.")] = 64,
    out: Annotated[Path, typer.Option(help="The page that --plot writes.")] = Path("termwise-runs/sentence.html"),
    as_json: Json = False,
) -> None:
    """List the variants, or explain one: formula, state and cost, equal names, parts that cancel and why."""
    from termwise.study import listing

    if plot and out.is_dir():
        raise ValueError(f"--out {out} is a folder; name the page to write, e.g. {out / 'sentence.html'}")
    if plot:
        from termwise.analysis.sentence import look
        from termwise.models.naming import plotted_model
        from termwise.report.sentence import write

        _print({"open": str(write(look(plotted_model(model, name), sentence, layer=layer, head=head), out))}, as_json)
    elif name is None:
        _print(listing.all_variants(width, length), as_json, table=listing.table)
    else:
        _print(listing.one_variant(name, width, length), as_json, table=listing.text)


def _calibrate(variants: list[str] | None, out: Path | None, *, as_json: bool, dry_run: bool, threads: int) -> None:
    """`termwise bench --calibrate`: measure, keep, say."""
    from termwise.bench.calibrate import default_folder, describe_calibration, run_calibration
    from termwise.study.opening import reserved

    if variants:
        raise ValueError(f"--calibrate measures the machine, not {', '.join(variants)}; run it alone")
    if dry_run:
        _print(describe_calibration(), as_json)
        return
    folder = out or default_folder(threads)
    with reserved(folder, "bench"):
        told = run_calibration(folder, threads=threads, console=_progress_console())
        _finish(folder, as_json, lines=told.as_json())


def _given(call: typer.Context) -> dict[str, Any]:
    """The arguments of this command that were given, as run.json keeps them."""
    found = {}
    for option in call.command.params:
        source = call.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            value = call.params[option.name]
            found[option.opts[0].lstrip("-").replace("-", "_")] = str(value) if isinstance(value, Path) else value
    return found


def _progress_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _finish(folder: Path, as_json: bool, lang: str = "en", lines: str | None = None, **more: Any) -> None:
    """Write the page, and print the end of a command; `lines` is what --json prints in place of the records."""
    from rich.console import Console

    from termwise.report import page, terminal

    try:
        path: Path | None = page.write(folder, lang=lang)
    except ValueError as error:
        if "pip install" not in str(error):
            raise
        path = None
        typer.echo(f"termwise: no page was written: {error}", err=True)
    if as_json and lines is not None:
        typer.echo(lines, nl=False)
        return
    if as_json:
        from termwise.study.measures import as_json as records_as_json

        typer.echo(
            json.dumps({"folder": str(folder), "page": str(path) if path else None, **more, **records_as_json(folder)})
        )
        return
    Console().print(terminal.summary(folder, lang=lang))


def _print(value: Any, as_json: bool, table: Any = None) -> None:
    if as_json:
        typer.echo(json.dumps(value, ensure_ascii=False))
    elif table is not None:
        from rich.console import Console

        Console().print(table(value))
    else:
        for name, held in value.items():
            typer.echo(f"{name.replace('_', ' ')}: {_in_words(name, held)}")


def _in_words(name: str, value: Any) -> str:
    """A value as a person reads it: 487.77 "seconds" is 8 min 8 s, a list has commas, a number thousands."""
    from termwise.study.budget import format_duration

    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(name, held)}" for key, held in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if value is None:
        return "none"
    if name == "seconds":
        return format_duration(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line. Exit codes: 0 done, 1 a run failed, 2 bad input (one line on stderr), 130/143 stopped by a signal."""
    logging.basicConfig(format="termwise: %(message)s", level=logging.WARNING)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    from termwise.study.workers import Interrupted
    from termwise.training.configuration import Refused

    try:
        code = app(args=arguments, standalone_mode=False, prog_name="termwise")
    except _ParseError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            return 2
        return _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped; the same command goes on where it was saved last", 130)
    except Interrupted as stopped:
        return _fail(f"{stopped}; every run is saved, the same command goes on", stopped.exit_code)
    except BrokenPipeError:
        # Whoever reads has left (`| head`): nothing more to say, and no noise when the interpreter flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Refused as error:
        return _fail(error.explain(_option), 2)
    except (ValueError, OSError) as error:
        return _fail(_with_short_names(str(error)), 1 if type(error).__name__ == "TrainingDiverged" else 2)
    return code if isinstance(code, int) else 0


def _option(field: tuple[int | str, ...]) -> str:
    """The option that a field of a configuration was typed as."""
    name = {"first_seed": "seed"}.get(str(field[0]), str(field[0]))
    return "--" + name.replace("_", "-")


def _with_short_names(message: str) -> str:
    """A message of the algebra, with the short forms of the arguments it names."""
    short = {
        "center='mean'": "@mean",
        "allow_negative=True": "!",
        "L2()": "|l2",
        "local=Local(window=64, sinks=4)": "+w64s4",
    }
    named = [f"{form} for {argument}" for argument, form in short.items() if argument in message]
    return f"{message} (in a short name: {', '.join(named)})" if named else message


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"termwise: {line}", file=sys.stderr)
    return code
