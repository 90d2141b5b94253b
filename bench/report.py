"""``bench report``: figures and one self-contained page from saved runs. Trains nothing."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.saved import COMPLETED, PENDING, SavedRun, SavedRuns, load_runs, rows_of
from common.config import ConfigError

PAGE = "report.html"
TEMPLATES = Path(__file__).parent / "templates"
MOST_UNREAD_SHOWN = 20


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The page. Its figures go into a folder beside it. [default: DIR/report.html]",
)
@click.option("--json", "json_only", is_flag=True, help="Print what was written as JSON, nothing else.")
def command(folder: Path, output: Path | None, json_only: bool) -> None:
    """Draw figures and write one HTML page from saved runs, without training anything.

    DIR is the folder of one run, a folder with runs at any depth, or that of a comparison or a sweep.

    Example: bench report runs
    """
    from bench.cli import reserved_stdout

    with reserved_stdout() as stdout:
        written = write_report(folder, output)
        text = json.dumps(written, indent=2) if json_only else _said(written)
        print(text, file=stdout, flush=True)


def _said(written: Mapping[str, Any]) -> str:
    runs, completed = written["runs"], written["completed"]
    rest = (
        "" if completed == runs else f", {runs - completed} of them not completed (the page says why)"
    )
    text = f"{written['page']}: {runs} run{'' if runs == 1 else 's'}{rest}"
    if not written["figures"]:
        return f"{text}; nothing to draw"
    number = len(written["figures"])
    return f"{text}; {number} figures as PNG and SVG in {written['figures_folder']}"


def write_report(folder: Path, output: Path | None = None) -> dict[str, Any]:
    """Write the page and its figures, and return what was written.

    Raises:
        ConfigError: there is no run in the folder, or the page cannot be written.
    """
    saved = load_runs(folder)
    page = folder / PAGE if output is None else output
    figures_folder = page.with_name(f"{page.stem}-figures")
    try:
        figures_folder.mkdir(parents=True, exist_ok=True)
        scopes = list(make_scopes(saved, figures_folder))
        _write_whole(page, render(saved, scopes))
    except OSError as error:
        raise ConfigError(
            f"the page {page} cannot be written ({error.strerror}); name another one with --output"
        ) from None
    finally:
        with contextlib.suppress(OSError):  # kept if anything is in it
            figures_folder.rmdir()
    return {
        "page": str(page),
        "figures_folder": str(figures_folder),
        "figures": [figure.name for scope in scopes for figure in scope.figures],
        "runs": len(saved.runs),
        "completed": sum(run.status == COMPLETED for run in saved.runs),
    }


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


class Scope(NamedTuple):
    """Groups that can be compared: one environment, one budget.

    Attributes:
        key: names it in ids.
        title: the environment and the budget.
        groups: in teaching order.
        cautions: what to know before they are compared.
        answers: per question, (group, answer) of each group.
        tables: the results.
        alarms: (group, run, its number in the summary, alarm) of all.
        figures: drawn.
    """

    key: str
    title: str
    groups: Sequence[Any]
    cautions: Sequence[str]
    answers: Sequence[tuple[str, Sequence[tuple[Any, Any]]]]
    tables: Sequence[Any]
    alarms: Sequence[tuple[Any, SavedRun, int, Mapping[str, Any]]]
    figures: Sequence[Any]


def make_scopes(saved: SavedRuns, figures_folder: Path) -> Iterator[Scope]:
    """Yield what the page says of each environment and budget."""
    from bench.answers import QUESTIONS
    from bench.cautions import ratio_caution
    from bench.group_answers import answers_of
    from bench.group_table import tables_for
    from bench.groups import alarms_of, make_groups
    from bench.report_figures import draw_all, plans_for

    by_scope: dict[tuple[str, str | None], list[Any]] = {}
    for group in make_groups(saved):
        by_scope.setdefault((group.env_id, group.budget), []).append(group)
    for number, ((env_id, budget), groups) in enumerate(by_scope.items(), start=1):
        prefix = f"{number}-" if len(by_scope) > 1 else ""
        own = [answers_of(group) for group in groups]
        yield Scope(
            key=f"scope{number}",
            title=env_id + (f", {_budget_text(saved, budget)}" if budget else ""),
            groups=groups,
            cautions=ratio_caution(_ratios(groups)),
            answers=[
                (question, [(group, answers[i]) for group, answers in zip(groups, own, strict=True)])
                for i, question in enumerate(QUESTIONS)
            ],
            tables=tables_for(groups, saved.table),
            alarms=[
                (group, run, i, alarm)
                for group in groups
                for run in group.counted
                for i, alarm in enumerate(alarms_of(run))
            ],
            figures=list(draw_all(plans_for(groups, saved), figures_folder, prefix)),
        )


def _ratios(groups: Sequence[Any]) -> dict[str, float]:
    found = {group.label: group.spread("replay_ratio.achieved") for group in groups}
    return {label: spread.median for label, spread in found.items() if spread is not None}


def _budget_text(saved: SavedRuns, name: str) -> str:
    for budget in rows_of(saved.comparison, "budgets"):
        steps, seconds = budget.get("steps"), budget.get("seconds")
        if budget.get("name") == name and isinstance(steps, int):
            return f"{steps:,} env steps each"
        if budget.get("name") == name and isinstance(seconds, int | float):
            return f"{seconds:g} seconds each"
    return f"budget {name}"


# --- The page ---


def render(saved: SavedRuns, scopes: Sequence[Scope]) -> str:
    """Return the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from bench import palette, repeat, wording
    from bench.group_answers import own_answers

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole_options"] = wording.with_whole_options
    text: str = environment.get_template("report.html").render(
        saved=saved,
        scopes=scopes,
        name=saved.folder.resolve().name,
        heading=_heading(saved),
        counts=_counts(saved),
        not_completed=[run for run in saved.runs if run.status not in (COMPLETED, PENDING)],
        unread=saved.unread[:MOST_UNREAD_SHOWN],
        more_unread=max(0, len(saved.unread) - MOST_UNREAD_SHOWN),
        setups=setups(saved),
        ordered=[
            (scope, group, run) for scope in scopes for group in scope.groups for run in group.runs
        ],
        agree=_agree,
        several_seeds=any(len(g.counted) > 1 for scope in scopes for g in scope.groups),
        colours=palette.variables(),
        variable_of=palette.variable_of,
        command=repeat.command_of_comparison(saved.comparison) if saved.comparison else None,
        command_of_run=repeat.command_of_run,
        own_answers=own_answers,
        words=wording,
    )
    return text


def _heading(saved: SavedRuns) -> str:
    """Return what the page is about, in a line."""
    names = list(dict.fromkeys(run.strategy for run in saved.runs))
    what = names[0] if len(names) == 1 else f"{len(names)} strategies"
    envs = sorted({run.env_id for run in saved.runs})
    where = envs[0] if len(envs) == 1 else f"{len(envs)} environments"
    if saved.comparison is not None and saved.comparison.get("kind") == "sweep":
        return f"Sweep of {what} on {where}"
    if len(saved.runs) == 1:
        return f"{what} on {where}, seed {saved.runs[0].seed}"
    kind = "Comparison" if saved.comparison is not None else f"{len(saved.runs)} runs"
    return f"{kind} of {what} on {where}"


def _agree(answers: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether all groups give the same answer."""
    return len({answer.striptags() for _, answer in answers}) == 1


def _counts(saved: SavedRuns) -> dict[str, int]:
    statuses = [run.status for run in saved.runs]
    return {
        "runs": len(statuses),
        "completed": statuses.count(COMPLETED),
        "pending": statuses.count(PENDING),
        "strategies": len({run.strategy for run in saved.runs}),
    }


class Setup(NamedTuple):
    """One machine with its software, and how many runs were made there."""

    machine: Mapping[str, Any]
    versions: Mapping[str, Any]
    commit: str | None
    runs: Sequence[SavedRun]


def setups(saved: SavedRuns) -> list[Setup]:
    """Return every machine, set of versions and commit that the runs name, most runs first."""
    found: dict[str, tuple[dict[str, Any], list[SavedRun]]] = {}
    for run in saved.runs:
        own = {name: run.summary.get(name) for name in ("machine", "versions", "commit")}
        if any(own.values()):
            found.setdefault(json.dumps(own, sort_keys=True, default=str), (own, []))[1].append(run)
    made = [
        Setup(_mapping(own["machine"]), _mapping(own["versions"]), own["commit"], runs)
        for own, runs in found.values()
    ]
    return sorted(made, key=lambda setup: -len(setup.runs))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
