"""The configuration: its fields, and what each strategy uses where the user chooses nothing."""

from __future__ import annotations

from typing import Any

from common.config import PRESETS, Config
from docs.generate.choices import choice_of, choices, common_names, configs, field_owners, has_use
from docs.generate.markdown import code, shown, table

HEADERS = ("field", "type", "allowed", "default", "what it does")
NOTHING = "-"


def render_common() -> str:
    """Return the table of the fields that every strategy shares."""
    return _fields(common_names())


def render_own() -> str:
    """Return, per strategy, the table of the fields that it adds."""
    owners = field_owners()
    parts = []
    for strategy in configs():
        own = [name for name in owners if strategy in owners[name] and name not in common_names()]
        if own:
            parts.append(f"### {strategy}\n\n{_fields(own, strategy)}")
    return "\n\n".join(parts)


def _fields(names: list[str], strategy: str | None = None) -> str:
    rows = []
    for name in names:
        choice = choice_of(name, strategy)
        rows.append((code(name), choice.kind, choice.allowed, choice.default, choice.help))
    return table(HEADERS, rows)


def render_presets() -> str:
    """Return, per environment with presets, the values in which any strategy leaves the default."""
    return "\n\n".join(_presets(env_id) for env_id in environments())


def environments() -> list[str]:
    """Return the environments that any preset is for."""
    found = dict.fromkeys(PRESETS)
    for config in configs().values():
        found.update(dict.fromkeys(config.presets))
    return list(found)


def _presets(env_id: str) -> str:
    resolved = {name: config.for_env(env_id) for name, config in configs().items()}
    rows = []
    for choice in choices():
        default = getattr(Config, choice.name, None)
        values = {name: getattr(config, choice.name, None) for name, config in resolved.items()}
        used = [values[name] for name in resolved if has_use(choice.name, name)]
        if choice.name in common_names() and choice.name != "env_id" and set(used) - {default}:
            cells = [_value(choice.name, name, values[name]) for name in resolved]
            rows.append((code(choice.name), code(default), *cells))
    return f"### {env_id}\n\n{table(('field', 'default', *resolved), rows)}"


def _value(field: str, strategy: str, value: Any) -> str:
    return shown(value) if has_use(field, strategy) else NOTHING
