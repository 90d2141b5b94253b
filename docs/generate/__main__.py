"""Fill the generated parts of the pages: ``python -m docs.generate``."""

from __future__ import annotations

import sys

import click

from docs.generate.pages import DOCS, missing_pages, stale


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; name the stale pages and exit with 1.")
def main(check: bool) -> None:
    """Fill the generated parts of the pages from the code.

    Example: python -m docs.generate
    """
    if not check:
        for path, text in missing_pages().items():
            path.write_text(text, encoding="utf-8")
    found = stale()
    for path, text in found.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        click.echo(f"{'stale' if check else 'written'}: {path.relative_to(DOCS.parent)}")
    sys.exit(1 if check and found else 0)


if __name__ == "__main__":
    main()
