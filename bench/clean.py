"""``bench clean``: removes what killed runs have left behind, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from bench.runner import CONFIG, OWNER, RUNS, SUMMARY
from common.config import ConfigError
from common.owners import dead_lock_files, is_dead

# What a run writes while it trains, and is of no use without the rest.
OF_A_RUN = {CONFIG, OWNER, "events.jsonl", "tensorboard"}


@dataclass(frozen=True)
class Left:
    """Something that a dead process has left.

    Attributes:
        path: a run's folder, or a file.
        what: in words.
        kept_because: why it is not removed; None if it is.
    """

    path: Path
    what: str
    kept_because: str | None = None


def left_behind(runs: Path) -> Iterator[Left]:
    """Yield what there is: the lock files of dead owners, and half-written runs below a folder."""
    for path in dead_lock_files():
        yield Left(path, "lock file")
    for named in sorted(runs.rglob(OWNER)):
        if not named.is_symlink() and _owner_is_dead(named):
            yield _left_run(named.parent)


def _owner_is_dead(path: Path) -> bool:
    try:
        return is_dead(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return False


def _left_run(folder: Path) -> Left:
    names = {item.name for item in folder.iterdir()}
    if SUMMARY in names:  # killed when all but this was done
        return Left(folder / OWNER, "mark of a finished run")
    others = sorted(name for name in names - OF_A_RUN if not name.endswith(".tmp"))
    if others:
        return Left(folder, "half-written run", f"it holds {', '.join(others)}")
    return Left(folder, "half-written run")


def remove(left: Left) -> None:
    """Remove it.

    Raises:
        ConfigError: it is not ours to remove.
    """
    try:
        if left.path.is_dir():
            shutil.rmtree(left.path)
        else:
            left.path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{left.path} cannot be removed ({error.strerror})") from None


@click.command("clean")
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=RUNS,
    show_default=True,
    metavar="DIR",
    help="The folder that holds the runs.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
def command(runs: Path, dry_run: bool) -> None:
    """Remove what runs that were killed have left: half-written run folders and lock files.

    Only what names a dead process of this machine as its owner is removed. A run that is still going on
    is never touched, and neither is one that has saved a model or a checkpoint.

    Example: bench clean --dry-run
    """
    found = list(left_behind(runs))
    for left in found:
        if left.kept_because is not None:
            click.echo(f"kept {left.what} {left.path}: {left.kept_because}")
            continue
        if not dry_run:
            remove(left)
        click.echo(f"{'would remove' if dry_run else 'removed'} {left.what} {left.path}")
    if not found:
        click.echo("nothing was left behind")
