"""What the records say, in plain sentences. The answers come from verdict records; nothing is decided here."""

from __future__ import annotations

from dataclasses import dataclass

from termwise.report.view import Variant, View
from termwise.report.words import Words

ANSWERS = ("lower", "higher", "no difference found", "too few seeds", "too few documents")
MOST_NAMED, MOST_LISTED = 6, 10


@dataclass(frozen=True)
class Group:
    """The variants that got one answer, each with its difference in words, and what the answer does not say."""

    answer: str
    title: str
    items: tuple[tuple[str, str], ...]
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """The headline, what stands under it, and the variants by answer."""

    headline: str
    lines: tuple[str, ...]
    groups: tuple[Group, ...]


def summary(view: View, say: Words) -> Summary:
    """The verdict of a study in words: it may say no, that nothing was found, or that the seeds are too few."""
    answers = {answer: [v for v in view.compared if _answer(v) == answer] for answer in ANSWERS}
    headline = _headline(view, answers, say)
    lines = [line for line in (_state(view, say), _control(view, say)) if line]
    if any(problem.status == "failed" or problem.metric == "held_out_nats" for problem in view.problems):
        lines.append(say("problems.sentence"))
    groups = tuple(_group(answer, found, view, say) for answer, found in answers.items() if found)
    unmeasured = tuple((v.name, "") for v in view.compared if v.loss.value is None)
    if unmeasured and len(unmeasured) < len(view.compared):
        groups += (Group("unmeasured", say("group.unmeasured"), _shortened(unmeasured, say)),)
    return Summary(headline, tuple(lines), groups)


def _answer(variant: Variant) -> str | None:
    """The recorded answer; None for the baseline, without a verdict, and for an answer this version does not know."""
    record = variant.verdict
    return record.reason if record is not None and record.reason in ANSWERS else None


def _headline(view: View, answers: dict[str, list[Variant]], say: Words) -> str:
    measured = [v for v in view.compared if v.loss.value is not None]
    if not measured:
        return say("verdict.empty" if view.is_loss_asked else "verdict.not_asked")
    best = {"variant": measured[0].name, "lowest": measured[0].name, "loss": say.number(measured[0].loss.value)}
    if not any(answers.values()):
        return _without_verdict(view, measured, best, say)
    names = {answer: say.listing([v.name for v in found], MOST_NAMED) for answer, found in answers.items()}
    decided = [answer for answer in ANSWERS[:3] if answers[answer]]
    if not decided:
        answer = "too_few_seeds" if answers["too few seeds"] else "too_few_documents"
        return say(f"verdict.{answer}", **best)
    if decided == ["higher"] and measured[0].is_baseline:
        num_higher = len(answers["higher"])
        key = "verdict.all_higher" if num_higher <= MOST_NAMED else "verdict.all_higher_many"
        return say(key, baseline=view.baseline, names=names["higher"], n=num_higher)
    first = "lower" if answers["lower"] else "none_lower"
    sentences = [say(f"verdict.{first}", names=names["lower"], baseline=view.baseline)]
    if answers["no difference found"]:
        sentences.append(say("verdict.no_difference", names=names["no difference found"], baseline=view.baseline))
    return say.sentences(sentences)


def _without_verdict(view: View, measured: list[Variant], best: dict[str, str], say: Words) -> str:
    if len(view.compared) == 1:
        return say("verdict.alone", **best)
    if not view.baseline:
        return say("verdict.no_baseline_named", **best)
    if not any(v.is_baseline for v in measured):
        return say("verdict.no_baseline", **best, baseline=view.baseline)
    return say("verdict.pending", **best)


def _group(answer: str, found: list[Variant], view: View, say: Words) -> Group:
    key = f"group.note.{answer}"
    ordered = sorted(found, key=lambda v: difference(v) or 0.0)
    items = _shortened(tuple((v.name, _difference_in_words(v, say)) for v in ordered), say)
    return Group(answer, say(f"group.{answer}", baseline=view.baseline), items, say.known(key, ""))


def _shortened(items: tuple[tuple[str, str], ...], say: Words) -> tuple[tuple[str, str], ...]:
    """At most MOST_LISTED items, then how many more the table has."""
    left = len(items) - MOST_LISTED
    return (*items[:MOST_LISTED], (say("group.more", n=left), "")) if left > 1 else items


def _difference_in_words(variant: Variant, say: Words) -> str:
    record = variant.verdict
    text = say.signed(difference(variant))
    if record is None or record.low is None or record.high is None:
        return text
    return f"{text} {say.interval(record.low, record.high, is_signed=True)}"


def difference(variant: Variant) -> float | None:
    """The recorded paired difference from the baseline, whichever record holds it."""
    records = (variant.verdict, variant.over_seeds, variant.over_documents)
    return next((record.value for record in records if record is not None and record.value is not None), None)


def _state(view: View, say: Words) -> str:
    """What a smaller state costs in loss, from measured bytes only."""
    baseline = next((v for v in view.variants if v.is_baseline), None)
    size = baseline.state.value if baseline else None
    if baseline is None or not size or view.context is None:
        return ""
    fields = {"context": say.integer(view.context), "baseline": baseline.name, "baseline_bytes": say.bytes(size)}
    rivals = [v for v in view.compared if not v.is_baseline and v.state.value is not None and v.loss.value is not None]
    smaller = [v for v in rivals if (v.state.value or 0.0) < size]
    if not smaller:
        return say("state.sentence.none", **fields) if rivals else ""
    if difference(smaller[0]) is None:
        return ""
    best = smaller[0]
    share = say.share((best.state.value or 0.0) / size)
    return say(
        "state.sentence",
        **fields,
        variant=best.name,
        difference=say.signed(difference(best)),
        bytes=say.bytes(best.state.value),
        share=share,
    )


def _control(view: View, say: Words) -> str:
    """Whether the baseline, trained a second time, was found to differ from itself."""
    if view.control is None:
        return ""
    answer, fields = _answer(view.control), {"baseline": view.baseline}
    if answer is None:
        return say("control.pending", **fields)
    key = {"no difference found": "none", "lower": "differs", "higher": "differs"}.get(answer, "open")
    fields |= {"difference": _difference_in_words(view.control, say), "answer": say(f"answer.{answer}")}
    return say(f"control.{key}", **fields)
