"""What to try against a bottleneck, with the flag that does it.

An option that the strategy has no use for is never named, and no more workers where no core is free.
"""

from __future__ import annotations

from bench.time_shares import Run, most_work, slow_worker


def for_work(run: Run, kind: str) -> str:
    """Return what to try where one kind of work (a key of ``WORK``) takes most of the time."""
    advice = {
        "environment": _step_more,
        "acting": _act_in_batches,
        "writing": _act_in_batches,
        "sampling": draw_less,
        "update": _update_less,
        "sharing": learn_less,
    }[kind]
    return advice(run)


def _step_more(run: Run) -> str:
    if run.is_one_process and run.num_cores > 1:
        return f"several processes to step it: --strategy apex --workers {run.num_cores - 1}"
    return collect_more(run)


def _act_in_batches(run: Run) -> str:
    if not run.takes("envs_per_worker"):
        return "one forward pass for many environments: --strategy vector --envs-per-worker 8"
    return f"more environments in each forward pass: {double(run, 'envs_per_worker')}"


def _update_less(run: Run) -> str:
    beside = ""
    if run.is_one_process and run.num_cores > 1:
        beside = ", or a learner with a core of its own (--strategy apex)"
    elif run.has_spare_core:
        beside = f", or more workers ({_more_workers(run)})"
    return f"{learn_less(run)}{beside}{accelerator(run)}"


def collect_more(run: Run) -> str:
    """Return how to collect faster: more actors only where a core is free for them."""
    shares = run.roles.get("actor") or next(iter(run.roles.values()))
    who = "actors" if "actor" in run.roles else "workers"
    kind, share = most_work(shares)
    has_room = run.has_spare_core and not run.is_one_process
    parts = [f"more {who} ({_more_workers(run)})"] if has_room else []
    if run.takes("envs_per_worker"):
        parts.append(f"more envs per worker ({double(run, 'envs_per_worker')})")
    if kind in ("writing", "sharing") and run.takes("chunk_steps"):
        parts.append(f"fewer publishes ({double(run, 'chunk_steps')})")
    text = ", or ".join(parts) or "a faster environment"
    straggler = slow_worker(run)
    if straggler is not None:
        text += f"; {cure_straggler(run, straggler)}"
    elif kind == "environment" and share > 0.7:
        text += f"; a faster environment helps most: stepping it takes {share:.0%} of the {who}' time"
    return text + note_on_cores(run)


def learn_less(run: Run) -> str:
    """Return how to give the learner less to do."""
    parts = []
    ratio = run.config.get("replay_ratio")
    if run.takes("replay_ratio") and isinstance(ratio, int | float):
        parts.append(f"a lower replay ratio (--replay-ratio {ratio / 2:g})")
    if run.takes("rollout_length"):
        parts.append(f"longer rollouts ({double(run, 'rollout_length')})")
    if run.takes("batch_size"):
        parts.append(f"a smaller batch (--batch-size {max(1, run.config['batch_size'] // 2)})")
    if run.takes("hidden_size"):
        parts.append(f"a smaller network (--hidden-size {max(1, run.config['hidden_size'] // 2)})")
    return ", or ".join(parts) or "less work per update"


def draw_less(run: Run) -> str:
    """Return how to make drawing batches cheaper."""
    if run.takes("prioritized") and run.config["prioritized"]:
        return f"uniform replay (--no-prioritized), or {learn_less(run)}"
    return learn_less(run)


def accelerator(run: Run) -> str:
    """Return a hint at the GPU where the network is wide enough to ask."""
    if run.config.get("device", "cpu") != "cpu" or run.config.get("hidden_size", 0) < 512:
        return ""
    return "; 'bench profile --device' shows whether a GPU would help"


def _more_workers(run: Run) -> str:
    return f"--workers {run.config.get('workers', 1) + 1}"


def double(run: Run, name: str) -> str:
    """Return the flag that doubles an option."""
    return f"--{name.replace('_', '-')} {2 * run.config[name]}"


def cure_straggler(run: Run, worker: int) -> str:
    """Return what to do about a slow worker."""
    if str(run.config.get("straggler") or "").startswith(f"{worker}:"):
        return f"the run without --straggler, which slows worker {worker}"
    return f"whatever makes worker {worker} as fast as the others"


def fewer_workers(run: Run) -> str:
    """Return what the cores have room for."""
    learners = len([name for name in run.processes if name.startswith("learner")])
    room = max(1, run.num_cores - learners)
    if run.config.get("workers", 1) <= room:
        return "one process for all (--strategy vector)"
    return f"fewer workers (--workers {room})"


def note_on_cores(run: Run) -> str:
    """Return a warning against more workers where more processes are at work than there are cores."""
    if len(run.processes) <= run.num_cores or run.has_spare_core:
        return ""
    return f" ({len(run.processes)} processes share {cores(run)}; more workers would only take turns)"


def cores(run: Run) -> str:
    """Return the number of cores in words."""
    return f"{run.num_cores} core{'s' if run.num_cores != 1 else ''}"
