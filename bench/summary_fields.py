"""What every field of ``summary.json`` means, and in which unit: the source of the reference page.

A name is the path to a field. ``[]`` stands for every item of a list, ``*`` for any key. A field that
is null was not measured in that run; a parent that is null has none of its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class SummaryField(NamedTuple):
    """One field.

    Attributes:
        unit: what it is counted in.
        meaning: what it says, in one sentence or two.
    """

    unit: str
    meaning: str


QUANTILES = {"p50": "The median", "p95": "95 of 100 are at most this", "max": "The largest"}


def _distribution(of: str, unit: str, also: Mapping[str, str]) -> dict[str, SummaryField]:
    """Return the fields of one distribution.

    Args:
        of: its name in the summary.
        unit: of p50, p95 and max.
        also: other units it was measured in: field name to unit.
    """
    fields = {f"{of}.{name}": SummaryField(unit, f"{text}.") for name, text in QUANTILES.items()}
    fields[f"{of}.unit"] = SummaryField("text", "What p50, p95 and max are counted in.")
    for field, other in also.items():
        for name, text in QUANTILES.items():
            fields[f"{of}.{field}.{name}"] = SummaryField(other, f"{text}, measured in {other}.")
    return fields


IN_ENV_STEPS = {"env_steps": "env steps", "milliseconds": "ms"}
IN_UPDATES = {"updates": "updates", "milliseconds": "ms"}

FIELDS: dict[str, SummaryField] = {
    "schema": SummaryField("number", "Version of this list; it rises when a field changes."),
    "strategy": SummaryField("text", "What was named with --strategy."),
    "env_id": SummaryField("text", "The environment."),
    "seed": SummaryField("number", "The seed of everything."),
    "status": SummaryField("text", "completed, interrupted or failed."),
    "error": SummaryField("text", "The traceback or signal that ended a failed run; else null."),
    "run_id": SummaryField("text", "Names the run."),
    "folder": SummaryField("text", "Where its files are."),
    "started_at": SummaryField("local time", "ISO 8601, when the run folder was made."),
    "commit": SummaryField("text", "The toolkit's commit, if it ran from a checkout."),
    "wall_seconds": SummaryField("seconds", "From the command's start to the summary."),
    "env_steps": SummaryField("env steps", "Collected, over all environments of all workers."),
    "updates": SummaryField("updates", "Optimizer steps, over all writers."),
    "env_steps_per_second": SummaryField("1/s", "Env steps per second of the steady window."),
    "updates_per_second": SummaryField(
        "1/s", "Updates per second of the steady window, with the first, which opens it."
    ),
    "training_seconds": SummaryField(
        "seconds", "The training clock: from the common start to the stop, without evaluations."
    ),
    "steady_seconds": SummaryField(
        "seconds", "The steady window: from the first update to the stop, without evaluations."
    ),
    "warmup_env_steps": SummaryField("env steps", "Before the steady window."),
    "warmup_seconds": SummaryField("seconds", "Of the training clock, before the steady window."),
    "config.*": SummaryField("as the choice", "Every choice of the run, presets applied."),
    "machine.cpu": SummaryField("text", "Name of the processor."),
    "machine.cores": SummaryField("number", "Physical cores."),
    "machine.logical_cores": SummaryField("number", "Cores as the system counts them."),
    "machine.usable_cores": SummaryField("number", "Cores that the process was allowed to use."),
    "machine.memory_mib": SummaryField("MiB", "Memory of the machine."),
    "machine.os": SummaryField("text", "Operating system."),
    "machine.python": SummaryField("text", "Version of Python."),
    "versions.*": SummaryField("text", "Version of each package that matters, this one included."),
    "replay_ratio.requested": SummaryField(
        "updates per env step", "What was asked for: a number or free; null where it follows by itself."
    ),
    "replay_ratio.achieved": SummaryField(
        "updates per env step", "What came of it: updates over the env steps after the warm-up."
    ),
    "replay_ratio.samples_per_insert": SummaryField(
        "draws", "How often the average stored transition was learned from."
    ),
    "replay_ratio.target_copies": SummaryField(
        "copies", "To the target network (of one process, where each has its own)."
    ),
    "returns.eval_mean": SummaryField(
        "return", "Mean of the final evaluation, or of the last one if there was no final one."
    ),
    "returns.eval_std": SummaryField("return", "Its standard deviation over episodes."),
    "returns.eval_episodes": SummaryField("episodes", "How many it played."),
    "returns.train_last_100_mean": SummaryField(
        "return",
        "Mean of the last 100 training episodes, exploring: at --epsilon-end once it has decayed; in "
        "apex over lanes with 0.4 down to less than 0.001.",
    ),
    "returns.threshold": SummaryField("return", "The mean at which the environment counts as solved."),
    "returns.solved_at_seconds": SummaryField(
        "seconds", "Of the training clock until it was solved; null if it was not, or did not hold."
    ),
    "returns.solved_at_env_steps": SummaryField("env steps", "The same in env steps."),
    "returns.solved_after_command_seconds": SummaryField(
        "seconds", "The same from the command's start, with start-up and evaluations."
    ),
    "returns.best_mean": SummaryField("return", "Mean of the best evaluation; its weights: best.pt."),
    "returns.evaluations": SummaryField(
        "rows", "Of each evaluation: env steps, updates, training seconds, mean return."
    ),
    "audit.enabled": SummaryField("yes or no", "Whether writes were counted."),
    "audit.auditable": SummaryField("yes or no", "Whether the counts could be trusted to the end."),
    "audit.reason": SummaryField("text", "Why there is no count, if there is none."),
    "audit.updates_issued": SummaryField("updates", "Updates that the writers say they finished."),
    "audit.elements": SummaryField("weights", "Weights of the network."),
    "audit.writes_issued": SummaryField("writes", "Updates issued times weights."),
    "audit.writes_lost": SummaryField("writes", "Writes of one weight that another write overwrote."),
    "audit.lost_fraction": SummaryField("fraction", "Lost of issued writes."),
    "audit.elements_affected": SummaryField("weights", "Weights that lost at least one write."),
    "audit.worst_element_lost": SummaryField("writes", "Writes lost by the weight that lost most."),
    "audit.damaged_updates_at_least": SummaryField(
        "updates", "Updates that lost at least one write: a lower bound, the worst weight's losses."
    ),
    "audit.lost_whole_at_most": SummaryField(
        "updates", "Updates of which nothing is left: an upper bound, the least hit weight's losses."
    ),
    "audit.writes_uncertain": SummaryField(
        "writes", "Of updates that a killed worker may or may not have applied."
    ),
    "audit.updates_issued_by_worker": SummaryField("updates", "Finished by each worker."),
    "audit.survivors_by_worker": SummaryField(
        "updates", "Of each worker, the updates that an extra weight of its own has kept."
    ),
    "audit.duplicates": SummaryField("updates", "Gradients that were applied twice."),
    "audit.torn_reads_at_most": SummaryField(
        "reads", "Reads of the weights during which another worker was writing: an upper bound."
    ),
    "audit.optimizer_state": SummaryField(
        "text", "Whether the optimizer's moments are local, or shared and so not audited."
    ),
    **_distribution("policy_lag", "updates", IN_ENV_STEPS),
    **_distribution("acting_lag", "updates", {}),
    **_distribution("gradient_staleness", "updates", IN_ENV_STEPS),
    **_distribution("sample_age", "env steps", IN_UPDATES),
    "experience.workers[].worker": SummaryField("number", "Which worker, from 0."),
    "experience.workers[].env_steps": SummaryField("env steps", "Collected by this worker."),
    "experience.workers[].episodes": SummaryField("episodes", "Finished by this worker."),
    "experience.workers[].updates": SummaryField("updates", "Made by this worker."),
    "experience.workers[].share_collected": SummaryField(
        "fraction", "Its share of what was collected."
    ),
    "experience.workers[].share_consumed": SummaryField(
        "fraction", "Its share of the transitions that updates used."
    ),
    "experience.episode_length[].from": SummaryField("env steps", "Shortest episode of this class."),
    "experience.episode_length[].to": SummaryField("env steps", "Longest episode of this class."),
    "experience.episode_length[].share_collected": SummaryField(
        "fraction", "The share of collected transitions that come from such episodes."
    ),
    "experience.episode_length[].share_consumed": SummaryField(
        "fraction", "The share of the transitions in updates that come from such episodes."
    ),
    "experience.jain_collected": SummaryField(
        "1/n to 1", "Jain's index over workers: 1 when all collected the same, 1/n when one had all."
    ),
    "experience.jain_consumed": SummaryField("1/n to 1", "The same over what updates used."),
    "experience.collected": SummaryField(
        "transitions", "All; equal to stored + dropped + in_flight_at_end."
    ),
    "experience.stored": SummaryField("transitions", "Taken in by a learner."),
    "experience.dropped": SummaryField("transitions", "Overwritten before a learner looked."),
    "experience.in_flight_at_end": SummaryField(
        "transitions", "Collected and not yet looked at when the run stopped."
    ),
    "experience.unpublished_at_most": SummaryField(
        "transitions", "What killed workers may have had in hand."
    ),
    "health.q_mean": SummaryField("return", "Mean estimate (Q; in impala V) in the last sample."),
    "health.q_max": SummaryField("return", "Largest estimate in absolute value."),
    "health.q_bound": SummaryField("return", "No return exceeds it: max |reward| seen / (1 - gamma)."),
    "health.q_bias": SummaryField(
        "return", "Estimates minus the discounted returns that followed, in the last evaluation."
    ),
    "health.td_error": SummaryField("return", "Mean absolute error of a batch, before its update."),
    "health.grad_norm": SummaryField("norm", "Of the gradient, before it is clipped."),
    "health.weight_norm": SummaryField("norm", "Of all weights."),
    "health.weight_norm_growth": SummaryField("ratio", "The last norm over the first sampled one."),
    "health.dormant_fraction": SummaryField(
        "fraction", "Hidden units whose mean activation is at most 0.025 of their layer's."
    ),
    "health.effective_rank": SummaryField(
        "dimensions", "Singular values of the last hidden layer that make up 99% of their sum."
    ),
    "health.churn": SummaryField(
        "fraction", "States of a batch whose greedy action changed since the sample before."
    ),
    "health.most_sampled": SummaryField("times", "That one transition was drawn, at the most."),
    "health.action_entropy": SummaryField(
        "nats", "Mean of -log of the probability with which consumed actions were chosen."
    ),
    "health.alarms[].name": SummaryField("text", "Which alarm."),
    "health.alarms[].value": SummaryField("as the metric", "What was measured."),
    "health.alarms[].limit": SummaryField("as the metric", "The limit that it broke."),
    "health.alarms[].at_env_steps": SummaryField("env steps", "When it began."),
    "health.alarms[].meaning": SummaryField("text", "What it says."),
    "health.alarms[].remedy": SummaryField("text", "What to try, as options."),
    "time.roles.*.*": SummaryField(
        "fraction", "Of the wall time of all processes of a role, by activity; other: not booked."
    ),
    "time.processes.*.*": SummaryField("fraction", "The same for one process."),
    "time.bottleneck": SummaryField("text", "What the run waited for."),
    "time.verdict": SummaryField("text", "The same in a sentence."),
    "time.suggestion": SummaryField("text", "What to change."),
    "checkpoint.folder": SummaryField("text", "Where the last whole checkpoint is; null if none is."),
    "checkpoint.size_mib": SummaryField("MiB", "Its size on the disk."),
    "checkpoint.replay": SummaryField("yes or no", "Whether it holds the replay."),
    "checkpoint.saved_at_env_steps": SummaryField("env steps", "The moment that it holds."),
    "checkpoint.saves": SummaryField("number", "Checkpoints that this part of the run has made."),
    "checkpoint.longest_hold_seconds": SummaryField("seconds", "Longest standstill for one."),
    "checkpoint.longest_save_seconds": SummaryField("seconds", "Longest from asking to the disk."),
    "checkpoint.error": SummaryField("text", "Why the last one failed, if it did."),
    "resume.from": SummaryField("text", "The checkpoint that a resumed run went on from."),
    "resume.continued_at_env_steps": SummaryField("env steps", "Where it went on."),
    "resume.continued_at_updates": SummaryField("updates", "Where it went on."),
    "resume.training_seconds_before": SummaryField("seconds", "Of training in its earlier parts."),
    "resume.not_restored[]": SummaryField("text", "What could not be brought back."),
    "answers[].question": SummaryField("text", "One of the six questions."),
    "answers[].answer": SummaryField("text", "What this run says to it."),
    "processes.workers": SummaryField("processes", "That step environments."),
    "processes.restarts": SummaryField("number", "Workers that were started again."),
    "processes.deaths[].role": SummaryField(
        "text", "Of a process that died; those of a resumed run's earlier parts come first."
    ),
    "processes.deaths[].worker": SummaryField("number", "Which of its kind."),
    "processes.deaths[].reason": SummaryField("text", "Traceback, signal, exit code or silence."),
    "processes.deaths[].at_env_steps": SummaryField("env steps", "When it was noticed."),
    "processes.evaluator_rss_mib": SummaryField(
        "MiB", "Highest sampled memory of the process that plays evaluations."
    ),
    "processes.peak_rss_mib.*": SummaryField(
        "MiB", "Highest sampled private memory of a process of this role."
    ),
    "processes.start_seconds.*": SummaryField(
        "seconds", "From spawn to the first statement, slowest of the role."
    ),
    "processes.threads.*.*": SummaryField("threads", "The limit of each numeric library, by role."),
    "processes.imports_torch.*": SummaryField("yes or no", "Whether a process of it loaded torch."),
    "processes.cpu_seconds.*": SummaryField("seconds", "Processor time of all processes of the role."),
    "processes.cpu_utilisation": SummaryField(
        "fraction", "CPU seconds over training seconds times the cores that the processes can use."
    ),
    "processes.device.*": SummaryField("text", "What the role's learner computed on."),
    "processes.shared_mib": SummaryField("MiB", "All shared arrays, counted once."),
    "processes.supervisor_rss_mib": SummaryField("MiB", "Highest sampled memory of the supervisor."),
}


def section_of(name: str) -> str:
    """Return the section of the reference page that a field stands in."""
    first, dot, _ = name.partition(".")
    return first.removesuffix("[]") if dot else "The run"


def differences(
    summary: Mapping[str, Any], fields: Mapping[str, SummaryField] = FIELDS
) -> tuple[set[str], set[str]]:
    """Return the fields that a summary has and the list has not, and those that it lacks.

    What lies below a parent that is null or an empty list cannot be looked at and is neither.
    """
    tree: dict[str, Any] = {}
    for name in fields:
        node = tree
        for part in name.replace("[]", ".[]").split("."):
            node = node.setdefault(part, {})
    undocumented: set[str] = set()
    missing: set[str] = set()
    _compare(summary, tree, "", undocumented, missing)
    return undocumented, missing


def _compare(
    value: Any, tree: Mapping[str, Any], path: str, undocumented: set[str], missing: set[str]
) -> None:
    if isinstance(value, Mapping):
        missing |= {_join(path, key) for key in tree.keys() - {"*", "[]"} - value.keys()}
        for key, item in value.items():
            below = tree.get(key, tree.get("*"))
            if below is None:
                undocumented.add(_join(path, key))
            else:
                _compare(item, below, _join(path, key), undocumented, missing)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                _compare(item, tree.get("[]", {}), f"{path}[]", undocumented, missing)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
