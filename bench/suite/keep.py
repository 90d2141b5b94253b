"""Makes a saved session small enough to keep in the repository: every round but the median goes.

python -m bench.suite.keep suite.json docs/data/suite.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bench.suite.saved import read
from common.config import ConfigError

STATS = ("median", "iqr", "rounds")


def kept(content: dict[str, Any]) -> dict[str, Any]:
    """Return what of a session is kept: who, where, when, and three numbers of each benchmark."""
    benchmarks = [
        {
            "name": each["name"],
            "group": each["group"],
            "extra_info": each["extra_info"],
            "stats": {name: each["stats"][name] for name in STATS},
        }
        for each in content["benchmarks"]
    ]
    names = ("machine_info", "commit_info", "datetime", "cpu_in_use_before")
    return {**{name: content.get(name) for name in names}, "benchmarks": benchmarks}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
def main(file: Path, output: Path) -> None:
    """Write the medians of a saved session into a small file, for the pages.

    Example: python -m bench.suite.keep suite.json docs/data/suite.json
    """
    try:
        read(file)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    content = kept(json.loads(file.read_text(encoding="utf-8")))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    click.echo(f"{len(content['benchmarks'])} benchmarks kept in {output}")


if __name__ == "__main__":
    main()
