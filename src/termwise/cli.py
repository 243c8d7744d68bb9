"""The command line: the list of commands (a file each in commands/), and what becomes of an error."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import termwise
from termwise.commands import bench, convert, evaluate, generate, inspect, plan, report, study, variants, verify

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


COMMANDS = (
    study.study, inspect.inspect, plan.plan, convert.convert, verify.verify, evaluate.evaluate, generate.generate,
    bench.bench, report.report, variants.variants,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)


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
