"""Every test of this folder must compare something: the suite fails where the counter of comparisons stands still."""

import pytest

from tests.attention import compare


@pytest.fixture(autouse=True)
def compares_something(request):
    before = compare.counter.comparisons
    yield
    if request.node.rep_call_passed:
        assert compare.counter.comparisons > before, f"{request.node.nodeid} compares nothing"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.rep_call_passed = outcome.get_result().passed
