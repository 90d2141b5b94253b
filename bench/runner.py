"""One run from its configuration to its folder: who listens, what is written, and how it ends.

Everything here happens in the supervisor's process, which loads no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import strategies
from bench.machine import commit, machine, versions
from bench.recorder import Recorder
from bench.summary import SCHEMA, RunFacts, finite, make_summary, write_json
from common.config import Config, ConfigError
from common.envs import inspect_env
from common.owners import owner
from common.supervisor import RunProbe, private_mib
from common.telemetry import EventLog, Observer
from common.types import RunResult

RUNS = Path("runs")
CONFIG, SUMMARY, OWNER = "config.json", "summary.json", "owner.json"


def run(
    strategy_name: str,
    config: Config,
    output: Path | None = None,
    make_observers: Callable[[Path], Sequence[Observer]] = lambda folder: (),
    command_started_at: float | None = None,
) -> dict[str, Any]:
    """Train once, leave a run folder behind and return its summary.

    Args:
        strategy_name: a registered name.
        config: the strategy's own ``Config``.
        output: the run folder; new or empty. ``runs/<run-id>`` if None.
        make_observers: given the run folder, returns who hears the run's ticks and evaluations.
        command_started_at: on the ``perf_counter`` clock; now if None.

    Raises:
        ConfigError: the run could not start; no folder is left.
        KeyboardInterrupt: interrupted before a process was started; no folder is left.
    """
    started = time.perf_counter() if command_started_at is None else command_started_at
    strategy = strategies.load(strategy_name)
    threshold = inspect_env(config.env_id).reward_threshold
    folder = RunFolder(strategy_name, config, output)
    try:
        with contextlib.closing(folder.open_log()) as log:
            recorder = Recorder(log, make_observers(folder.path))
            probe = RunProbe(observer=recorder, folder=folder.path, command_started_at=started)
            with interrupts_until_heard(recorder):
                result = _train(strategy.train, config, probe, recorder)
                recorder.write_histograms(result)
                facts = _facts(folder, recorder, threshold, started)
                summary = make_summary(strategy_name, config, result, facts)
                folder.finish(summary)
    except (ConfigError, KeyboardInterrupt):
        folder.remove()
        raise
    return summary


def _facts(folder: RunFolder, recorder: Recorder, threshold: float | None, started: float) -> RunFacts:
    return RunFacts(
        run_id=folder.run_id,
        folder=folder.path,
        started_at=folder.started_at,
        threshold=threshold,
        supervisor_rss_mib=max(recorder.rss_mib, private_mib(os.getpid())),
        machine=machine(),
        versions=versions(),
        commit=commit(),
        wall_seconds=time.perf_counter() - started,
    )


def _train(train: Any, config: Config, probe: RunProbe, recorder: Recorder) -> RunResult:
    try:
        result: RunResult = train(config, probe)
        return result
    except ConfigError:
        raise
    except Exception:
        # A fault of the toolkit itself: what is known is written down all the same.
        return recorder.failed_result(traceback.format_exc())


@contextlib.contextmanager
def interrupts_until_heard(recorder: Recorder) -> Iterator[None]:
    """Let Ctrl-C leave at once until the run has been heard of, and finish the summary after it.

    While processes run, the supervisor's own handlers are in place.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not recorder.has_heard:
            raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        previous = {number: signal.signal(number, on_signal) for number in signals}
    except ValueError:  # not in the main thread: no signal arrives here
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class RunFolder:
    """The folder of a run: made before anything starts, gone again if nothing does.

    Args:
        strategy_name: goes into the run's name.
        config: written to ``config.json``.
        output: the folder itself, or None for a new one under ``runs``.

    Raises:
        ConfigError: the folder is not empty or cannot be written.
    """

    def __init__(self, strategy_name: str, config: Config, output: Path | None = None) -> None:
        now = datetime.now().astimezone()
        self.started_at = now.isoformat(timespec="seconds")
        env = re.sub(r"[^A-Za-z0-9.]+", "-", config.env_id)
        self.run_id = f"{now:%Y%m%d-%H%M%S}-{strategy_name}-{env}-seed{config.seed}"
        self._made: list[Path] = []
        self._owns = False  # set once the folder is known to have been empty
        try:
            self.path = self._make(output)
            self._owns = True
            contents = {
                "schema": SCHEMA,
                "strategy": strategy_name,
                "config": dataclasses.asdict(config),
            }
            # First of all: a folder that says whose it is can be told from those left by a killed run.
            write_json(self.path / OWNER, owner())
            write_json(self.path / CONFIG, finite(contents))
        except OSError as error:
            self.remove()
            where = output if output is not None else RUNS
            raise ConfigError(
                f"the output folder {where} cannot be written ({error.strerror}); name another one "
                "with --output"
            ) from None
        except BaseException:
            self.remove()
            raise

    def _make(self, output: Path | None) -> Path:
        if output is None:
            path, number = RUNS / self.run_id, 1
            while not self._mkdir(path):
                number += 1
                path = RUNS / f"{self.run_id}-{number}"
            self.run_id = path.name
            return path
        if not self._mkdir(output) and any(output.iterdir()):
            raise ConfigError(f"the output folder {output} is not empty; name a new or an empty one")
        return output

    def _mkdir(self, path: Path) -> bool:
        """Make a folder and the missing ones above it; False if it is there already."""
        for parent in reversed(path.parents):
            if not parent.exists():
                parent.mkdir(exist_ok=True)
                self._made.append(parent)
        try:
            path.mkdir()
        except FileExistsError:
            return False
        self._made.append(path)
        return True

    def open_log(self) -> EventLog:
        """Return the event log, empty.

        Raises:
            ConfigError: it cannot be written.
        """
        path = self.path / "events.jsonl"
        try:
            return EventLog(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror})") from None

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary; if it cannot be written it says so itself, and is all there is."""
        try:
            write_json(self.path / SUMMARY, summary)
            (self.path / OWNER).unlink(missing_ok=True)
        except OSError as error:
            reason = f"{self.path / SUMMARY} could not be written: {error.strerror}"
            summary["error"] = f"{summary['error']}\n{reason}" if summary["error"] else reason
            summary["status"] = "failed" if summary["status"] == "completed" else summary["status"]

    def remove(self) -> None:
        """Remove what the run has written, and the folders that it made."""
        if self._owns:
            for item in self.path.iterdir():
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        for path in reversed(self._made):
            with contextlib.suppress(OSError):  # not empty: somebody else's files are in it
                path.rmdir()


def load_config(folder: Path) -> tuple[str, Config]:
    """Return the strategy's name and the configuration of a saved run.

    Raises:
        ConfigError: the folder is no run folder, or what it says is not allowed.
    """
    path = folder / CONFIG
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        name, values = str(contents["strategy"]), dict(contents["config"])
        config: Config = strategies.load(name).Config.from_saved(values)
    except OSError as error:
        raise ConfigError(f"{folder} is no run folder: {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path} is not the configuration of a run: {text}") from None
    return name, config
