"""A verification: which checks hold on the candidate, and whether a long text was streamed through it."""

from __future__ import annotations

from collections.abc import Sequence

from termwise.report.decision.evidence import Checks
from termwise.report.decision.gathering.claim import (
    Claim,
    Keys,
    about,
    is_same,
    model_keys,
    weights_key,
    weights_of,
    whole,
)
from termwise.report.flaws import CHECK, missing_records
from termwise.report.read import Reading
from termwise.report.verify_view import SOAK, VerifyView, check_of, stage_of, verify_view

# Of the soak, those that compare with a twin in float64: without one of them nothing was seen.
SEEN = ("drift", "twin_states")


def subjects(reading: Reading) -> list[Claim]:
    """The model that was verified, for a report that has nothing else to decide on."""
    name = str(reading.setting("model", ""))
    return [Claim(**about(reading), names=(name,), keys=_keys(reading))] if name else []


def _keys(reading: Reading) -> Keys:
    return model_keys(reading.setting("model")) | weights_key(reading.setting("weights"))


def figures(reading: Reading, candidates: Sequence[Claim]) -> list[Claim | None]:
    """The checks of the candidate whose folder was verified; a name alone has other weights."""
    keys, shown = _keys(reading), verify_view(reading)
    return [_figures(shown, candidate) if is_same(keys, candidate.keys) else None for candidate in candidates]


def _figures(shown: VerifyView, candidate: Claim) -> Claim:
    checks = _checks(shown, candidate.context)
    return Claim(
        **about(shown.reading),
        names=candidate.names,
        context=candidate.context,
        checks=checks,
        lacks_weights=not weights_of(_keys(shown.reading)),
    )


def _checks(shown: VerifyView, context: int | None) -> Checks:
    failed = shown.having("failed")
    num_missing, _ = missing_records(shown.reading).get(CHECK, (0, 0))
    return Checks(
        num_passed=len(shown.having("ok")),
        num_failed=len(failed),
        num_not_measured=len(shown.all) - len(shown.having("ok")) - len(failed) + num_missing,
        has_soak=_has_soak(shown, context),
        failed=tuple(sorted({f"{check_of(record)}, {stage_of(record)}" for record in failed})),
        is_whole=shown.is_finished and not num_missing,
    )


def _has_soak(shown: VerifyView, context: int | None) -> bool:
    """Whether a text of at least the context was streamed, and in one precision every check of it has an outcome, none failed."""
    streamed = whole(shown.subject.get("soak")) or whole(shown.reading.setting("soak")) or 0
    records = [by_stage for name, by_stage in shown.records.items() if name in SOAK]
    if not records or (context is not None and streamed < context):
        return False
    if any(record.status == "failed" for by_stage in records for record in by_stage.values()):
        return False
    return any(_is_seen(shown, stage) for stage in shown.stages)


def _is_seen(shown: VerifyView, stage: str) -> bool:
    found = {name: shown.records[name][stage].status for name in SOAK if stage in shown.records.get(name, {})}
    return len(found) == len(SOAK) and any(found[name] == "ok" for name in SEEN)
