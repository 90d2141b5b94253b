"""How many updates per env step does learning bear? The replay ratio swept, in three variants.

The plain DQN that many people write (one-step targets, no double Q-learning), the same with two
remedies (layer normalisation, a slower target network), and the presets. Equal env steps for all, so
that only the number of updates differs:

    python -m bench.replay_ratio --output replay-ratio

writes ``replay-ratio.json`` (a row per run), ``replay-ratio.md`` (the table) and the figure
``replay-ratio.png``. Rows that are there already are not run again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.fresh_run import fresh_run
from bench.stats import median, median_interval
from bench.summary import write_json

RATIOS = (1 / 32, 1 / 8, 1.0, 4.0, 16.0)
# Small batches, so that 16 updates for each env step end in minutes.
COMMON = ("--strategy", "single", "--batch-size", "32", "--evaluate-every-env-steps", "500")
APART = 1.12  # in the figure, from one variant to the next
PLAIN = ("--n-step", "1", "--no-double")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "plain DQN": PLAIN,
    "with two remedies": (*PLAIN, "--layer-norm", "--target-update", "200"),
    "presets": (),
}

Row = dict[str, Any]


def run_one(ratio: float, variant: str, seed: int, steps: int) -> Row:
    """Train once in a process of its own and return what matters of its summary."""
    with tempfile.TemporaryDirectory() as folder:
        choices = [*COMMON, *VARIANTS[variant], "--replay-ratio", str(ratio)]
        choices += ["--seed", str(seed), "--steps", str(steps)]
        summary = fresh_run(choices, Path(folder) / "run")
    alarms = summary["health"]["alarms"]
    return {
        "ratio": ratio,
        "variant": variant,
        "seed": seed,
        "steps": steps,
        "status": summary["status"],
        "achieved": summary["replay_ratio"]["achieved"],
        "final_return": summary["returns"]["eval_mean"],
        "best_return": summary["returns"]["best_mean"],
        "q_max": summary["health"]["q_max"],
        "q_bias": summary["health"]["q_bias"],
        "alarms": [each["name"] for each in alarms],
        "training_seconds": summary["training_seconds"],
    }


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table: a line per ratio and variant, medians with 95% intervals over seeds."""
    lines = [
        "| replay ratio | variant | seeds | final return (95% interval) | best return | largest Q | "
        "seeds with alarms |",
        "|---|---|---|---|---|---|---|",
    ]
    for ratio, variant in sorted({(row["ratio"], row["variant"]) for row in rows}, key=_order):
        group = [row for row in rows if (row["ratio"], row["variant"]) == (ratio, variant)]
        final = [row["final_return"] for row in group if row["final_return"] is not None]
        alarmed = sum(bool(row["alarms"]) for row in group)
        names = sorted({name for row in group for name in row["alarms"]})
        lines.append(
            f"| {ratio:g} | {variant} | {len(group)} | {_with_interval(final)} | "
            f"{_median(group, 'best_return')} | {_median(group, 'q_max')} | "
            f"{alarmed} of {len(group)}{' (' + ', '.join(names) + ')' if names else ''} |"
        )
    return "\n".join(lines)


def _order(of: tuple[float, str]) -> tuple[float, int]:
    """Ratios, then the variants as they are listed; one of an older file comes last."""
    ratio, variant = of
    return ratio, list(VARIANTS).index(variant) if variant in VARIANTS else len(VARIANTS)


def _with_interval(values: Sequence[float]) -> str:
    if not values:
        return "-"
    interval = median_interval(values)
    beside = "" if interval is None else f" ({interval.low:.0f} to {interval.high:.0f})"
    return f"{median(values):.0f}{beside}"


def _median(rows: Sequence[Row], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{median(values):.0f}" if values else "-"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the final return over the replay ratio: seeds, medians with their intervals, alarms."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    sns.set_theme(style="whitegrid", palette="colorblind")
    data = {
        # Beside each other, or marks at the same ratio would lie on top of each other.
        "replay ratio (updates per env step)": [
            row["ratio"] * APART ** (_order((row["ratio"], row["variant"]))[1] - 1) for row in rows
        ],
        "mean return of 100 final episodes": [row["final_return"] for row in rows],
        "variant": [row["variant"] for row in rows],
        "alarm": ["raised" if row["alarms"] else "none" for row in rows],
    }
    colours = dict(zip(dict.fromkeys(data["variant"]), sns.color_palette(), strict=False))
    figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
    names = list(data)
    curve: dict[str, Any] = {"x": names[0], "y": names[1], "hue": "variant", "ax": axes}
    curve["palette"] = colours
    sns.lineplot(data, estimator="median", errorbar=None, legend=False, **curve)
    for place, variant in sorted(set(zip(data[names[0]], data["variant"], strict=True))):
        interval = median_interval(_returns_at(data, place))
        if interval is not None:
            axes.vlines(place, interval.low, interval.high, colors=[colours[variant]], alpha=0.4, lw=5)
    marks = {"none": "o", "raised": "X"}
    sns.scatterplot(data, style="alarm", markers=marks, s=60, legend="brief", **curve)
    sns.move_legend(axes, "upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(RATIOS, ["1/32", "1/8", "1", "4", "16"])
    axes.set_title("A mark is a seed, the line their median, a bar its 95% interval; a cross: an alarm")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _returns_at(data: Mapping[str, Sequence[Any]], place: float) -> list[float]:
    x, y = (data[name] for name in list(data)[:2])
    return [value for at, value in zip(x, y, strict=True) if at == place and value is not None]


@click.command()
@click.option("--seeds", default=5, show_default=True, help="Seeds 0 to N-1.")
@click.option("--steps", default=3_000, show_default=True, help="Env steps of each run.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("replay-ratio"),
    show_default=True,
    help="Folder of table, rows and figure.",
)
def main(seeds: int, steps: int, output: Path) -> None:
    """Run all ratios, variants and seeds, one at a time, seed by seed."""
    output.mkdir(parents=True, exist_ok=True)
    saved = output / "replay-ratio.json"
    rows: list[Row] = json.loads(saved.read_text()) if saved.exists() else []
    known = {(row["ratio"], row["variant"], row["seed"], row["steps"]) for row in rows}
    for seed in range(seeds):
        for ratio in RATIOS:
            for variant in VARIANTS:
                if (ratio, variant, seed, steps) in known:
                    continue
                rows.append(run_one(ratio, variant, seed, steps))
                write_json(saved, rows)
                row = rows[-1]
                click.echo(
                    f"seed {seed}, ratio {ratio:g}, {variant}: {row['final_return']} in "
                    f"{row['training_seconds']:.0f} s, alarms: {', '.join(row['alarms']) or 'none'}"
                )
    (output / "replay-ratio.md").write_text(table(rows) + "\n")
    draw(rows, output / "replay-ratio.png")
    click.echo(table(rows))


if __name__ == "__main__":
    main()
