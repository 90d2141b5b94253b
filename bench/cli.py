"""The command line. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import click
from click.core import ParameterSource

from common.config import ConfigError

COMPLETED, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
OWN_OPTIONS = ("strategy", "output", "resume", "json_only", "quiet", "tensorboard")

# Commands with a file of their own, each a click command called ``command``, loaded when asked for.
COMMANDS: dict[str, str] = {
    "audit": "bench.audit",
    "clean": "bench.clean",
    "compare": "bench.compare",
    "profile": "bench.profile",
    "report": "bench.report",
    "sweep": "bench.sweep",
}


def main() -> None:
    """Run the command line: the console script's entry point."""
    _hide_main()
    # As with python -m, a user's own module:Env-v0 in the current folder can be found.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    cli(prog_name="bench")


def _hide_main() -> None:
    """Keep child processes from importing the main script once more.

    ``spawn`` imports the parent's ``__main__`` in every child, so that functions defined there can be
    found. Nothing that a child needs is defined here, and the import would cost each of them the time
    and memory of the command line.
    """
    module = sys.modules["__main__"]
    module.__spec__ = None
    module.__file__ = None


class OneSentence(click.Group):
    """A group that says in one sentence what was wrong with the input, and exits with 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, those not loaded yet included."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loading its file if it has one of its own."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command and exit with its code."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = error.exit_code
        except click.ClickException as error:
            click.echo(f"Error: {error.format_message()}", err=True)
            code = error.exit_code
        except ConfigError as error:
            click.echo(f"Error: {error}", err=True)
            code = BAD_INPUT
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)  # before a run was started; else its summary says so
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else COMPLETED)


class RunCommand(click.Command):
    """A command whose options are completed when they are first needed: strategies load numpy."""

    left_out: tuple[str, ...] = ()
    _completed = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options of the command and those of every strategy's ``Config``."""
        if not self._completed:
            from bench.options import config_options

            self._completed = True
            self.params.extend(each for each in config_options() if each.name not in self.left_out)
        return super().get_params(ctx)


@click.group(cls=OneSentence, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Run one small DQN under different ways of parallelising it, and see what each costs.

    Example: bench run --strategy apex --workers 2
    """


@cli.command("list")
@click.option("--json", "json_only", is_flag=True, help="Print JSON.")
def list_command(json_only: bool) -> None:
    """Show the strategies and what sets them apart.

    Example: bench list
    """
    from bench.listing import as_json, print_table

    if json_only:
        click.echo(json.dumps(as_json(), indent=2))
    else:
        print_table()


@cli.command("run", cls=RunCommand)
@click.option("--strategy", metavar="NAME", help="One of those that 'bench list' shows. Required.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run's folder, new or empty. [default: runs/<run-id>]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Go on with the run in DIR, from its last checkpoint; only --steps, --seconds, "
    "--until-solved and how to save may be chosen anew.",
)
@click.option("--json", "json_only", is_flag=True, help="Print the summary and nothing else.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--tensorboard", is_flag=True, help="Write scalars for TensorBoard, too.")
@click.pass_context
def run_command(ctx: click.Context, /, **values: Any) -> int:
    """Train with one strategy, show how it goes, and leave a run folder behind.

    Example: bench run --strategy apex --workers 2 --steps 50_000 --seed 1

    Example: bench run --resume runs/my-run --steps 100_000

    A default gives way to the presets of an environment; config.json in the run's folder says what
    was used.

    Exits with 0 if the run completed, 1 if it failed, 2 for bad input, 130 if it was interrupted.
    """
    choices = {
        name: value
        for name, value in values.items()
        if name not in OWN_OPTIONS and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    own = {name: values[name] for name in OWN_OPTIONS}
    with reserved_stdout() as stdout:
        return _run(choices, stdout, **own)


def _run(
    choices: dict[str, Any],
    stdout: TextIO,
    strategy: str | None,
    output: Path | None,
    resume: Path | None,
    json_only: bool,
    quiet: bool,
    tensorboard: bool,
) -> int:
    from bench.display import make_display, result_text
    from bench.machine import process_started_at
    from bench.runner import run
    from bench.tensorboard import TensorBoardObserver, require_tensorboard

    strategy, config, saved = _what_to_run(choices, strategy, resume)
    if tensorboard:
        require_tensorboard()
    observers: list[Any] = []

    def make_observers(folder: Path) -> Sequence[Any]:
        if tensorboard:
            observers.append(TensorBoardObserver(folder))
        if not quiet:
            observers.append(make_display(strategy, config))
        return observers

    try:
        summary = run(strategy, config, output, make_observers, process_started_at(), saved)
    finally:
        for observer in observers:
            with contextlib.suppress(OSError):  # a closed terminal, a full disk: the summary says it
                observer.close()
    if summary["error"]:
        click.echo(summary["error"].rstrip(), err=True)
    text = json.dumps(summary, indent=2) if json_only else result_text(summary)
    print(text, file=stdout, flush=True)
    return {"completed": COMPLETED, "interrupted": INTERRUPTED}.get(summary["status"], FAILED)


def _what_to_run(
    choices: dict[str, Any], strategy: str | None, resume: Path | None
) -> tuple[str, Any, Any]:
    """Return the strategy, its configuration, and the checkpoint to go on from if there is one."""
    from bench.options import make_config
    from bench.resuming import resumed
    from strategies import registered

    if resume is not None:
        return resumed(resume, strategy, choices)
    if strategy is None:
        raise ConfigError(f"no strategy was given; name one with --strategy: {', '.join(registered())}")
    return strategy, make_config(strategy, choices), None


@cli.command("evaluate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--best", is_flag=True, help="Play best.pt, not the final model.pt.")
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Whole greedy episodes.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the starts.")
@click.option(
    "--gif",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw one episode into this file.",
)
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else.")
def evaluate_command(
    folder: Path, best: bool, episodes: int, seed: int, gif: Path | None, json_only: bool
) -> None:
    """Play the policy that a run has saved, without exploration.

    Example: bench evaluate runs/my-run --episodes 100 --gif episode.gif
    """
    from bench.display import return_text

    with reserved_stdout() as stdout:
        result = _evaluate(folder, best, episodes, seed, gif)
        if json_only:
            print(json.dumps(result, indent=2), file=stdout)
            return
        numbers = (f"{name} {return_text(result[name])}" for name in ("std", "min", "max"))
        print(
            f"{result['env_id']}, trained by {result['strategy']}, "
            f"{'best' if best else 'final'} weights: mean return {return_text(result['mean'])}, "
            f"{', '.join(numbers)} over {episodes} episode{'' if episodes == 1 else 's'}",
            file=stdout,
        )
        if gif is not None:
            print(f"one more episode, of {result['gif_frames']} frames, is in {gif}", file=stdout)


def _evaluate(folder: Path, best: bool, episodes: int, seed: int, gif: Path | None) -> dict[str, Any]:
    from bench.playing import load_policy, play, write_gif

    if gif is not None and gif.suffix.lower() != ".gif":
        raise ConfigError(f"the picture {gif} must have a name that ends in .gif")
    policy = load_policy(folder, best)
    try:
        result = play(policy, episodes, seed)
        if gif is not None:
            result["gif_frames"] = write_gif(policy, gif, seed)
    except ConfigError:
        raise
    except Exception as error:  # the environment is the user's own code
        text = " ".join(str(error).split())
        raise click.ClickException(
            f"{policy.config.env_id} failed while it was played: {type(error).__name__}: {text}"
        ) from None
    return result


@contextlib.contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yield standard output; whatever else is printed meanwhile goes to standard error.

    An environment may print, in Python or in C, here or in a child, and must not end up in the JSON.
    """
    stdout = sys.stdout
    with contextlib.ExitStack() as stack:
        try:
            number = stdout.fileno()
        except (AttributeError, io.UnsupportedOperation):  # replaced by a test or a notebook
            number = -1
        if number == 1:
            stdout.flush()
            own = os.dup(1)
            os.dup2(2, 1)
            stack.callback(os.close, own)
            stack.callback(os.dup2, own, 1)
            stdout = stack.enter_context(open(own, "w", encoding="utf-8", closefd=False))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield stdout
