"""Limits from a file: what is read, what is refused and how, and whether they came before the results."""

from __future__ import annotations

import datetime

import pytest

from termwise.report.decision.limits import ALLOWED, Limits, fixed_before, read_limits

# Words of the libraries that read YAML and check values, which say nothing to who wrote the file.
LIBRARY = ("valid", "Errno", "tuple", "string", "parse", "Input", "codec", "unhashable", "pydantic", "Value error")


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
        (
            "accuracy: -0.1",
            ["limits.yaml: accuracy=-0.1: allowed are numbers from 0 to 10", "correct it or leave it out"],
        ),
        ("accuracy: 1e9", ["accuracy='1e9': allowed are numbers from 0 to 10"]),
        ("accuracy: five", ["accuracy='five': allowed are numbers from 0 to 10"]),
        ("accuracy: [1]", ["accuracy=[1]: allowed are numbers"]),
        ("accuracy: yes", ["accuracy=True", "numbers"]),
        ("acuracy: 0.1", ["unknown field 'acuracy'", "did you mean 'accuracy'?", "fields are accuracy, memory"]),
        ("accuracy: .nan", ["accuracy=nan", "numbers from 0"]),
        ("memory: 0", ["memory=0", "numbers above 0"]),
        ("memory: 1e6", ["memory='1e6'", "at most 1000"]),
        ("latency: -1", ["latency=-1", "numbers above 0"]),
        ("context: 4 thousand", ["context='4 thousand'", "whole numbers of tokens from 1 to 16m, e.g. 4096 or 4k"]),
        ("context: 4.5", ["context=4.5", "whole numbers"]),
        ("context: -1", ["context=-1", "whole numbers"]),
        ("context: 999999999999999999999", ["context=999999999999999999999", "from 1 to 16m"]),
        ("context: 17m", ["context='17m'", "from 1 to 16m"]),
        ("context: 16777217", ["context=16777217", "from 1 to 16m"]),
        ("engines: 3", ["engines=3", "names, one or a list of them"]),
        ("engines: [vllm, 3]", ["engines=['vllm', 3]", "names"]),
        ("engines: ['']", ["engines=['']", "names"]),
        ("engines: {a: b}", ["engines={'a': 'b'}", "names"]),
        ("candidate: [a]", ["candidate=['a']", "names as the records have them"]),
        ("machine: 3", ["machine=3", "a processor's name"]),
        ("currency: [1]", ["currency=[1]", "texts"]),
        ("price_per_hour: -1", ["price_per_hour=-1", "numbers from 0 to 1e9"]),
        ("requests_per_day: 0", ["requests_per_day=0", "numbers above 0"]),
        ("tokens_per_request: 1.5", ["tokens_per_request=1.5", "whole numbers from 1"]),
        ("tokens_per_request: 1e30", ["tokens_per_request='1e30'", "whole numbers from 1"]),
        ("context: true", ["context=True"]),
        ("written: soon", ["written='soon'", "2026-01-31T09:00+09:00"]),
        ("written: 5", ["written=5", "dates"]),
        ("written: 2026-13-45", ["a date or a number that does not exist", "2026-01-31"]),
        ("machine: ''", ["machine=''", "a processor's name"]),
        ("accuracy: 0.1\naccuracy: 0.2", ["accuracy stands there twice"]),
        ("- accuracy", ["holds a list", "accuracy: 0.05"]),
        ("accuracy", ["holds a single value", "accuracy: 0.05"]),
        ("accuracy: [", ["line 1 is not YAML", "accuracy: 0.05"]),
        ("? [a]\n: 1", ["line 1 is not YAML"]),
        ("accuracy: 0.1\nmemory: no", ["memory=False"]),
    ],
)
def test_a_broken_file_gets_one_message_with_file_field_value_and_what_is_allowed(read, text, said):
    with pytest.raises(ValueError, match=r"limits\.yaml") as error:
        read(text)
    message = str(error.value)
    assert all(part in message for part in said) and "\n" not in message
    assert not any(word in message for word in LIBRARY), message


def test_what_is_said_to_be_allowed_is_allowed_at_both_ends(read):
    assert set(ALLOWED) == set(Limits.model_fields)
    for text in (
        "accuracy: 0", "accuracy: 10", "memory: 1000", "latency: 0.001", "context: 1", "context: 16m", "context: 16777216",
        "price_per_hour: 0", "price_per_hour: 1e9", "requests_per_day: 1e12", "tokens_per_request: 1",
        "tokens_per_request: 16777216", "engines: vllm", "currency: USD",
    ):  # fmt: skip
        read(text)
    assert read("context: 1m").context == 2**20


def test_a_wrong_option_is_named_as_an_option(read):
    with pytest.raises(
        ValueError,
        match=r"^--price-per-hour -3.0: allowed are numbers from 0 to 1e9, e.g. 1.2; correct it or leave it out$",
    ):
        read("accuracy: 0.1", price_per_hour=-3.0)


def test_no_file_no_text_and_a_folder(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere.yaml", tmp_path, tmp_path / "bytes.yaml"):
        with pytest.raises(ValueError, match=path.name) as error:
            read_limits(path)
        assert not any(word in str(error.value) for word in LIBRARY) and "accuracy: 0.05" in str(error.value)


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
    with pytest.raises(ValueError, match=r"machine='[ ]*': allowed are parts of a processor's name"):
        read("machine: ' '\n")
