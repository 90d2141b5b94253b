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
from bench.devices import check_device
from bench.lost_writes import write_lost_writes
from bench.machine import commit, machine, versions
from bench.recorder import Recorder
from bench.resuming import claimed, resume_block, session_config
from bench.summary import SCHEMA, RunFacts, finite, make_summary, write_json
from bench.timeline import write_timeline
from common.config import Config, ConfigError
from common.envs import inspect_env
from common.events import EVENTS, EventLog, Observer
from common.owners import owner
from common.processes import heeded_signals
from common.saved_run import SavedRun
from common.supervisor import RunProbe, private_mib
from common.types import RunResult

RUNS = Path("runs")
CONFIG, SUMMARY, OWNER = "config.json", "summary.json", "owner.json"


def run(
    strategy_name: str,
    config: Config,
    output: Path | None = None,
    make_observers: Callable[[Path], Sequence[Observer]] = lambda folder: (),
    command_started_at: float | None = None,
    resume: SavedRun | None = None,
) -> dict[str, Any]:
    """Train once, leave a run folder behind and return its summary.

    Args:
        strategy_name: a registered name.
        config: the strategy's own ``Config``.
        output: the run folder; new or empty. If None, ``runs/<run-id>`` or that of ``resume``.
        make_observers: given the run folder, returns who hears the run's ticks and evaluations.
        command_started_at: on the ``perf_counter`` clock; now if None.
        resume: the checkpoint of a run to go on with.

    Raises:
        ConfigError: the run could not start; no folder is left.
        KeyboardInterrupt: interrupted before a process was started; no folder is left.
    """
    started = time.perf_counter() if command_started_at is None else command_started_at
    strategy = strategies.load(strategy_name)
    threshold = inspect_env(config.env_id).reward_threshold
    check_device(config.device)
    session = session_config(config, resume)
    folder = RunFolder(strategy_name, config, output, resume)
    try:
        with claimed(folder.path), contextlib.closing(folder.open_events()) as log:
            folder.write_owner()
            folder.write_config(config)
            recorder = Recorder(log, make_observers(folder.path))
            recorder.going_on_from(resume)
            probe = RunProbe(
                observer=recorder,
                folder=folder.path,
                command_started_at=started,
                facts=folder.facts(config),
                resume=resume,
            )
            with interrupts_until_heard(recorder):
                result = _train(strategy.train, session, probe, recorder)
                recorder.write_histograms(result)
                facts = _facts(folder, recorder, threshold, started, session.warmup_env_steps)
                summary = make_summary(strategy_name, config, result, facts)
                summary["resume"] = resume_block(resume, result)
                folder.finish(summary)
                folder.write_extras(result, strategy_name, config)
    except (ConfigError, KeyboardInterrupt):
        folder.remove()
        raise
    return summary


def _facts(
    folder: RunFolder,
    recorder: Recorder,
    threshold: float | None,
    started: float,
    warmup_env_steps: int,
) -> RunFacts:
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
        warmup_env_steps=warmup_env_steps,
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

    signals = heeded_signals()
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
        resume: the run to go on with, in its own folder if ``output`` is None.

    Raises:
        ConfigError: the folder is not empty or cannot be written.
    """

    def __init__(
        self,
        strategy_name: str,
        config: Config,
        output: Path | None = None,
        resume: SavedRun | None = None,
    ) -> None:
        now = datetime.now().astimezone()
        self.started_at = now.isoformat(timespec="seconds")
        env = re.sub(r"[^A-Za-z0-9.]+", "-", config.env_id)
        self.run_id = f"{now:%Y%m%d-%H%M%S}-{strategy_name}-{env}-seed{config.seed}"
        self._strategy, self._resume = strategy_name, resume
        self._made: list[Path] = []
        self._owns = False  # set once the folder is known to have been empty
        try:
            if resume is not None and output is None:
                self._go_on_in(resume)
            else:
                self.path = self._make(output)
                self._owns = True
                self.write_owner()
                self._bring_events()
                self.write_config(config)
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

    def write_owner(self) -> None:
        """Say whose the folder is, first of all: so it can be told from those that killed runs left."""
        write_json(self.path / OWNER, owner())

    def write_config(self, config: Config) -> None:
        """Write ``config.json``: again where a run goes on with a larger budget."""
        contents = {
            "schema": SCHEMA,
            "strategy": self._strategy,
            "config": dataclasses.asdict(config),
        }
        write_json(self.path / CONFIG, finite(contents))

    def _go_on_in(self, resume: SavedRun) -> None:
        self.path = resume.folder.parent
        self.run_id = str(resume.contents["run_id"])
        self.started_at = str(resume.contents["started_at"])

    def _bring_events(self) -> None:
        """Copy the events of the run that this one goes on with, up to its checkpoint."""
        earlier = None if self._resume is None else self._resume.folder.parent / EVENTS
        if self._resume is not None and earlier is not None and earlier.is_file():
            kept = earlier.read_bytes()[: self._resume.contents["events_bytes"]]
            (self.path / EVENTS).write_bytes(kept)

    def open_events(self) -> EventLog:
        """Return the event log, with what belongs to the run so far.

        Raises:
            ConfigError: it cannot be written.
        """
        kept = 0 if self._resume is None else int(self._resume.contents["events_bytes"])
        try:
            return EventLog(self.path / EVENTS, kept)
        except OSError as error:
            raise ConfigError(f"{self.path / EVENTS} cannot be written ({error.strerror})") from None

    def facts(self, config: Config) -> dict[str, Any]:
        """Return what a checkpoint says of the run it belongs to."""
        whose = {"strategy": self._strategy, "config": dataclasses.asdict(config)}
        facts: dict[str, Any] = finite({**whose, "run_id": self.run_id, "started_at": self.started_at})
        return facts

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

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary; if it cannot be written it says so itself, and is all there is."""
        try:
            write_json(self.path / SUMMARY, summary)
            (self.path / OWNER).unlink(missing_ok=True)
        except OSError as error:
            reason = f"{self.path / SUMMARY} could not be written: {error.strerror}"
            summary["error"] = f"{summary['error']}\n{reason}" if summary["error"] else reason
            summary["status"] = "failed" if summary["status"] == "completed" else summary["status"]

    def write_extras(self, result: RunResult, strategy_name: str, config: Config) -> None:
        """Write what only figures need; a full disk costs no more than them."""
        with contextlib.suppress(OSError):
            write_lost_writes(self.path, result)
            write_timeline(self.path, strategy_name, config, result)

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
        text = f"it has no {text}" if isinstance(error, KeyError) else text
        raise ConfigError(f"{path} is not the configuration of a run: {text}") from None
    return name, config
