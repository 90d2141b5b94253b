"""One sentence: who collects, who learns, what is special.

    (an ASCII diagram of at most 12 lines: boxes are processes, arrows are what moves between them)

Processes:   how many, of which kind.
Weights:     where they live, who writes them, under what guard.
Experience:  how it reaches the learner.
Correction:  what is done about acting with other weights than are trained.
Can go wrong: what a reader should look for in the report.

Paper: authors, year, title.

This file is an empty strategy: copy it, fill it in from its parent's file opened beside it, and add
its name to ``STRATEGIES`` in ``strategies/__init__.py``. It is not registered and cannot be run. The
tests then hold the new strategy to the guarantees of the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from common.audit import SharedMaster
from common.config import Config as CommonConfig
from common.experience import ExperienceBuffer
from common.probe import Probe
from common.processes import Role
from common.supervisor import RunProbe, Shared, run_roles
from common.types import RunResult, Traits
from common.weights import SharedWeights


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """Only what this strategy adds, declared with ``option``, or has another default for, with
    ``changed``. The command line makes its options from these declarations.
    """

    # Values by environment that beat the common presets.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}


TRAITS = Traits(
    name="template",
    parent=None,
    summary="the docstring's first sentence",
    processes="as in the docstring",
    collects="who steps environments",
    computes_gradients="who computes gradients",
    writes_weights="who writes the weights",
    guard="what protects them",
    experience="as in the docstring",
    correction="as in the docstring",
    loss="what is minimised",
    can_go_wrong="as in the docstring",
    paper="authors and year",
    can_lose_updates=False,
    single_process=True,
    ratios=("held",),
    roles=("actor_learner",),
)


def actor_learner(
    config: Config,
    probe: Probe,
    buffer: ExperienceBuffer,
    weights: SharedWeights,
    master: SharedMaster,
) -> None:
    """Act, observe, learn, sync, until told to stop.

    A role is a plain function at module level, because ``spawn`` starts it by its name. It imports
    torch inside, and only if it learns. Its loop asks ``probe.should_stop()`` between two steps and
    never waits for another process without asking.

    Where ``train`` says ``can_restart``, another process may take the place of one that died: it draws
    from streams of its own (``worker_stream``) and finds all else in shared memory.
    """
    # make lanes, generators, writer, replay, learner; name them for checkpoints before lanes.reset()
    probe.resumable()
    while not probe.should_stop():
        # act: choose actions and step the lanes
        # observe: write the row, publish when a chunk is full
        # learn: do the updates that are owed, count each with probe.count_update()
        # sync: publish or pull weights; ask for an evaluation when one is due
        the_difference(config)


# --- The difference that matters ---


def the_difference(config: Config) -> None:
    """Hold the one idea of this strategy, and nothing else."""


# --- End of the difference ---


def train(config: Config, probe: RunProbe) -> RunResult:
    """Allocate, start, wait, collect. No arithmetic."""
    shared = Shared(config)
    buffer = ExperienceBuffer(config, shared.info)
    roles = [Role("actor_learner", 0, actor_learner, (buffer, shared.weights, shared.master))]
    return run_roles(config, probe, roles, shared, buffer)
