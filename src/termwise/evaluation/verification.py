"""`termwise verify`: the checks of a model, each a record; the cost is said first, an interrupted run goes on."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.sizes import counted
from termwise.evaluation.subject import Opened, open_subject
from termwise.evaluation.verify_config import SOAKED, VerifyConfig
from termwise.results import Record, RunFolder, config_hash, now

if TYPE_CHECKING:
    from torch import Tensor

    from termwise.evaluation.agreement import Check
    from termwise.evaluation.judging import Outcome

Say = Callable[[str], None]
InWords = Callable[[float], str]
SOAK_CHECKS = ("drift", "far", "twin_states", "memory", "bad_rows", "step_time")
EVERY = 20.0  # seconds between two lines about the time left


@dataclass(frozen=True)
class Step:
    """One thing to do: a check in a stage, or the soak in a precision. `seconds`: about how long, at the speed of the probe."""

    stage: str
    name: str
    check: Check | None
    seconds: float


def describe(config: VerifyConfig, out: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What would be done in `out` and about how long it takes. Opens the model and times a few tokens; leaves nothing behind."""
    import tempfile

    RunFolder.check(out, "verify", settings)
    with tempfile.TemporaryDirectory() as folder:
        opened = open_subject(config, Path(folder) / "data", needed=0)
        steps = list(plan(config, opened))
    return {
        "model": opened.described["model"], "checks": sum(step.check is not None for step in steps),
        "stages": list(config.stages), "soak": config.soak, "text": list(config.text) or "the standard library's source",
        "sequences": opened.sizes.num_tokens, "out": str(out), "seconds": sum(step.seconds for step in steps),
        **({} if config.budget is None else {"within_budget": len(within(config.budget, steps))}),
    }  # fmt: skip


def run_verify(
    config: VerifyConfig,
    out: Path,
    settings: Mapping[str, Any],
    *,
    arguments: Mapping[str, Any],
    say: Say,
    in_words: InWords,
) -> RunFolder:
    """Make every check that is not made yet; the caller holds the lock of `out`.

    A run that was interrupted goes on; one that was finished is made again. ValueError for what cannot be opened.
    """
    folder = RunFolder.create(out, "verify", dict(arguments), dict(settings))
    with folder.learning_first("data", "tokenizer"):
        opened = open_subject(config, out / "data", needed=config.soak)
        _verify(config, folder, opened, say, in_words)
    return folder


def _verify(config: VerifyConfig, folder: RunFolder, opened: Opened, say: Say, in_words: InWords) -> None:
    from termwise.evaluation.agreement import CHECKS

    begun = folder.run.get("begun")
    if begun is None or folder.run.get("finished"):
        folder.update(begun=now(), finished=None, subject=opened.described, checks=[check.name for check in CHECKS])
    began = folder.run["begun"]
    done = {(r.subject["stage"], r.subject["check"]) for r in folder.records() if r.started and r.started >= began}
    steps = list(plan(config, opened))
    left = [step for step in steps if not _is_done(step, done)]
    for note in opened.notes:
        say(note)
    if len(left) < len(steps):
        say(f"{len(steps) - len(left)} of {counted(len(steps), 'step')} were made before the interruption")
    seconds = sum(step.seconds for step in left)
    say(f"{counted(len(left), 'check')}, about {in_words(seconds)}")
    beyond = 0
    if config.budget is not None:
        taken = within(config.budget, left)
        beyond, left, seconds = len(left) - len(taken), taken, sum(step.seconds for step in taken)
        say(f"the budget is {in_words(config.budget)}: {len(left)} of them, about {in_words(seconds)}")
    progress = Progress(seconds, say, in_words)
    import transformers

    transformers.logging.set_verbosity_error()
    for stage in dict.fromkeys(step.stage for step in left):
        _run_stage([step for step in left if step.stage == stage], config, folder, opened, progress)
    if beyond:
        say(f"the budget is spent; {counted(beyond, 'check')} not made yet (the same command goes on with them)")
        return
    folder.update(finished=now())


def within(budget: float, steps: Sequence[Step]) -> list[Step]:
    """Those that a budget in seconds is spent on, in their own order; one at least.

    Rank after rank; within one as they follow each other, up to the first that does not fit: a later one may rest on it.
    """
    from termwise.evaluation.agreement import rank

    ranks: dict[int, list[Step]] = {}
    for step in steps:
        ranks.setdefault(rank(step.stage, step.name), []).append(step)
    taken: list[Step] = []
    for number in sorted(ranks):
        for step in ranks[number]:
            if taken and step.seconds > budget:
                break
            taken.append(step)
            budget -= step.seconds
    return [step for step in steps if step in taken]


def _is_done(step: Step, done: set[tuple[str, str]]) -> bool:
    names = (step.name,) if step.check is not None or step.name == "original" else SOAK_CHECKS
    return all((step.stage, name) in done for name in names)


@dataclass
class Progress:
    """Time left: what is estimated to be left, at the speed seen so far."""

    estimated: float
    say: Say
    in_words: InWords

    def __post_init__(self) -> None:
        self._started = self._told = time.monotonic()
        self._done = 0.0

    def add(self, seconds: float, what: str) -> None:
        """So much of the estimate is done."""
        self._done += seconds
        spent = time.monotonic() - self._started
        if time.monotonic() - self._told < EVERY or not self._done:
            return
        self._told = time.monotonic()
        left = max(0.0, self.estimated - self._done) * spent / self._done
        self.say(f"[{min(1.0, self._done / self.estimated):.0%}] {what}; {self.in_words(left)} left")


def plan(config: VerifyConfig, opened: Opened) -> Iterator[Step]:
    """Every step with its estimate; the soak of a precision stands after its checks."""
    from termwise.evaluation.agreement import SLOWNESS, planned

    per_token, per_call = _probe(opened.model, opened.text)
    yield Step("original", "original", None, 4 * 128 * per_token)
    for stage in config.stages:
        # What is exact is computed before the first check, and in a narrow precision the plain form after it.
        before = SLOWNESS["float64"] + (SLOWNESS[stage] if stage in SOAKED else 0.0)
        seconds = opened.sizes.num_tokens * per_token * before
        for own, check in planned([stage], is_quick=config.quick):
            tokens, calls = check.work(opened.sizes)
            seconds += SLOWNESS[stage] * (tokens * per_token + calls * per_call)
            yield Step(own, check.name, check, seconds)
            seconds = 0.0
        if stage in config.soaked:
            length = config.soak_length
            yield Step(stage, "soak", None, SLOWNESS[stage] * length * (2.5 * per_token + per_call / 40))


def _probe(model: Any, text: Tensor) -> tuple[float, float]:
    """Seconds of a token in a long call, and of a call of one token."""
    import torch

    with torch.no_grad():
        for _ in range(2):
            began = time.perf_counter()
            cache = model(text[None, :96], use_cache=model.model.no_state is None).cache
            per_token = (time.perf_counter() - began) / 96
        times = [0.0]
        for i in range(4) if cache is not None else ():
            began = time.perf_counter()
            model(text[None, 96 + i : 97 + i], cache=cache)
            times.append(time.perf_counter() - began)
        # The first step compiles loops.
        return per_token, statistics.median(times[2:] or times)


def _run_stage(
    steps: Sequence[Step], config: VerifyConfig, folder: RunFolder, opened: Opened, progress: Progress
) -> None:
    from termwise.evaluation.agreement import run_check
    from termwise.evaluation.exam import Exam

    stage = steps[0].stage
    exam: Exam | None = None
    for step in steps:
        started, began = now(), time.perf_counter()
        if step.name == "original":
            outcomes = {"original": _original(opened)}
        elif step.check is None:
            outcomes = _soak(config, opened, stage, progress, step.seconds)
        else:
            if exam is None:
                exam = Exam(opened.model, opened.text, stage, config.seed)
                with exam.at_work():
                    exam.prepare()
            outcomes = {step.name: run_check(step.check, exam)}
        each = (time.perf_counter() - began) / len(outcomes)
        folder.append(*(_record(folder, stage, name, found, started, each) for name, found in outcomes.items()))
        for name, found in outcomes.items():
            if found.status == "failed":
                progress.say(f"FAILED {name} in {stage}: {found.reason}")
        if step.name != "soak":
            progress.add(step.seconds, f"{step.name} in {stage}")


def _original(opened: Opened) -> Outcome:
    from termwise.evaluation.original import own_class

    return own_class(opened.model, opened.folder, opened.text)


def _soak(config: VerifyConfig, opened: Opened, stage: str, progress: Progress, seconds: float) -> dict[str, Outcome]:
    import torch

    from termwise.evaluation import soak, soaked
    from termwise.evaluation.exam import DTYPES as TYPES
    from termwise.evaluation.judging import Outcome

    length = config.soak_length
    opened.model.to(TYPES[stage])
    done = 0

    def tick(tokens: int) -> None:
        nonlocal done
        progress.add(seconds * (tokens - done) / length, f"soak in {stage}, token {tokens:,}")
        done = tokens

    try:
        seen = soak.stream(opened.model, opened.text, length, tick)
    except ValueError as error:
        return {name: Outcome(None, status="excluded", reason=str(error)) for name in SOAK_CHECKS}
    except (RuntimeError, torch.OutOfMemoryError, AssertionError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {name: Outcome(None, status="failed", reason=reason) for name in SOAK_CHECKS}
    far = soaked.far(seen, opened.model.config.num_hidden_layers)
    found = (
        soaked.drift(seen),
        far,
        soaked.states(seen),
        soaked.memory(seen),
        soaked.bad_rows(seen),
        soaked.step_time(seen),
    )
    return dict(zip(SOAK_CHECKS, found, strict=True))


def _record(folder: RunFolder, stage: str, name: str, found: Outcome, started: str, seconds: float) -> Record:
    is_ok = found.status == "ok"
    subject: dict[str, Any] = {"check": name, "stage": stage, "tolerance": found.tolerance, **found.where}
    if not is_ok and found.value is not None and found.value == found.value and abs(found.value) != float("inf"):
        subject["measured"] = found.value
    return Record(
        run_id=folder.run["run_id"], kind="check", subject=subject, metric=found.metric, unit=found.unit,
        value=found.value if is_ok else None, status=found.status, reason=found.reason, method=found.method,
        started=started, seconds=seconds, config_hash=config_hash(folder.run["resolved"]),
    )  # fmt: skip


def failures(folder: RunFolder) -> int:
    """Checks of the last verification that failed."""
    return sum(record.status == "failed" for record in _last(folder))


def as_json(folder: RunFolder, num_failed: int) -> str:
    """One line for programs: the folder, its page, how many failed, every record."""
    records = [asdict(record) for record in _last(folder)]
    told = {
        "folder": str(folder.path),
        "page": str(folder.path / "index.html"),
        "failures": num_failed,
        "records": records,
    }
    return json.dumps(told, ensure_ascii=False) + "\n"


def _last(folder: RunFolder) -> list[Record]:
    """The last word on each check in each stage since the verification began."""
    begun = folder.run["begun"]
    since = [record for record in folder.records() if (record.started or "") >= begun]
    return list({(record.subject["stage"], record.subject["check"]): record for record in since}.values())
