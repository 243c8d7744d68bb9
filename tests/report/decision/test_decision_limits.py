"""Limits from a file: what is read, what is refused and how, and whether they came before the results."""

from __future__ import annotations

import datetime

import pytest

from termwise.report.decision.limits import Limits, fixed_before, read_limits


@pytest.fixture
def read(tmp_path):
    def read(text: str, **given):
        path = tmp_path / "limits.yaml"
        path.write_text(text, encoding="utf-8")
        return read_limits(path, **given)

    return read


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_means_the_defaults_without_a_date(read, text):
    assert read(text) == Limits() == read_limits()
    assert read(text).written is None


def test_every_field_is_read(read):
    found = read(
        "accuracy: 0.02\nmemory: 0.5\nlatency: 0.9\ncontext: 4k\ncandidate: plan:25%\nmachine: EPYC\nengines: [transformers]\n"
        "written: 2026-01-31T09:00:00+09:00\nprice_per_hour: 1.5\nrequests_per_day: 1e4\ntokens_per_request: 300\ncurrency: JPY\n"
    )
    assert (found.accuracy, found.memory, found.latency, found.context) == (0.02, 0.5, 0.9, 4096)
    assert found.engines == ("transformers",) and found.requests_per_day == 10_000
    assert found.written == datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)


def test_the_command_line_overrides_the_file_and_none_does_not(read):
    found = read("accuracy: 0.02\nprice_per_hour: 1", price_per_hour=2.0, requests_per_day=None, candidate="a")
    assert (found.accuracy, found.price_per_hour, found.requests_per_day, found.candidate) == (0.02, 2.0, None, "a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accuracy: -0.1", ["limits.yaml: accuracy=-0.1", "greater than or equal to 0"]),
        ("accuracy: yes", ["accuracy=True", "numbers"]),
        ("acuracy: 0.1", ["unknown field 'acuracy'", "did you mean 'accuracy'?", "fields are accuracy, memory"]),
        ("accuracy: .nan", ["accuracy=nan", "finite"]),
        ("memory: 0", ["memory=0", "greater than 0"]),
        ("context: 4 thousand", ["context='4 thousand'", "integer"]),
        ("context: true", ["context=True"]),
        ("written: soon", ["written='soon'", "2026-01-31T09:00+09:00"]),
        ("written: 5", ["written=5", "dates"]),
        ("written: 2026-13-45", ["not YAML", "month"]),
        ("machine: ''", ["machine=''", "at least 1 character"]),
        ("accuracy: 0.1\naccuracy: 0.2", ["accuracy stands there twice"]),
        ("- accuracy", ["holds list", "accuracy: 0.05"]),
        ("accuracy: [", ["not YAML"]),
        ("accuracy: 0.1\nmemory: no", ["memory=False"]),
    ],
)
def test_a_broken_file_gets_one_message_with_file_field_value_and_what_is_allowed(read, text, said):
    with pytest.raises(ValueError, match=r"limits\.yaml") as error:
        read(text)
    message = str(error.value)
    assert all(part in message for part in said) and "\n" not in message


def test_a_wrong_option_is_named_as_an_option(read):
    with pytest.raises(ValueError, match=r"^--price-per-hour -3.0: allowed is greater than or equal to 0$"):
        read("accuracy: 0.1", price_per_hour=-3.0)


def test_no_file_no_text_and_a_folder(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere.yaml", tmp_path, tmp_path / "bytes.yaml"):
        with pytest.raises(ValueError, match=path.name):
            read_limits(path)


@pytest.mark.parametrize(
    ("written", "is_before"),
    [
        ("2026-02-01T09:59:59", True),
        ("2026-02-01T10:00:00", False),
        ("2026-02-01T18:59:59+09:00", True),
        ("2026-02-01T19:00:01+09:00", False),
        ("2026-01-31", True),
        ("2026-02-01", False),
    ],
)
def test_limits_count_as_fixed_before_the_first_run_alone(written, is_before):
    created = ["2026-02-03T00:00:00+00:00", "2026-02-01T10:00:00", "nonsense", None]
    assert fixed_before(Limits(written=written), created) is is_before


def test_without_a_date_or_a_run_that_is_not_known():
    assert fixed_before(Limits(), ["2026-02-01T10:00:00"]) is None
    assert fixed_before(Limits(written="2026-01-31"), ["nonsense", 3]) is None


@pytest.mark.parametrize("written", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+14:00", "9999-12-31"])
def test_a_day_that_other_zones_do_not_have_is_refused(read, written):
    with pytest.raises(ValueError, match=r"written=.*allowed are dates and times"):
        read(f"written: {written}\n")


def test_a_blank_machine_is_refused_as_it_stands_in_every_name(read):
    with pytest.raises(ValueError, match=r"machine='[ ]*': allowed is at least 1 character"):
        read("machine: ' '\n")
