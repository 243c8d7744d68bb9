"""Two models of one run on the same documents, or two rungs on the same texts: the difference with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from termwise.report.decision.figures import LEVEL, Figure, as_evidence, missing
from termwise.report.decision.gathering.claim import NATS
from termwise.report.read import Reading

Documents = dict[str, tuple[float, int]]


def documents_of(reading: Reading, name: str, seed: int | None = None) -> Documents:
    """document -> (sum of nats, tokens) of one model, the later record where there are two."""
    about = {"variant": name} | ({} if seed is None else {"seed": seed})
    return {
        str(record.subject.get("document")): (record.value * record.n, record.n)
        for record in reading.records
        if record.metric == "held_out_document" and record.value is not None and record.n and record.n > 0
        if all(record.subject.get(field) == value for field, value in about.items())
    }


def difference_of_documents(reading: Reading, one: str, other: str) -> Figure:
    """The first less the second in nats/token, with the bootstrap interval over documents."""
    import numpy as np

    from termwise.statistics.intervals import bootstrap

    source, first, second = str(reading.folder.path), documents_of(reading, one), documents_of(reading, other)
    names = sorted(first)
    is_paired = first.keys() == second.keys() and all(first[name][1] == second[name][1] for name in names)
    if not names or not is_paired:
        return missing("decision.why.other_documents", source)
    nats = np.array([[first[name][0] - second[name][0] for name in names]])
    tokens = np.array([float(first[name][1]) for name in names])
    value, interval = float(nats.sum() / tokens.sum()), bootstrap(nats, tokens)[0].interval(LEVEL)
    if interval is None:
        return Figure(value, n=len(names), unit=NATS, source=source, why="decision.why.too_few_documents")
    return Figure(value, interval.low, interval.high, LEVEL, len(names), NATS, source)


def difference_of_texts(differences: Sequence[float], unit: str, source: str) -> Figure:
    """A mean over texts of equal length with its interval."""
    from termwise.statistics.intervals import over_texts

    value, interval = sum(differences) / len(differences), over_texts(differences, LEVEL)
    if interval is None:
        return Figure(value, n=len(differences), unit=unit, source=source, why="decision.why.too_few_texts")
    return as_evidence(Figure(value, interval.low, interval.high, LEVEL, len(differences), unit, source))
