"""The command line, from the commands and the declarations of the choices."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from bench.cli import cli
from bench.options import config_options
from docs.generate.choices import Choice, choices
from docs.generate.markdown import code, codes, table

ROOT = Path(__file__).parents[2]
OWN_HEADERS = ("option", "values", "default", "what it does")
CHOICE_HEADERS = ("option", "values", "default", "used by", "what it does")
HELP = {"--help", "-h"}
STARTS_ITSELF = re.compile(r"^if __name__ == ", re.MULTILINE)

Commands = Mapping[str, click.Command]


def commands() -> dict[str, click.Command]:
    """Return every command of ``bench`` by what is typed to reach it."""
    context = click.Context(cli, info_name="bench")
    found: dict[str, click.Command] = {}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        found[f"bench {name}"] = command
    return found


def measurements() -> dict[str, click.Command]:
    """Return what is run with ``python -m``: every file that starts itself."""
    found: dict[str, click.Command] = {}
    for path in sorted([*ROOT.glob("bench/**/*.py"), *ROOT.glob("docs/**/*.py")]):
        if STARTS_ITSELF.search(path.read_text(encoding="utf-8")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if module == "bench.__main__":  # that is the command line itself
                continue
            main = importlib.import_module(module).main
            if isinstance(main, click.Command):  # what only another command starts has no options
                found[f"python -m {module.removesuffix('.__main__')}"] = main
    return found


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command without ``--help``."""
    context = click.Context(command)
    return [
        item
        for item in command.get_params(context)
        if isinstance(item, click.Option) and not HELP & set(item.opts)
    ]


def option_names(command: click.Command) -> set[str]:
    """Return every spelling of every option of a command."""
    return {name for item in options_of(command) for name in (*item.opts, *item.secondary_opts)}


def render(of: Commands | None = None) -> str:
    """Return the section of every command, then the choices that a run's configuration holds."""
    return "\n\n".join(_command(name, each) for name, each in (of or commands()).items())


def render_measurements() -> str:
    """Return the section of everything that is run with ``python -m``."""
    return "\n\n".join(_command(name, command) for name, command in measurements().items())


def render_choices() -> str:
    """Return the table of the options that set a field of the configuration."""
    spelled = {option.name: spelling(option) for option in config_options()}
    rows = [_choice_row(spelled[choice.name], choice) for choice in choices()]
    return table(CHOICE_HEADERS, rows)


def _choice_row(option: str, choice: Choice) -> tuple[str, ...]:
    return (option, choice.allowed, choice.default, choice.users, choice.help)


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"### {name}", *_paragraphs(command), f"```text\n{usage}\n```"]
    shared = {item.name: item for item in config_options()}
    own = [item for item in options_of(command) if not _is_choice(item, shared)]
    taken = [item for item in options_of(command) if _is_choice(item, shared)]
    arguments = [item for item in command.params if isinstance(item, click.Argument)]
    if own:
        parts.append(table(OWN_HEADERS, [_row(item, context) for item in own]))
    elif not arguments:
        parts.append("No options of its own.")
    if taken:
        parts.append(_taken(taken, own, shared))
    return "\n\n".join(parts)


def _is_choice(option: click.Option, shared: Mapping[str, click.Option]) -> bool:
    """Return whether an option is one made from the configuration, not just one of the same name."""
    other = shared.get(option.name or "")
    return other is not None and other.opts == option.opts and other.help == option.help


def _taken(
    taken: Iterable[click.Option], own: Iterable[click.Option], shared: Mapping[str, click.Option]
) -> str:
    """Say which choices of a run a command takes, in the shorter of two ways."""
    names = {item.name for item in taken}
    left_out = [item for name, item in shared.items() if name not in names | {o.name for o in own}]
    if not left_out:
        return "It also takes every one of the [choices of a run](#the-choices-of-a-run)."
    if len(left_out) < len(names):
        spelled = codes(item.opts[0] for item in left_out)
        return f"It also takes the [choices of a run](#the-choices-of-a-run), but not {spelled}."
    spelled = codes(item.opts[0] for item in taken)
    return f"Of the [choices of a run](#the-choices-of-a-run) it takes {spelled}."


def _paragraphs(command: click.Command) -> list[str]:
    """Return a command's help; an example in it becomes a block of code."""
    text = inspect.cleandoc(command.help or "").split("\f")[0].replace("``", "`")
    found = []
    for paragraph in re.split(r"\n\s*\n", text.replace("\b", "")):
        lines = [line.strip() for line in paragraph.split("\n") if line.strip()]
        if lines and re.match(r"Examples?:", lines[0]):
            lines[0] = re.sub(r"^Examples?:\s*", "", lines[0])
            found.append(_block(line for line in lines if line))
        elif lines:
            found.append(" ".join(lines))
    if not any(each.startswith("```") for each in found):
        found += _examples_of_module(command)
    return found


def _block(lines: Iterable[str]) -> str:
    return "```sh\n" + "\n".join(lines) + "\n```"


def _examples_of_module(command: click.Command) -> list[str]:
    """Return a block of the commands that stand indented in the docstring of the command's file."""
    module = importlib.import_module(command.callback.__module__) if command.callback else None
    lines = re.findall(r"^    (python -m \S.*)$", (module and module.__doc__) or "", re.MULTILINE)
    return [_block(lines)] if lines else []


def spelling(option: click.Option) -> str:
    """Return an option's names as code."""
    return codes([*option.opts, *option.secondary_opts])


def _row(option: click.Option, context: click.Context) -> tuple[str, ...]:
    text, _, default = (option.help or "").partition(" [default: ")
    text = text if not option.required or text.endswith("Required.") else f"{text} Required."
    written = code(default.rstrip("]")) if default else _default(option, context)
    return (spelling(option), _values(option), written, text)


def _values(option: click.Option) -> str:
    kind = option.type
    if option.is_flag:
        return "yes or no" if option.secondary_opts else "flag"
    if isinstance(kind, click.Choice):
        return codes(kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        return f"{_kind_name(kind)} {_range(kind)}".strip()
    return option.metavar or _kind_name(kind)


def _kind_name(kind: Any) -> str:
    names = {"integer": "N", "integer range": "N", "float": "X", "float range": "X", "text": "TEXT"}
    return names.get(kind.name, kind.name.upper())


def _range(kind: click.IntRange | click.FloatRange) -> str:
    ends = []
    if kind.min is not None:
        ends.append(f"{'more than' if kind.min_open else 'at least'} {kind.min}")
    if kind.max is not None:
        ends.append(f"{'less than' if kind.max_open else 'at most'} {kind.max}")
    return ", ".join(ends)


def _default(option: click.Option, context: click.Context) -> str:
    value = option.get_default(context)
    is_unset = value in (None, "", ()) or getattr(value, "name", "") == "UNSET"
    return "" if is_unset or (option.is_flag and not value) else code(value)
