"""How near do healthy runs come to the limits of the alarms? Runs to set them and runs to test them.

Every strategy until it has solved CartPole, and one learner that diverges (the plain DQN of
``bench.replay_ratio`` with four updates per env step), seed by seed:

    python -m bench.alarm_limits --output alarm-limits

The first half of the seeds is for setting the limits, the second for testing them. It writes
``alarm-limits.json`` (a row per run) and ``alarm-limits.md`` (the tables). Rows that are there already
are not run again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import strategies
from bench.fresh_run import fresh_run
from bench.replay_ratio import COMMON, PLAIN
from bench.summary import write_json
from common.alarms import RULES, Rule, Sample
from common.events import EVENTS

SECONDS = "120"  # of training, after which a run counts as not solved
DIVERGING = "plain DQN, 4 updates per env step"
DIVERGES = (*COMMON, *PLAIN, "--replay-ratio", "4", "--steps", "3000")

Row = dict[str, Any]


def label(rule: Rule) -> str:
    """Return what tells a rule from others of its name."""
    return rule.name if rule.in_a_row > 1 else f"{rule.name}, at once"


def held_strain(rule: Rule, samples: Sequence[Sample]) -> float:
    """Return the highest strain that was held for as many samples running as the rule asks for."""
    strains = [rule.strain(sample) for sample in samples]
    windows = zip(*(strains[start:] for start in range(rule.in_a_row)), strict=False)
    return max((min(window) for window in windows), default=0.0)


def choices(group: str, seed: int) -> list[str]:
    """Return what ``bench run`` is asked for."""
    own = (
        DIVERGES
        if group == DIVERGING
        else ("--strategy", group, "--until-solved", "--seconds", SECONDS)
    )
    return [*own, "--seed", str(seed)]


def run_one(group: str, seed: int) -> Row:
    """Train once in a process of its own and return what matters of its summary and its samples."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        summary = fresh_run(choices(group, seed), output)
        lines = (output / EVENTS).read_text(encoding="utf-8").splitlines()
    samples = [event for event in map(json.loads, lines) if event["kind"] == "health"]
    return make_row(group, seed, summary, samples)


def make_row(
    group: str, seed: int, summary: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> Row:
    """Return a run's row, given its summary and its samples in the order in which they were judged."""
    read = [{name: _number(value) for name, value in each.items()} for each in samples]
    return {
        "group": group,
        "seed": seed,
        "status": summary["status"],
        "solved": summary["returns"]["solved_at_seconds"] is not None,
        "alarms": [alarm["name"] for alarm in summary["health"]["alarms"]],
        "strains": {label(rule): held_strain(rule, read) for rule in RULES},
    }


def _number(value: Any) -> float:
    """What JSON has no number for is null there."""
    return value if isinstance(value, (int, float)) else float("nan")


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows that set the limits, and those that test them."""
    middle = (1 + max(row["seed"] for row in rows)) / 2
    setting = [row for row in rows if row["seed"] < middle]
    return setting, [row for row in rows if row["seed"] >= middle]


def tables(rows: Sequence[Row]) -> str:
    """Return Markdown: who raised alarms, and how near each limit was, in both halves."""
    divergence = label(RULES[0])
    least = min(row["strains"][divergence] for row in rows if row["group"] == DIVERGING)
    return (
        f"{_alarms_table(rows)}\n\n"
        "How near each run came to a limit (1.00 is the limit; held for as many samples running as the "
        f"alarm needs):\n\n{_strains_table(rows)}\n\n"
        f"The diverging learner's {divergence} was at {least:.2f} or more in every seed."
    )


def _alarms_table(rows: Sequence[Row]) -> str:
    parts = halves(rows)
    headers = [f"seeds {_span(part)}: {what}" for part in parts for what in ("solved", "with an alarm")]
    lines = [f"| runs | {' | '.join(headers)} |", "|---" * (1 + len(headers)) + "|"]
    for group in dict.fromkeys(row["group"] for row in rows):
        cells = [_cells([row for row in part if row["group"] == group]) for part in parts]
        name = group if group == DIVERGING else f"`{group}`"
        lines.append(f"| {name} | {' | '.join(cell for each in cells for cell in each)} |")
    return "\n".join(lines)


def _cells(rows: Sequence[Row]) -> tuple[str, str]:
    alarmed = [row for row in rows if row["alarms"]]
    names = sorted({name for row in alarmed for name in row["alarms"]})
    text = f"{len(alarmed)} of {len(rows)}" + (f" ({', '.join(names)})" if names else "")
    return f"{sum(row['solved'] for row in rows)} of {len(rows)}", text


def _span(rows: Sequence[Row]) -> str:
    seeds = [row["seed"] for row in rows]
    return f"{min(seeds)}-{max(seeds)}" if seeds else "-"


def _strains_table(rows: Sequence[Row]) -> str:
    parts = [
        [row for row in part if row["group"] != DIVERGING and row["solved"]] for part in halves(rows)
    ]
    headers = [f"highest of the solved, seeds {_span(part)}" for part in parts]
    lines = [f"| alarm | {' | '.join(headers)} |", "|---" * (1 + len(headers)) + "|"]
    for name in map(label, RULES):
        lines.append(f"| {name} | {' | '.join(_highest(part, name) for part in parts)} |")
    return "\n".join(lines)


def _highest(rows: Sequence[Row], name: str) -> str:
    if not rows:
        return "-"
    row = max(rows, key=lambda each: each["strains"][name])
    return f"{row['strains'][name]:.2f} (`{row['group']}`, seed {row['seed']})"


@click.command()
@click.option(
    "--seeds", type=click.IntRange(min=2), default=20, show_default=True, help="Seeds 0 to N-1."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("alarm-limits"),
    show_default=True,
    help="Folder of rows and tables; runs whose rows are in it are not run again.",
)
def main(seeds: int, output: Path) -> None:
    """Run every strategy and the diverging learner with every seed, one at a time."""
    output.mkdir(parents=True, exist_ok=True)
    saved = output / "alarm-limits.json"
    rows: list[Row] = json.loads(saved.read_text()) if saved.exists() else []
    known = {(row["group"], row["seed"]) for row in rows}
    for seed in range(seeds):
        for group in (*strategies.STRATEGIES, DIVERGING):
            if (group, seed) in known:
                continue
            rows.append(run_one(group, seed))
            write_json(saved, rows)
            row = rows[-1]
            click.echo(
                f"seed {seed}, {group}: {'solved' if row['solved'] else 'not solved'}, alarms: "
                f"{', '.join(row['alarms']) or 'none'}"
            )
    asked = [row for row in rows if row["seed"] < seeds]
    (output / "alarm-limits.md").write_text(tables(asked) + "\n")
    click.echo(tables(asked))


if __name__ == "__main__":
    main()
