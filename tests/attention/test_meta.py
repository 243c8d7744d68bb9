"""The suite itself: every test compares something, every value is under contract, every tolerance has a reason and a use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from termwise.attention.catalogue import catalogue
from tests.attention import compare
from tests.attention.compare import (
    all_close,
    close,
    close_states,
    counter,
    equal,
    holds,
    refused,
    relative_rms,
    same_bits,
)
from tests.attention.tolerances import TABLE
from tests.attention.values import EXTRA, NAMES, forms, spec_of

HERE = Path(__file__).parent

CONFTEST = "from tests.attention.conftest import *\n"
EMPTY = """
from tests.attention import compare

def test_compares():
    compare.equal(1, 1)

def test_compares_nothing():
    for value in ():
        compare.equal(value, value)
"""


def test_a_test_that_compares_nothing_fails(tmp_path):
    """A comparison under a loop that never runs: the counter stands still, and the suite fails."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_empty.py").write_text(EMPTY)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    child = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], timeout=120, check=False)
    equal(child.returncode, 1, child.stdout + child.stderr)
    holds("2 passed, 1 error" in child.stdout, child.stdout)
    holds("test_compares_nothing compares nothing" in child.stdout, child.stdout)


def test_every_comparison_is_counted():
    one = torch.ones(2)
    kinds = (
        lambda: close(one, one, "fp64"),
        lambda: all_close({"a": one}, {"a": one}, "fp64"),
        lambda: same_bits(one, one),
        lambda: equal(1, 1),
        lambda: holds(True, ""),
    )
    for kind in kinds:
        before = counter.comparisons
        kind()
        assert counter.comparisons == before + 1
    before = counter.comparisons
    with refused("no"):
        raise ValueError("no")
    assert counter.comparisons == before + 1


def test_comparisons_can_fail():
    one, two = torch.ones(2), torch.full((2,), 2.0)
    nan = torch.tensor([1.0, torch.nan])
    failing = (
        lambda: close(one, two, "fp64"), lambda: close(nan, one, "fp64"), lambda: close(one, nan, "fp64"), lambda: close(one[:1], one, "fp64"),
        lambda: close(one[:0], one[:0], "fp64"), lambda: close(one * (1 + 1e-4), one, "fp32"), lambda: all_close({"a": one}, {}, "fp64"),
        lambda: all_close({"a": one}, {"a": None}, "fp64 gradient"), lambda: same_bits(one, one + 1e-7), lambda: same_bits(one, one.double()),
        lambda: same_bits(one[:0], one[:0]), lambda: equal(1, 2), lambda: holds(False, "no"),
    )  # fmt: skip
    for kind in failing:
        with pytest.raises(AssertionError):
            kind()
    with pytest.raises(AssertionError), refused("yes"):
        raise ValueError("no")
    with pytest.raises(pytest.fail.Exception), refused("yes"):
        pass
    holds(relative_rms(two, one) == 1.0, "twice as much is one off")


def test_every_value_is_under_contract():
    """All names and group members of the catalogue by value, and every extra one."""
    specs = {spec_of(name) for name in NAMES}
    for name in (*catalogue.names(), *(member for group in catalogue.groups().values() for member in group), *EXTRA):
        holds(catalogue.variant(name).spec in specs, f"{name} is not under contract")
    equal(len(specs), len(NAMES), "each value once")
    for name in NAMES:
        holds(len(forms(name)) >= 2, f"{name} has more than one form")


def test_every_kind_of_part_is_under_contract():
    """Kernels, normalizers, gates, decay and slots: each class and option occurs in some value."""
    specs = [spec_of(name) for name in NAMES]
    equal({type(s.kernel).__name__ for s in specs}, {"Exp", "Polynomial", "Power", "FeatureMap", "Drop"}, "kernels")
    equal(
        {type(s.normalizer).__name__ for s in specs},
        {"RowSum", "Count", "L2", "RMS", "Layer", "RunningGateSum", "Identity"},
        "normalizers",
    )
    equal({s.input_gate for s in specs}, {False, True, "count"}, "input gates")
    equal({s.output_gate for s in specs}, {None, "before", "after"}, "output gates")
    for tail in ("Drop", "Polynomial", "Power", "FeatureMap"):
        for decay in (False, True):
            found = [
                s for s in specs if s.local is not None and type(s.kernel).__name__ == tail and s.log_decay is decay
            ]
            holds(bool(found) or (tail == "Power" and decay), f"slots before {tail}, decay {decay}")


def test_every_tolerance_has_a_reason_and_a_use():
    text = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    for row, tolerance in TABLE.items():
        holds(len(tolerance.reason) > 20, f"{row}: a reason")
        holds(f'"{row}"' in text, f"{row}: a use")
    used = set(re.findall(r'close\([^"\n]*"([a-z0-9 ]+)"', text)) & {row for row in TABLE}
    holds(len(used) > 3, "rows are looked up by name")


def test_nothing_is_compared_outside_of_the_table():
    """No tolerance of its own in any test: torch's and pytest's own comparisons are not used but as a plain statement."""
    for path in HERE.glob("test_*.py"):
        source = path.read_text()
        for word in ("assert_close(", "pytest.approx(", "assert_allclose("):
            holds(word not in source or path.name == "test_meta.py", f"{path.name} uses {word}")
    holds(callable(close_states) and hasattr(compare, "TABLE"), "states are compared by the same table")
