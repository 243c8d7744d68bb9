"""The parts of the page about a study, in the order they are read. A later kind of run adds its own function here."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from termwise.report import figures, tables
from termwise.report.blocks import Block, Facts, Lines, Section
from termwise.report.read import LeftOut, Reading
from termwise.report.view import View
from termwise.report.words import Words

MOST_VALUES = 6

_DATA: tuple[str, ...] = (
    "name",
    "paths",
    "sources",
    "tokenizer",
    "vocab_size",
    "train_tokens",
    "train_documents",
    "train_bytes",
)
_DATA += ("held_out_tokens", "held_out_documents", "held_out_bytes")
# What stands without an option's name on the command line, by command.
POSITIONAL = {
    "evaluate": "models", "bench": "variants", "inspect": "model", "plan": "source", "convert": "model", "verify": "model",
}  # fmt: skip
Pair = tuple[str, tuple[str, ...], bool]


def sections(view: View, say: Words) -> list[Section]:
    """Every section that has something to say, below the verdict."""
    made = (_question, _result, _cost, _variants, _problems, _about_run, _threats)
    return [section for make in made if (section := make(view, say)).blocks]


def text_name(view: View, say: Words) -> str:
    """What the data is called in a title: its name, or the last part of its paths."""
    data = _data(view)
    found = next((data[key] for key in ("name", "paths", "sources") if key in data), say("title.text"))
    return say.listing([Path(str(path)).name for path in found], 3) if isinstance(found, list) else str(found)


def _question(view: View, say: Words) -> Section:
    key = "question" if view.baseline else "question.no_baseline"
    blocks: list[Block] = [Lines((say(key, baseline=view.baseline),))]
    pairs = [*_about_data(view, say), *_about_training(view, say)]
    return Section("question", say("question.title"), (*blocks, Facts(tuple(pairs))) if pairs else tuple(blocks))


def _data(view: View) -> dict[str, Any]:
    """What run.json says of the data, nested parts (sizes) laid flat."""
    data = view.reading.setting("data", {})
    data = data if isinstance(data, dict) else {"name": data}
    nested = [value for value in data.values() if isinstance(value, dict)]
    flat = {key: value for part in (data, *nested) for key, value in part.items()}
    return {key: value for key, value in flat.items() if value not in (None, [], "") and not isinstance(value, dict)}


def _about_data(view: View, say: Words) -> list[Pair]:
    data = _data(view)
    notes = data.pop("notes", [])
    data.pop("given", None)  # what the paths say
    first = [key for key in _DATA if key in data]
    pairs: list[Pair] = []
    for key in [*first, *(key for key in data if key not in _DATA)]:
        pairs.append((say.known(f"data.{key}", key), (_shown(data[key], say),), key == "fingerprint"))
    if view.num_documents:
        pairs.append((say("fact.documents"), (say.integer(view.num_documents),), False))
    if notes:
        lines = tuple(say.recorded(str(note)) for note in (notes if isinstance(notes, list) else [notes]))
        pairs.append((say("fact.notes"), lines, False))
    return pairs


def _about_training(view: View, say: Words) -> list[Pair]:
    setting = view.reading.setting
    pairs: list[Pair] = []
    for key in ("preset", "tokenizer", "lr", "device", "dtype"):
        if setting(key) is not None:
            pairs.append((say(f"fact.{key}"), (_shown(setting(key), say),), False))
    scored = sorted({record.n for record in view.reading.records if record.metric == "held_out_nats" and record.n})
    if scored:
        pairs.append((say("fact.scored"), (_shown(scored, say),), False))
    if view.context:
        pairs.append((say("fact.context"), (say("value.context", n=say.integer(view.context)),), False))
    if view.seeds:
        pairs.append((say("fact.seeds"), (say.row(view.seeds),), False))
    if view.control:
        pairs.append((say("fact.control_seeds"), (say.row(view.control.seeds),), False))
    if setting("steps"):
        pairs.append((say("fact.training"), (_training(setting("steps"), setting("tokens_per_step"), say),), False))
    return pairs


def _shown(value: Any, say: Words) -> str:
    """A value of run.json as people read it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return say.integer(value)
    if isinstance(value, list):
        return say.listing([_shown(item, say) for item in value])
    if isinstance(value, dict):
        return say.row(f"{key} {_shown(item, say)}" for key, item in value.items())
    return str(value)


def _training(steps: Any, each: Any, say: Words) -> str:
    if isinstance(steps, int) and isinstance(each, int):
        numbers = {"steps": say.integer(steps), "each": say.integer(each), "total": say.integer(steps * each)}
        return say.plural("value.training", steps, **numbers)
    return say.plural("value.steps", steps, steps=_shown(steps, say))


def _result(view: View, say: Words) -> Section:
    blocks: list[Block] = []
    if view.variants:
        blocks = [tables.result(view, say)] if view.is_loss_asked else []
        blocks += figures.figures(view, say)
    return Section("result", say("result.title"), tuple(blocks))


def _cost(view: View, say: Words) -> Section:
    made = (tables.cost(view, say), tables.distances(view, say), tables.lengths(view, say)) if view.variants else ()
    return Section("cost", say("cost.title"), tuple(table for table in made if table is not None))


def _variants(view: View, say: Words) -> Section:
    blocks = (tables.variants(view, say),) if any(v.formula or v.short_name for v in view.variants) else ()
    return Section("variants", say("variants.title"), blocks)


def _problems(view: View, say: Words) -> Section:
    lines = [left_out(group, say) for group in view.reading.left_out]
    if view.num_foreign:
        lines.append(say.plural("left_out.variants", view.num_foreign))
    table = tables.problems(view, say)
    blocks: list[Block] = [table] if table else [Lines((say("problems.none"),))]
    if lines:
        blocks.append(Lines(tuple(lines), is_list=True))
    return Section("problems", say("problems.title"), tuple(blocks) if view.variants or lines else ())


def left_out(group: LeftOut, say: Words) -> str:
    """Which lines of records.jsonl were not used, and why."""
    told = {"lines": say.listing([str(n) for n in group.lines]), "values": say.groups(group.values[:MOST_VALUES])}
    return say.plural(f"left_out.{group.why}", len(group.lines), **told)


def _about_run(view: View, say: Words) -> Section:
    return method(view.reading, say)


def method(reading: Reading, say: Words) -> Section:
    """How the records came to be: command, versions, machine, forms."""
    run, records = reading.run, reading.records
    pairs: list[Pair] = [(say("method.command"), (command_line(run),), True)]
    if run.get("run_id"):
        pairs.append((say("method.run_id"), (str(run["run_id"]),), False))
    if run.get("created"):
        pairs.append((say("method.created"), (say.datetime(str(run["created"])),), False))
    last = max((str(record.started) for record in records if record.started), default="")
    if last:
        pairs.append((say("method.last"), (say.datetime(last),), False))
    for key, found in (("hashes", "config_hash"), ("forms", "form")):
        values = list(dict.fromkeys(value for record in records if (value := getattr(record, found))))
        if values:
            named = [say.known(f"form.{v}", str(v)) if found == "form" else str(v) for v in values]
            pairs.append((say(f"method.{key}"), (say.listing(named, 12),), found == "config_hash"))
    for key in ("versions", "machine"):
        if isinstance(run.get(key), dict):
            named = [f"{say.known(f'machine.{k}', k)} {_shown(v, say)}" for k, v in run[key].items() if v is not None]
            pairs.append((say(f"method.{key}"), (say.row(named),), False))
    pairs.append((say("method.records"), (say("method.records.value", n=say.integer(len(records))),), False))
    return Section("method", say("method.title"), (Facts(tuple(pairs)),))


def command_line(run: dict[str, Any]) -> str:
    """The command that made the run, ready to be pasted.

    >>> command_line({"command": "study", "arguments": {"data": ["a b.txt"], "seeds": 3, "dry_run": False}})
    "termwise study 'a b.txt' --seeds 3"
    """
    arguments = run.get("arguments")
    arguments = arguments if isinstance(arguments, dict) else {}
    first = POSITIONAL.get(str(run.get("command")), "data")
    positional = arguments.get(first) or []
    parts = [
        "termwise",
        str(run.get("command", "")),
        *map(str, positional if isinstance(positional, list) else [positional]),
    ]
    for name, value in arguments.items():
        if name == first or value is None or value is False:
            continue
        parts.append("--" + name.replace("_", "-"))
        if value is not True:
            parts.append(",".join(map(str, value)) if isinstance(value, list) else str(value))
    return shlex.join(parts)


def _threats(view: View, say: Words) -> Section:
    """What could make the result wrong, each said only where the run shows it."""
    if not any(v.loss.value is not None for v in view.variants):
        return Section("threats", say("threats.title"), ())
    setting = view.reading.setting
    lines = [say("threat.demonstration")] if view.is_demonstration else []
    num_seeds = max(len(v.finished) for v in view.variants)
    if num_seeds == 1:
        lines.append(say("threat.one_seed"))
    elif num_seeds < 10:
        lines.append(say("threat.few_seeds", n=num_seeds))
    fewer = [v.name for v in view.variants if 0 < len(v.finished) < num_seeds]
    if fewer:
        lines.append(say("threat.uneven", names=say.listing(fewer)))
    if any(v.failed for v in view.variants):
        lines.append(say("threat.failed"))
    lines.append(say("threat.one_text"))
    if setting("preset") and setting("steps"):
        lines.append(
            say.plural("threat.size", setting("steps"), preset=setting("preset"), steps=_shown(setting("steps"), say))
        )
    lines += [say("threat.tuning"), *_parameters(view, say)]
    if any(v.speed.value is not None for v in view.variants):
        lines.append(say("threat.speed"))
    return Section("threats", say("threats.title"), (Lines(tuple(lines), is_list=True),))


def _parameters(view: View, say: Words) -> list[str]:
    """Parameter counts further than 1 % apart."""
    counted = sorted((v.parameters.value, v.name) for v in view.variants if v.parameters.value)
    if not counted or counted[-1][0] <= 1.01 * counted[0][0]:
        return []
    share = say.share(counted[-1][0] / counted[0][0] - 1)
    return [say("threat.parameters", share=share, smallest=counted[0][1], largest=counted[-1][1])]
