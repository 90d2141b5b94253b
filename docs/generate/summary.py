"""The fields of ``summary.json``."""

from __future__ import annotations

from bench.summary_fields import FIELDS, SummaryField, section_of
from docs.generate.markdown import code, table

HEADERS = ("field", "unit", "meaning")


def render() -> str:
    """Return a table per section of the summary."""
    sections: dict[str, list[tuple[str, SummaryField]]] = {}
    for name, field in FIELDS.items():
        sections.setdefault(section_of(name), []).append((name, field))
    return "\n\n".join(_section(title, fields) for title, fields in sections.items())


def _section(title: str, fields: list[tuple[str, SummaryField]]) -> str:
    rows = [(code(name), field.unit, field.meaning) for name, field in fields]
    return f"### {title}\n\n{table(HEADERS, rows)}"
