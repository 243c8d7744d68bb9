"""What plans and conversions say of a figure that has no interval is a sentence all the same, on the page and at the end of the command."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from termwise.report import page, terminal
from termwise.report.words import LANGUAGES
from termwise.results import Record, RunFolder

BOUNDS = {"low": 0.01, "high": 0.02, "level": 0.95}
WRITTEN = "[+0.010, +0.020]"
TARGETS = {"share": None, "holds": 0.5, "broken": 0.015}
PLAN = {
    "en": {
        "share": "With 25.0 % of the cache's bytes the loss changes by +0.012 nats a token {}.",
        "holds": "The loss changes by +0.012 nats a token {} with 25.0 % of the cache's bytes: the target of 0.5 holds.",
        "broken": "The loss changes by +0.012 nats a token {} with 25.0 % of the cache's bytes: the target of 0.015 is not shown",
    },
    "ja": {
        "share": "キャッシュのバイト数の25.0%で、損失は+0.012ナット/トークン（{}）変化します。",
        "holds": "損失は+0.012ナット/トークン（{}）変化します。目標0.5は守られています。",
        "broken": "損失は+0.012ナット/トークン（{}）変化します。目標0.015が守られるとは示されていません。",
    },
}
NONE = {"en": "(no interval)", "ja": "区間なし"}
GAIN = {
    "en": "At 25.0 %: +0.0123 nats against a window and 4 sinks in every head; too few texts for an interval.",
    "ja": "25.0%では、全ヘッドでウィンドウとシンク4個に対して+0.0123ナット/トークンです。テキストが少なすぎて区間を出せません。",
}
TUNED = {
    "en": "Converted and tuned less the original tuned as long on the same text: +0.0123 {}.",
    "ja": "同じテキストで同じだけ追加学習した元のモデルを引いた差：+0.0123（{}）。",
}


def written(folder: RunFolder, kind: str, metric: str, subject: dict, value: float = 0.0123, **rest) -> None:
    common = {"run_id": folder.run["run_id"], "config_hash": "0" * 12, "unit": "nats/token"}
    folder.append(Record(kind=kind, metric=metric, subject=subject, value=value, **(common | rest)))


def plan(path, bounds: dict, target: float | None = None) -> RunFolder:
    """A plan with one point that was evaluated, and its difference from a window."""
    settings = {"source": "m", "context": 64, "texts": 3, "max_loss": target, "about": {"name": "m"}}
    folder = RunFolder.create(path, "plan", {}, settings)
    subject = {"plan": "p", "method": "termwise", "share": 0.25, "is_chosen": True}
    written(folder, "memory", "state_share", subject, 0.25, unit="share")
    written(folder, "loss", "loss_rise", subject, baseline="exact", n=3, **bounds)
    written(folder, "loss", "gain", subject, baseline="uniform", n=3, **bounds)
    return folder


def conversion(path, bounds: dict) -> RunFolder:
    """A finished one whose original was tuned as well."""
    folder = RunFolder.create(path, "convert", {}, {"model": "m", "plan": "identity"})
    for name in ("original", "converted", "converted, tuned", "original, tuned"):
        written(folder, "loss", "held_out_nats", {"variant": name}, 2.0, n=9)
    for baseline in ("original", "original, tuned"):
        written(folder, "loss", "difference", {"variant": "converted, tuned"}, baseline=baseline, n=9, **bounds)
    folder.update(finished=True)
    return folder


def joined(text: str) -> str:
    """Without any space: captions of tables are broken where their width ends."""
    return "".join(text.split())


def told(folder: RunFolder, language: str) -> list[str]:
    """The page and the end of the command."""
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(terminal.summary(folder.path, lang=language))
    pages = [page.write(folder.path, lang=language).read_text(encoding="utf-8"), console.export_text()]
    return [joined(text.replace("&#39;", "'")) for text in pages]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("has_bounds", [True, False])
def test_a_plan_says_what_it_loses(tmp_path, language, has_bounds):
    keys = ["share", "holds", "broken"] if has_bounds else ["share", "broken"]
    for key in keys:
        folder = plan(tmp_path / key, BOUNDS if has_bounds else {}, TARGETS[key])
        for text in told(folder, language):
            assert joined(PLAN[language][key].format(WRITTEN if has_bounds else NONE[language])) in text
            assert (joined(GAIN[language]) in text) is not has_bounds


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("has_bounds", [True, False])
def test_a_conversion_says_what_tuning_could_not_win_back(tmp_path, language, has_bounds):
    for text in told(conversion(tmp_path / "out", BOUNDS if has_bounds else {}), language):
        assert joined(TUNED[language].format(WRITTEN if has_bounds else NONE[language])) in text


def test_plans_that_do_not_say_what_they_keep_are_not_taken_for_one():
    from termwise.report.plan_view import PlanView, Point

    def view(*digests):
        methods = ("termwise", "slots")
        points = tuple(Point(m, 0.25, False, d, None, None, None, None) for m, d in zip(methods, digests, strict=True))
        return PlanView(None, points, {}, (), (), {}, {}, None, None, 0)

    found = [view(*pair).is_rival_itself(0.25, "slots") for pair in (("a", "a"), ("a", "b"), (None, None), (None, "a"))]
    assert found == [True, False, False, False]
