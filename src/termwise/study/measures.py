"""From the results of runs to records: held-out loss, comparisons, recall, memory, speed, checks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from termwise.results import Record, RunFolder
from termwise.study import recall
from termwise.study.grid import BASELINE, Entry

Result = dict[str, Any]
NATS = "nats/token"


# With fewer the loss says more of the passage than of the model.
FEW_TOKENS = 1000
# Of result.json: raised whenever its fields change.
RESULT_SCHEMA = 2


def read_result(folder: Path) -> Result | None:
    """result.json of a run folder; None while the run has none. ValueError, with the way out, for a damaged or an older one."""
    path = folder / "result.json"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and the same command does this run again") from None
    if result.get("schema") != RESULT_SCHEMA:
        raise ValueError(f"{path} was written by another version of termwise: go on with that one, or give a new --out")
    return result


def few_scored(num_tokens: int) -> str | None:
    """What must be said of a loss on so few tokens; None where they are enough."""
    if num_tokens >= FEW_TOKENS:
        return None
    return f"fewer than {FEW_TOKENS:,} tokens are scored: a loss on so few is not worth much; give more text or score more of it"


class Recorder:
    """Appends records to a run folder unless its last word on the same thing says the same: a study taken up repeats nothing."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._last = {_key(record): _told(record) for record in folder.records()}

    def add(self, records: Iterable[Record]) -> None:
        """Append what is new."""
        new = [record for record in records if self._last.get(_key(record)) != _told(record)]
        self._last |= {_key(record): _told(record) for record in new}
        self._folder.append(*new)


def _key(record: Record) -> str:
    """What a record is about: of two with one key, readers take the later."""
    return json.dumps([record.kind, record.metric, record.subject, record.method, record.baseline], sort_keys=True)


def _told(record: Record) -> tuple[Any, ...]:
    return (record.value, record.low, record.high, record.level, record.n, record.status, record.reason)


def failed(run_id: str, variant: str, seed: int, reason: str, **fields: Any) -> Record:
    """The record of a run that gave no loss. A later record of the same run replaces it for every reader."""
    return Record(
        run_id=run_id, kind="loss", subject={"variant": variant, "seed": seed}, metric="held_out_nats", value=None,
        unit=NATS, status="failed", reason=reason, **fields,
    )  # fmt: skip


def records_of_run(run_id: str, result: Result) -> Iterator[Record]:
    """The records of one training run."""
    variant, seed = result["variant"], result["seed"]
    subject = {"variant": variant, "seed": seed}
    common = {"started": result["started"], "seconds": result["seconds"], "config_hash": result["config_hash"]}
    common["form"] = result.get("form")
    if result["status"] != "ok":
        yield failed(run_id, variant, seed, result["reason"], **common)
        return

    def record(
        kind: str, metric: str, value: float | None, unit: str, *, on: Mapping[str, Any] = subject, **rest: Any
    ) -> Record:
        return Record(
            run_id=run_id, kind=kind, subject=dict(on), metric=metric, value=value, unit=unit, **common, **rest
        )

    held_out = result["held_out"]
    yield record("loss", "held_out_nats", held_out["nats"], NATS, n=held_out["tokens"])
    if held_out["bits"] is not None:
        yield record("loss", "held_out_bits", held_out["bits"], "bits/byte", n=held_out["tokens"])
    for low, high, nats in held_out["by_position"]:
        yield record(
            "loss", "held_out_by_position", nats, NATS, on=subject | {"position_low": low, "position_high": high}
        )
    for document, nats, tokens in held_out["documents"]:
        yield record("loss", "held_out_document", nats / tokens, NATS, on=subject | {"document": document}, n=tokens)
    if result["train_loss"] is not None:
        yield record("train", "train_loss", result["train_loss"], NATS)
    yield record("speed", "training_tokens", result["tokens_per_second"], "tokens/s", n=result["steps"])
    yield record("speed", "cpu_time", result["cpu_seconds"], "s", method="of the process that finished the run")
    yield record("memory", "parameters", result["parameters"], "1", on={"variant": variant})
    for metric in ("state", "state_formula"):
        for length, found in result[metric].items():
            yield _bytes_or_reason(record, metric, {"variant": variant, "length": int(length)}, found)
    for metric, layer, head, share in result["rows"]:
        yield record("check", metric, share, "share", on=subject | {"layer": layer, "head": head})


def _bytes_or_reason(record: Any, metric: str, subject: dict[str, Any], found: int | str) -> Record:
    if isinstance(found, str):
        return record("memory", metric, None, "B", on=subject, status="not_measured", reason=found)
    return record("memory", metric, found, "B", on=subject)


def records_of_recall(run_id: str, results: Sequence[Result], controls: Collection[str] = ()) -> Iterator[Record]:
    """Accuracy and steps of every variant's recall run, judged at three times the median step of those that reached it.

    The median is of the variants compared: a control moves nobody's limit.
    """
    good = [result for result in results if result["status"] == "ok"]
    allowed = recall.allowed_steps(result["curve"] for result in good if result["variant"] not in controls)
    for result in results:
        common = {name: result[name] for name in ("started", "seconds", "config_hash")} | {
            "run_id": run_id,
            "kind": "recall",
        }
        subject = {"variant": result["variant"], "seed": result["seed"]}
        if result["status"] != "ok":
            yield Record(
                subject=subject,
                metric="accuracy",
                value=None,
                unit="share",
                status="failed",
                reason=result["reason"],
                **common,
            )
            continue
        most = min(allowed or result["max_steps"], result["max_steps"])
        curve = [(step, accuracy) for step, accuracy in result["curve"] if step <= most]
        yield Record(
            subject=subject, metric="accuracy", value=curve[-1][1], unit="share", n=int(curve[-1][0]), **common
        )
        steps = recall.steps_to_recall(curve)
        told = (
            {"value": steps}
            if steps
            else {"value": None, "status": "not_measured", "reason": f"not reached within {most:,} steps"}
        )
        yield Record(subject=subject, metric="steps_to_recall", unit="steps", **told, **common)
        # A run of an earlier version did not look.
        for low, high, accuracy, number in result.get("by_distance", ()):
            at = subject | {"distance_low": low, "distance_high": high}
            yield Record(
                subject=at, metric="accuracy_by_distance", value=accuracy, unit="share", n=number,
                method="at the last step of the run", **common,
            )  # fmt: skip


def not_measured_recall(run_id: str, variants: Iterable[str], reason: str) -> Iterator[Record]:
    """Recall that was left out, with the reason."""
    for variant in variants:
        yield Record(
            run_id=run_id, kind="recall", subject={"variant": variant}, metric="accuracy", value=None, unit="share",
            status="not_measured", reason=reason,
        )  # fmt: skip


def comparisons(run_id: str, results: Iterable[Result], entries: Sequence[Entry]) -> Iterator[Record]:
    """Every variant against softmax: the paired difference with its two intervals, and the verdict. None without softmax.

    A control is compared by itself, outside Holm's correction: it checks the method and widens nobody's interval.
    """
    from termwise.statistics.paired import compare

    scores = _scores(results, {entry.name: entry.seed_offset for entry in entries})
    if BASELINE not in scores:
        return
    compared = [entry.name for entry in entries if not entry.control_of]
    controls = [[BASELINE, entry.name] for entry in entries if entry.control_of]
    for family in (compared, *controls):
        for one in compare({name: scores[name] for name in family if name in scores}, baseline=BASELINE):
            yield from _records_of_comparison(run_id, one)


def _scores(
    results: Iterable[Result], offsets: Mapping[str, int]
) -> dict[str, dict[int, dict[str, tuple[float, int]]]]:
    """What each run scored, by variant and the grid's seed: a control's run stands beside the one it repeats."""
    scores: dict[str, dict[int, dict[str, tuple[float, int]]]] = {}
    for result in results:
        if result["status"] == "ok":
            documents = {name: (nats, tokens) for name, nats, tokens in result["held_out"]["documents"]}
            seed = result["seed"] - offsets[result["variant"]]
            scores.setdefault(result["variant"], {})[seed] = documents
    return scores


def _records_of_comparison(run_id: str, one: Any) -> Iterator[Record]:
    common = {
        "run_id": run_id,
        "kind": "score",
        "subject": {"variant": one.variant},
        "unit": NATS,
        "baseline": one.baseline,
    }
    if one.difference is None:
        reason = f"no seed was trained with both {one.variant} and {one.baseline}"
        yield Record(metric="verdict", value=None, status="not_measured", reason=reason, **common)
        return
    for interval in (one.over_seeds, one.over_documents):
        if interval is not None:
            bounds = {"low": interval.low, "high": interval.high, "level": interval.level, "n": interval.n}
            yield Record(metric="paired_difference", value=one.difference, method=interval.method, **bounds, **common)
    wider = one.wider
    bounds = {"low": wider.low, "high": wider.high, "level": wider.level} if wider else {}
    yield Record(metric="verdict", value=one.difference, reason=one.verdict, n=len(one.by_seed), **bounds, **common)


def sentence(result: Result) -> str:
    """How a run went, for people."""
    if result["status"] != "ok":
        return f"failed: {result['reason']}"
    if result["kind"] == "recall":
        steps = recall.steps_to_recall(result["curve"])
        reached = f"after {steps:,} steps" if steps else f"not reached within {result['max_steps']:,} steps"
        return f"recall {result['curve'][-1][1]:.2f}, {reached}"
    held_out = result["held_out"]
    bits = f" ({held_out['bits']:.3f} bits/byte)" if held_out["bits"] is not None else ""
    scored = f"{held_out['nats']:.4f} nats/token{bits} on {held_out['tokens']:,} held-out tokens"
    return f"{scored}, {result['tokens_per_second']:,.0f} tokens/s in training"


# A record of one of these, or of these kinds for one head, is a part of a figure that stands beside it.
PLACES = ("document", "text", "position_low", "distance_low")
KINDS_OF_HEADS = ("term", "score", "check")


def as_json(folder: Path) -> dict[str, Any]:
    """The records of a folder for programs: the last word on each measure, without the parts that make the bulk.

    Left out are those of one document, passage or stretch of positions, and the terms, scores and checks of one head.
    """
    latest = {_key(record): record for record in RunFolder.open(folder).records()}
    return {"records": [json.loads(record.to_json()) for record in latest.values() if not _is_part(record)]}


def _is_part(record: Record) -> bool:
    subject = record.subject
    is_of_head = record.kind in KINDS_OF_HEADS and ("kv_head" in subject or "head" in subject)
    return is_of_head or any(subject.get(name) is not None for name in PLACES)
