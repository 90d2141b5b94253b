"""Measurements in processes apart from any run, with thread limits or without.

The limits are set when ``bench`` is imported, before numpy is loaded, so they can only be lifted in a
new interpreter, between the two. Each process says when it is ready, all are told to begin together,
and each answers with one line of JSON. Whoever loses its parent leaves.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from typing import IO, Any

import click

from common.processes import THREAD_VARIABLES

CHILD = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
import bench
for name in sys.argv[2].split():
    os.environ.pop(name, None)
from bench.aside import serve
serve(*sys.argv[3:])
"""
READY, GO = "ready", "go"
FAILED, NOT_BEGUN = "failed", "not begun"  # neither is JSON
START_SECONDS = 120.0  # several processes that import torch on a busy machine


class AsideError(click.ClickException):
    """A measurement apart failed; the message says which and why."""


def measure_aside(
    function: str,
    arguments: Mapping[str, Any],
    *,
    seconds: float,
    number: int = 1,
    with_limits: bool = True,
) -> list[Any]:
    """Run a function in processes of its own, begun together, and return what each gives.

    Args:
        function: ``module:name``, called with ``arguments`` in two steps: it returns what begins once
            all are ready.
        arguments: as JSON has them.
        seconds: that the measurement takes about; far more and it is ended.
        number: of processes.
        with_limits: False leaves the numeric libraries their own number of threads.

    Raises:
        AsideError: a process failed or took far too long.
    """
    lifted = "" if with_limits else " ".join(THREAD_VARIABLES)
    # The user's own environment is found where the parent would find it.
    given = [json.dumps(sys.path), lifted, function, json.dumps(dict(arguments))]
    command = [sys.executable, "-c", CHILD, *given]
    with contextlib.ExitStack() as stack:
        children = [_start(command, stack) for _ in range(number)]
        together = threading.Barrier(number)
        pool = stack.enter_context(ThreadPoolExecutor(number))
        stack.callback(_kill, children)  # before the pool waits for threads that read from them
        futures = [pool.submit(_talk, child, together) for child in children]
        deadline = time.perf_counter() + START_SECONDS + 10 * seconds
        try:
            answers = [future.result(deadline - time.perf_counter()) for future in futures]
        except LateError:
            raise AsideError(f"{function} did not end in time") from None
        for answer, child in zip(answers, children, strict=True):
            if answer == FAILED:
                raise AsideError(f"{function} failed: {_last_words(child)}")
        return [json.loads(answer) for answer in answers]


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[str]
    # A file and no pipe: an environment may print more than a pipe holds, and nobody reads meanwhile.
    errors: IO[str]


def _start(command: list[str], stack: contextlib.ExitStack) -> _Child:
    file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (the stack)
    errors = stack.enter_context(file)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,  # a Ctrl-C comes to the parent, which then ends them
    )
    return _Child(stack.enter_context(process), errors)


def _talk(child: _Child, together: threading.Barrier) -> str:
    """Wait until a process is ready, let it begin with the others, and return what it answers."""
    stdin, stdout = child.process.stdin, child.process.stdout
    assert stdin is not None and stdout is not None
    if stdout.readline().strip() != READY:
        together.abort()
        return FAILED
    try:
        together.wait(START_SECONDS)
    except threading.BrokenBarrierError:
        return NOT_BEGUN  # another failed; its own words say why
    print(GO, file=stdin, flush=True)
    return stdout.readline() or FAILED


def _last_words(child: _Child) -> str:
    child.errors.seek(0)
    lines = child.errors.read().strip().splitlines() or ["it left without a word"]
    return lines[-1]


def _kill(children: list[_Child]) -> None:
    for child in children:
        child.process.kill()


# The child's side.


def serve(function: str, arguments: str) -> None:
    """Do what the parent asked for: prepare, say so, wait for the others, measure, answer."""
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # an environment may print
    module, _, name = function.partition(":")
    begin = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    print(READY, file=answer_to, flush=True)
    if sys.stdin.readline().strip() != GO:
        return  # the parent is gone, or has given up
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    print(json.dumps(begin()), file=answer_to, flush=True)


def _leave_with_parent() -> None:
    sys.stdin.read()  # until the parent's end of the pipe is closed, however that happened
    os._exit(1)
