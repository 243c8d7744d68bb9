"""`termwise bench --calibrate`: the constants of the form choice, fitted on some shapes, judged on others."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.bench.shapes import Case, fitted_cases, held_out_cases
from termwise.results import Record, RunFolder, config_hash, now

if TYPE_CHECKING:
    from rich.console import Console

    from termwise.attention.machine import Machine

FORMS = ("parallel", "chunked")
PASSES = 3
REPEATS = 3
# Interleaved calls of one shape in one pass stop after so many seconds.
MOST_SECONDS = 0.7
# What a pair of forms is to each other counts so much more than what each is by itself: that alone is chosen by.
WEIGHT_OF_RATIO = 3.0
GOOD = 1.1  # a pick that takes at most this much of the best form's time


@dataclass(frozen=True)
class Judged:
    """A shape that was not used to fit: seconds of both forms, what the model picks, and what that costs over the best."""

    case: Case
    parallel: float
    chunked: float
    pick: str

    @property
    def regret(self) -> float:
        """Time of the picked form over the time of the best."""
        return getattr(self, self.pick) / min(self.parallel, self.chunked)


@dataclass(frozen=True)
class Calibration:
    """The constants and how well they choose."""

    machine: Machine
    judged: tuple[Judged, ...]
    fitted: tuple[tuple[Case, dict[str, float]], ...] = ()

    @property
    def num_good(self) -> int:
        """Shapes where the picked form is within a tenth of the best."""
        return sum(one.regret <= GOOD for one in self.judged)

    def as_json(self) -> str:
        """For --json: one line."""
        rows = [asdict(one) | {"regret": one.regret} for one in self.judged]
        told = {"seconds": dict(self.machine.seconds), "good": self.num_good, "of": len(self.judged), "held_out": rows}
        return json.dumps(told) + "\n"


def default_folder(threads: int) -> Path:
    """termwise-runs/bench-calibration-THREADS."""
    return Path("termwise-runs") / f"bench-calibration-{threads}"


def describe_calibration(out: Path, threads: int) -> dict[str, Any]:
    """What a calibration would do in `out`."""
    from termwise.attention.machine import machine_file

    RunFolder.check(out, "bench", _resolved(threads))
    fitted, held_out = len(fitted_cases()), len(held_out_cases())
    return {
        "shapes_fitted": fitted, "shapes_held_out": held_out, "kept_in": str(machine_file()),
        "seconds": PASSES * (fitted + held_out) * MOST_SECONDS,
    }  # fmt: skip


def _resolved(threads: int) -> dict[str, Any]:
    return {"calibrate": True, "threads": threads}


def run_calibration(out: Path, *, threads: int, console: Console) -> Calibration:
    """Time both forms on every shape, fit, judge, keep. The caller holds the lock of `out`."""
    from termwise.attention.machine import machine_file
    from termwise.bench.timing import num_threads

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    told = describe_calibration(out, threads)
    say(
        f"{told['shapes_fitted']} shapes to fit, {told['shapes_held_out']} to judge, about {told['seconds']:.0f} s at most"
    )
    folder = RunFolder.create(out, "bench", {"calibrate": True}, _resolved(threads))
    with num_threads(threads):
        times = measured([*fitted_cases(), *held_out_cases()], console)
    fitted = [(case, times[case]) for case in fitted_cases()]
    machine = fit(fitted)
    judged = [judge(case, times[case], machine) for case in held_out_cases()]
    found = Calibration(machine, tuple(judged), tuple(fitted))
    machine.save(
        machine_file(),
        cpu=folder.run["machine"]["cpu"],
        threads=threads,
        measured=now(),
        versions=folder.run["versions"],
    )
    folder.append(*records(found, folder, threads))
    for one in judged:
        say(sentence(one))
    say(f"the picked form is within 10 % of the best on {found.num_good} of {len(judged)} shapes not used to fit it")
    say(f"kept in {machine_file()}; form='auto' goes by it from now on, delete the file to go back")
    return found


def measured(cases: Sequence[Case], console: Console) -> dict[Case, dict[str, float]]:
    """The least times of all cases in some passes over them in another order each, so that a slow minute spoils none for good."""
    from rich.progress import Progress

    found: dict[Case, dict[str, float]] = {}
    with Progress(console=console, transient=True) as progress:
        for number in progress.track([*range(PASSES * len(cases))], description="both forms of every shape"):
            if number % len(cases) == 0:
                order = random.Random(number).sample(cases, len(cases))
            case = order[number % len(cases)]
            times = times_of(case)
            before = found.get(case, times)
            found[case] = {form: min(times[form], before[form]) for form in FORMS}
    return found


def times_of(case: Case) -> dict[str, float]:
    """Seconds of both forms: the least of interleaved calls, which other processes disturb least."""
    import torch

    from termwise.attention.catalogue import catalogue
    from termwise.attention.forms import attend
    from termwise.bench.inputs import Shape, tensors
    from termwise.bench.timing import quiet, seconds

    sizes = (case.batch, case.heads, case.kv_heads, case.key_width, case.value_width)
    spec = catalogue.variant(case.variant).spec
    shape = Shape(*sizes, torch.float32, torch.device("cpu"))
    given = tensors(spec, shape, case.length)
    found: dict[str, list[float]] = {form: [] for form in FORMS}
    with torch.no_grad(), quiet():
        spent = 0.0
        for number in range(REPEATS + 1):
            for form in FORMS:
                clock = seconds(
                    lambda form=form: attend(**given, spec=spec, form=form, output_final_state=case.hands_back),  # type: ignore[misc]
                    shape,
                )
                spent += clock
                if number > 0:
                    found[form].append(clock)
            if number > 0 and spent > MOST_SECONDS:
                break
    return {form: min(clock) for form, clock in found.items()}


def fit(shapes: Sequence[tuple[Case, dict[str, float]]]) -> Machine:
    """Constants from 0 on that come nearest to the times, in their logarithms."""
    import numpy as np
    from scipy.optimize import least_squares, nnls

    from termwise.attention.cost import TERMS
    from termwise.attention.machine import Machine

    rows = []
    for case, times in shapes:
        for form in FORMS:
            terms = terms_of(case, form)
            rows.append([terms.get(name, 0.0) / times[form] for name in TERMS])
    matrix = np.array(rows)
    scale = np.where(matrix.max(axis=0) > 0, matrix.max(axis=0), 1.0)
    matrix = matrix / scale
    start, _ = nnls(matrix, np.ones(len(rows)))

    def errors(constants: np.ndarray) -> np.ndarray:
        logarithms = np.log(np.maximum(matrix @ constants, 1e-6))
        ratios = logarithms[::2] - logarithms[1::2]
        return np.concatenate([logarithms, WEIGHT_OF_RATIO * ratios])

    # A shape that another process disturbed counts less.
    found = least_squares(errors, np.maximum(start, 1e-6), bounds=(0, np.inf), loss="soft_l1", f_scale=0.3)
    constants = (found.x / scale).tolist()
    return Machine(dict(zip(TERMS, constants, strict=True)), source="measured now")


def terms_of(case: Case, form: str) -> dict[str, float]:
    """The terms of a form for a shape."""
    from termwise.attention.catalogue import catalogue
    from termwise.attention.cost import chunked_terms, parallel_terms

    spec = catalogue.variant(case.variant).spec
    return (parallel_terms if form == "parallel" else chunked_terms)(spec, case.work)


def judge(case: Case, times: dict[str, float], machine: Machine) -> Judged:
    """What `choose_form` takes with these constants, beside what both forms need."""
    from termwise.attention.catalogue import catalogue
    from termwise.attention.forms import choose_form

    spec, work = catalogue.variant(case.variant).spec, case.work
    pick, _ = choose_form(
        spec, num_queries=case.length, num_keys=case.length, key_width=case.key_width, value_width=case.value_width,
        heads=work.heads, kv_heads=work.kv_heads, has_decay=spec.log_decay, output_final_state=case.hands_back,
        machine=machine,
    )  # fmt: skip
    return Judged(case, times["parallel"], times["chunked"], pick)


def records(found: Calibration, folder: RunFolder, threads: int) -> list[Record]:
    """Every constant, every held-out shape, and how many were picked well."""
    common: dict[str, Any] = {"run_id": folder.run["run_id"], "kind": "speed", "started": now()}
    made = [
        Record(subject={"constant": name, "threads": threads}, metric="constant", value=value, unit="s", **common)
        for name, value in found.machine.seconds.items()
    ]
    for case, times in found.fitted:
        subject = asdict(case) | {"threads": threads, "role": "fitted"}
        for form, clock in times.items():
            made.append(Record(subject=subject, metric=form, value=clock, unit="s", form=form, **common))
    for one in found.judged:
        subject = asdict(one.case) | {"threads": threads, "role": "held out"}
        common["config_hash"] = config_hash(subject)
        for form in FORMS:
            made.append(Record(subject=subject, metric=form, value=getattr(one, form), unit="s", form=form, **common))
        made.append(
            Record(
                subject=subject,
                metric="pick",
                value=one.regret,
                unit="1",
                form=one.pick,
                method="time over the best form's",
                **common,
            )
        )
    good: dict[str, Any] = {
        "value": found.num_good,
        "n": len(found.judged),
        "method": f"picks within {GOOD:g} of the best",
    }
    return [*made, Record(subject={"threads": threads}, metric="good_picks", unit="1", **good, **common)]


def sentence(one: Judged) -> str:
    """A held-out shape for people."""
    case = one.case
    shape = f"{case.variant}, {case.length:,} tokens, {case.batch} x {case.heads}/{case.kv_heads} heads of {case.key_width}/{case.value_width}"
    times = f"parallel {one.parallel * 1e3:.3g} ms, chunked {one.chunked * 1e3:.3g} ms"
    return f"{shape}: {times}, picked {one.pick}" + (f", {one.regret - 1:.0%} over the best" if one.regret > 1 else "")
