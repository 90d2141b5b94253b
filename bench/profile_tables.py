"""What ``bench profile`` prints: tables, each with a sentence that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from bench.devices import Devices, why_not
from bench.machine import too_busy

# Part: what a row of the table calls it.
ALONE = {
    "environment": "environment",
    "acting": "acting",
    "update": "update",
    "learning": "learning loop",
    "publish": "publishing",
}
MEANINGS = {
    "environment": "stepping the environments with actions drawn beforehand",
    "acting": "choosing actions with the network's numpy twin",
    "update": "the update, again and again on one batch",
    "learning": "drawing from a full replay, the update, and writing priorities",
    "publish": "one process publishes weights while the others copy them",
}
MOST_COLUMNS = 3
LEAST_WIDTH = 100  # of what is not printed on a terminal
SIGNIFICANT = 3


def show_profile(found: Mapping[str, Any], stdout: TextIO) -> None:
    """Print a profile."""
    config, machine = found["config"], found["machine"]
    shape = f"{config['workers']} x {config['envs_per_worker']} environments"
    console = _console(stdout)
    console.print(f"{found['strategy']} on {found['env_id']}, {shape}, {machine['usable_cores']} cores")
    if too_busy(found["cpu_in_use_before"]):
        share = found["cpu_in_use_before"]
        console.print(f"Other programs used {share:.0%} of this machine: all figures are too low.")
    console.print(_ceilings(found))
    for part in found["ceilings"]:
        console.print(f"  {ALONE[part]}: {MEANINGS[part]}", style="dim")
    _show_run(console, found["run"])
    _show_threads(console, found["threads"])
    _show_vector_envs(console, found["vector_envs"])


def _console(stdout: TextIO) -> Any:
    from rich.console import Console

    console = Console(file=stdout, highlight=False)
    return console if console.is_terminal else Console(file=stdout, highlight=False, width=LEAST_WIDTH)


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _ceilings(found: Mapping[str, Any]) -> Any:
    ceilings, run = found["ceilings"], found["run"]
    counts = list(next(iter(ceilings.values()))["by_processes"])
    counts = [*counts[:1], *counts[1:][-(MOST_COLUMNS - 1) :]]
    titles = [f"{count} process{'es' if count != '1' else ''}" for count in counts]
    table = _table("\nalone, and the run beside it", "", "", *titles, "the run", "of alone")
    for part, ceiling in ceilings.items():
        rates = [_number(ceiling["by_processes"][count]) for count in counts]
        share = run["of_ceiling"].get(part)
        reached = run[
            "updates_per_second" if ceiling["unit"] == "updates/s" else "env_steps_per_second"
        ]
        beside = ("", "") if share is None else (_number(reached), f"{share:.0%}")
        table.add_row(ALONE[part], ceiling["unit"], *rates, *beside)
    return table


def _show_run(console: Any, run: Mapping[str, Any]) -> None:
    table = _table("\nwhere the run's time went", "", "")
    for role, shares in run["time"]["roles"].items():
        parts = sorted(shares.items(), key=lambda item: -item[1])
        table.add_row(role, ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= 0.005))
    table.columns[1].justify = "left"
    table.show_header = False
    console.print(table)
    if run["time"]["verdict"] is None:
        console.print(
            "No update was made in the time: give more --seconds, or less --warmup-env-steps."
        )
        return
    verdict, suggestion = run["time"]["verdict"], run["time"]["suggestion"]
    console.print(f"{verdict[0].upper()}{verdict[1:]}.\nTry {suggestion}.")


def _show_threads(console: Any, counts: Sequence[Mapping[str, Any]]) -> None:
    own = counts[-1]["update"]["threads_by_default"]
    table = _table(
        "\nthreads: one in each process, or as many as the libraries start",
        *("", "processes", "", "1 thread each", f"{own} each", "ratio"),
    )
    units = {"acting": "env steps/s", "update": "updates/s"}
    for work, unit in units.items():
        for threads in counts:
            each = threads[work]
            rates = (_number(each["one_thread"]), _number(each["default_threads"]))
            table.add_row(ALONE[work], str(threads["processes"]), unit, *rates, f"{each['ratio']:.1f}")
    console.print(table)
    console.print(
        f"Without a limit the numeric libraries start {own} threads in each process. Every process of "
        "this toolkit has one, whatever OMP_NUM_THREADS says."
    )


def _show_vector_envs(console: Any, envs: Mapping[str, Any]) -> None:
    from bench.vector_envs import WAYS, verdict

    table = _table(f"\n{envs['num_envs']} environments at once", "", "env steps/s")
    for way, rate in envs["env_steps_per_second"].items():
        table.add_row(WAYS[way], "there is none" if rate is None else _number(rate))
    console.print(table)
    console.print(verdict(envs))


def show_devices(found: Mapping[str, Any], stdout: TextIO) -> None:
    """Print the sweep of one device or of two."""
    console = _console(stdout)
    accelerator = found["accelerator"]
    sides = ["cpu"] if accelerator is None else ["cpu", accelerator]
    console.print(f"one update of the network of {found['env_id']}, torch {found['torch']}")
    for side in sides:
        console.print(_sweep(side, found["cells"][side]))
    console.print(_master_sentence(found["cells"]["cpu"]))
    if accelerator is None:
        devices = Devices(found["torch"], ("cpu",), found["has_cuda_build"])
        reason = why_not("cuda", devices).partition(";")[0]
        console.print(f"There is no accelerator to compare with: {reason}. Only the CPU was measured.")
        return
    for width, batch in found["faster_from_batch"].items():
        where = "at no batch measured" if batch is None else f"from a batch of {batch} on"
        console.print(f"width {width}: {accelerator} is faster {where}")


def _sweep(side: str, cells: list[dict[str, Any]]) -> Any:
    batches = list(dict.fromkeys(cell["batch"] for cell in cells))
    note = "1 thread" if side == "cpu" else "in brackets the share of transfers"
    table = _table(
        f"\nmilliseconds per update on {side}, {note}", "width", *(f"batch {b}" for b in batches)
    )
    for width in dict.fromkeys(cell["width"] for cell in cells):
        table.add_row(str(width), *(_cell(cell) for cell in cells if cell["width"] == width))
    return table


def _cell(cell: Mapping[str, Any]) -> str:
    if cell["milliseconds"] is None:
        return "-"
    share = "" if cell["transfers"] is None else f" ({cell['transfers']:.0%})"
    return f"{cell['milliseconds']:.2f}{share}"


def _master_sentence(cells: list[dict[str, Any]]) -> str:
    known = [cell for cell in cells if cell["master"] is not None]
    first, last = known[0], known[-1]
    text = (
        f"Writing the audited weights and reading them back stays on the CPU: {first['master']:.0%} of "
        f"an update of width {first['width']} and batch {first['batch']}, {last['master']:.0%} at "
        f"{last['width']} and {last['batch']}."
    )
    left_out = any(cell["milliseconds"] is None for cell in cells)
    return text + (" A dash is an update that takes more than a second here." if left_out else "")


def _number(value: float) -> str:
    """Return three significant digits: more would be noise."""
    if value >= 100:
        digits = len(str(int(value))) - SIGNIFICANT
        return f"{round(value, -digits):,.0f}"
    return f"{value:.{SIGNIFICANT}g}"
