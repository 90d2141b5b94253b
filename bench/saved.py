"""Runs as they lie on disk, read with suspicion: half-written, foreign, older and newer files.

Nothing here trains, and nothing here fails because a field is null, missing or of another type.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.summary import SCHEMA
from common.config import ConfigError

SUMMARY, CONFIG, EVENTS, COMPARISON, PROFILE, TABLE = (
    "summary.json",
    "config.json",
    "events.jsonl",
    "comparison.json",
    "profile.json",
    "table.json",
)
MAX_JSON_BYTES = 32 * 2**20
COMPLETED, UNFINISHED, PENDING = "completed", "unfinished", "pending"


def field_of(values: Any, path: str) -> Any:
    """Return the value at a dotted path such as ``audit.writes_lost``; None where there is none."""
    for name in path.split("."):
        if isinstance(values, Mapping):
            values = values.get(name)
        elif isinstance(values, list) and name.isdecimal():
            values = values[int(name)] if int(name) < len(values) else None
        else:
            return None
    return values


def number_of(values: Any, path: str) -> float | int | None:
    """Return the finite number at a path; None where there is something else."""
    value = field_of(values, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond any float
        return None


def rows_of(values: Any, path: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at a path; an empty list where there is something else."""
    value = field_of(values, path)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


@dataclass(frozen=True, eq=False)
class SavedRun:
    """One run folder.

    Attributes:
        name: its path inside the reported folder, or its own name.
        folder: where it lies.
        strategy: the strategy's name.
        seed: None if no file says it.
        status: as in the summary; ``unfinished`` if it has none, ``pending`` if it was not begun.
        error: why it did not complete, if anything says so.
        summary: what could be read of ``summary.json``; empty if nothing.
        budget: which of a comparison's budgets it was given; None outside of a comparison.
        param: what a sweep varied in it; None outside of a sweep.
        listed_env_id: the environment that a comparison names for all its runs.
        note: what a reader should know of its files.
    """

    name: str
    folder: Path
    strategy: str
    seed: int | None
    status: str
    error: str | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    budget: str | None = None
    param: Mapping[str, Any] | None = None
    listed_env_id: str | None = None
    note: str | None = None

    @property
    def env_id(self) -> str:
        """The environment's id."""
        said = field_of(self.summary, "env_id") or self.config.get("env_id") or self.listed_env_id
        return str(said or "unknown environment")

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The run's choices; empty if no file has them."""
        own = field_of(self.summary, "config")
        if not isinstance(own, Mapping):
            own = field_of(read_object(self.folder / CONFIG)[0], "config")
        return own if isinstance(own, Mapping) else {}

    @cached_property
    def events(self) -> Sequence[Mapping[str, Any]]:
        """The rows of ``events.jsonl`` that are whole."""
        return tuple(_read_rows(self.folder / EVENTS))

    def rows(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the rows of one kind, in the order of time."""
        return [row for row in self.events if row.get("kind") == kind]

    def number(self, path: str) -> float | int | None:
        """Return a number of the summary."""
        return number_of(self.summary, path)


@dataclass(frozen=True)
class SavedRuns:
    """Everything that was found in a folder.

    Attributes:
        folder: where.
        runs: in the order of their names, or as the comparison lists them.
        comparison: what ``comparison.json`` says; None if there is none.
        profile: what ``profile.json`` says; None if there is none.
        table: what a comparison's own ``table.json`` says; None if there is none.
        unread: (file, why) of what looks like a run and is none.
    """

    folder: Path
    runs: Sequence[SavedRun]
    comparison: Mapping[str, Any] | None = None
    profile: Mapping[str, Any] | None = None
    table: Mapping[str, Any] | None = None
    unread: Sequence[tuple[str, str]] = ()


def load_runs(folder: Path) -> SavedRuns:
    """Read a run folder, a comparison, or a folder with runs at any depth.

    Raises:
        ConfigError: the folder is none, or holds no run.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigError(
            f"{folder} {what}; name the folder of a run, of several runs or of a comparison"
        )
    profile, _ = read_object(folder / PROFILE)
    comparison, problem = read_object(folder / COMPARISON)
    listed = rows_of(comparison, "runs")
    unread: list[tuple[str, str]] = []
    if (folder / COMPARISON).exists() and not listed:
        unread.append((COMPARISON, problem or "it lists no runs"))
        comparison = {}
    env_id = _text(field_of(comparison, "env_id"))
    runs = [_listed_run(folder, entry, env_id) for entry in listed]
    runs = runs or list(_found_runs(folder, unread))
    if not runs:
        raise ConfigError(_no_runs(folder, unread))
    table, _ = read_object(folder / TABLE) if listed else ({}, "")
    return SavedRuns(folder, runs, comparison or None, profile or None, table or None, unread)


def _no_runs(folder: Path, unread: Sequence[tuple[str, str]]) -> str:
    why = f" ({unread[0][0]}: {unread[0][1]})" if unread else ""
    return (
        f"{folder} holds no run{why}; name a folder that 'bench run', 'compare' or 'sweep' has written"
    )


def _found_runs(folder: Path, unread: list[tuple[str, str]]) -> Iterator[SavedRun]:
    """Yield the runs below a folder, and note what looks like one and is none."""
    for place, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if SUMMARY not in files and not {CONFIG, EVENTS} <= set(files):
            continue
        path = Path(place)
        name = path.relative_to(folder).as_posix() if path != folder else path.resolve().name
        run, problem = _read_run(path, name)
        if run is not None:
            subfolders.clear()  # a run holds no runs
            yield run
        else:
            unread.append((name, problem))


def _listed_run(folder: Path, entry: Mapping[str, Any], env_id: str | None) -> SavedRun:
    """Return a run that a comparison lists, whether its folder can be read or not."""
    name = str(entry.get("run") or "unnamed run")
    run, _ = _read_run(folder / name, name)
    status = str(entry.get("status") or PENDING)
    listed: dict[str, Any] = {
        "budget": _text(entry.get("budget")),
        "param": entry["param"] if isinstance(entry.get("param"), Mapping) else None,
        "listed_env_id": env_id,
    }
    if run is None:
        seed = number_of(entry, "seed")
        listed |= {"seed": None if seed is None else int(seed), "error": _text(entry.get("error"))}
        if status == COMPLETED:
            status, listed["error"] = UNFINISHED, "listed as completed, but its summary cannot be read"
        return SavedRun(name, folder / name, str(entry.get("strategy")), status=status, **listed)
    if run.status == UNFINISHED:
        listed |= {"status": status, "error": _text(entry.get("error")) or run.error}
    return SavedRun(**{**_own_fields(run), **listed})


def _own_fields(run: SavedRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in SavedRun.__dataclass_fields__}


def _read_run(folder: Path, name: str) -> tuple[SavedRun | None, str]:
    """Return a run, or None and why its folder holds none."""
    summary, problem = read_object(folder / SUMMARY)
    config, _ = read_object(folder / CONFIG)
    said = summary if isinstance(field_of(summary, "strategy"), str) else config
    strategy = field_of(said, "strategy")
    if not isinstance(strategy, str):
        return None, problem or f"{SUMMARY} is not of a run: it names no strategy"
    seed = number_of(said, "seed")
    seed = number_of(said, "config.seed") if seed is None else seed
    found: dict[str, Any] = {"seed": None if seed is None else int(seed)}
    if said is not summary:
        reason = (
            problem if (folder / SUMMARY).exists() else "it has no summary: killed, or still running"
        )
        return SavedRun(name, folder, strategy, status=UNFINISHED, error=reason, **found), ""
    status, error = _text(field_of(summary, "status")) or "unknown", _text(field_of(summary, "error"))
    note = _schema_note(field_of(summary, "schema"))
    return SavedRun(
        name, folder, strategy, status=status, error=error, summary=said, note=note, **found
    ), ""


def _schema_note(schema: Any) -> str | None:
    if schema == SCHEMA:
        return None
    age = "a newer" if isinstance(schema, int) and schema > SCHEMA else "an older or unknown"
    return f"written in {age} format (schema {schema}, this is {SCHEMA}): what it lacks is left out"


def read_object(path: Path) -> tuple[Mapping[str, Any], str]:
    """Return a JSON object, or an empty one and what is wrong with the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return {}, f"{path.name} is larger than any of ours"
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, f"there is no {path.name}"
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is half-written or not JSON"
    if not isinstance(value, dict):
        return {}, f"{path.name} is not a JSON object"
    return value, ""


def _read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the whole rows of a log. Its last one may be half-written."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except OSError:
        return


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
