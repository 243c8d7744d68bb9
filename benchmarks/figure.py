"""Draw docs/figures/prose.svg and print the tables of the README and of docs/findings.md, all from benchmarks/records.

python benchmarks/figure.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from termwise.statistics.paired import compare

HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "figures" / "prose.svg"


def records(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (HERE / "records" / name / "records.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def losses(found: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Held-out nats per token of each seed."""
    out: dict[str, list[float]] = {}
    for record in found:
        if record["metric"] == "held_out_nats" and record["status"] == "ok":
            out.setdefault(record["subject"]["variant"], []).append(record["value"])
    return dict(sorted(out.items(), key=lambda item: statistics.mean(item[1])))


def scores(found: list[dict[str, Any]]) -> dict[str, dict[int, dict[str, tuple[float, int]]]]:
    """variant -> seed -> document -> (sum of nats, tokens), as `compare` wants them."""
    out: dict[str, dict[int, dict[str, tuple[float, int]]]] = {}
    for record in found:
        if record["metric"] == "held_out_document":
            about = record["subject"]
            seeds = out.setdefault(about["variant"], {})
            seeds.setdefault(about["seed"], {})[about["document"]] = (record["value"] * record["n"], record["n"])
    return out


def states(found: list[dict[str, Any]]) -> tuple[int, dict[str, float]]:
    """The longest length whose state was measured, and the most bytes each variant held at any time up to it."""
    measured = [r for r in found if r["metric"] == "state" and r["status"] == "ok"]
    length = max(r["subject"]["length"] for r in measured)
    return length, {r["subject"]["variant"]: r["value"] for r in measured if r["subject"]["length"] == length}


def cpu_minutes(found: list[dict[str, Any]]) -> tuple[float, int]:
    """Processor time of all runs, recall apart, and their number."""
    seconds = {(r["subject"]["variant"], r["subject"]["seed"]): r["value"] for r in found if r["metric"] == "cpu_time"}
    return sum(seconds.values()) / 60, len(seconds)


def interval(one: Any) -> str:
    return "no interval" if one is None else f"[{one.low:+.3f}, {one.high:+.3f}]"


def table(name: str, baseline: str) -> str:
    """The comparison of a study's variants with one of them, in Markdown."""
    found = records(name)
    told = {c.variant: c for c in compare(scores(found), baseline=baseline)}
    recall = {r["subject"]["variant"]: r["value"] for r in found if r["metric"] == "accuracy"}
    length, state = states(found)
    titles = ["variant", "held-out nats/token", "difference", "over seeds", "over documents", "verdict"]
    titles += ["recall", f"state at {length} tokens, MB"]
    lines = [f"| {' | '.join(titles)} |", f"{'|---' * len(titles)}|"]
    for variant, values in losses(found).items():
        c = told.get(variant)
        cells = [f"`{variant}`", f"{statistics.mean(values):.3f}"]
        bounds = [] if c is None else [interval(c.over_seeds), interval(c.over_documents)]
        cells += ["", "", "", "baseline"] if c is None else [f"{c.difference:+.3f}", *bounds, c.verdict]
        cells.append("not measured" if recall.get(variant) is None else f"{recall[variant]:.2f}")
        cells.append("not measured" if variant not in state else f"{state[variant] / 1e6:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def print_table(name: str, baseline: str) -> None:
    minutes, num_runs = cpu_minutes(records(name))
    print(f"\n{name}, against {baseline}; {num_runs} runs in {minutes:.1f} CPU minutes, recall apart\n")
    print(table(name, baseline))


def draw() -> None:
    import altair as alt
    import vl_convert

    rows = [
        {"study": title, "variant": variant, "loss": value, "mean": statistics.mean(values)}
        for name, title in (("prose", "300 steps, 3 seeds"), ("ladder", "500 steps, 1 seed"))
        for variant, values in losses(records(name)).items()
        for value in values
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("variant:N", sort=alt.EncodingSortField("loss", op="mean"), title=None)
    )
    scale = alt.Scale(zero=False, padding=12)
    dots = base.mark_circle(size=46, opacity=0.55).encode(
        x=alt.X("loss:Q", scale=scale, title="held-out loss, nats/token (lower is better)")
    )
    ticks = base.mark_tick(thickness=2, size=16, color="#333").encode(x="mean(loss):Q")
    text = base.mark_text(dx=26, align="left", baseline="middle", fontSize=11).encode(
        x="max(loss):Q", text=alt.Text("mean(loss):Q", format=".3f")
    )
    layered = alt.layer(dots, ticks, text).properties(width=300)
    chart = layered.facet(column=alt.Column("study:N", title=None, sort="descending")).resolve_scale(y="independent")
    chart = (
        chart.properties(background="white")
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=11, grid=True, gridColor="#eee")
    )
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    FIGURE.write_text(vl_convert.vegalite_to_svg(chart.to_dict()), encoding="utf-8")


if __name__ == "__main__":
    print_table("prose", "softmax")
    print_table("prose", "linear_elu")
    print_table("ladder", "softmax")
    draw()
