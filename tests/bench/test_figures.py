"""What is drawn equals the data: lines, bars, cells and shaded regions are read back from the axes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from colour_vision import contrast, distance
from saved_runs import (
    LAYOUT,
    make_summary,
    make_timeline,
    write_comparison,
    write_lost,
    write_run,
    write_sweep,
)

from bench import captions, figure_sweep, figure_timeline, figures, figures_inside, palette
from bench.figures import drawing_style
from bench.groups import Group, histogram_of, make_groups
from bench.lost_writes import load_lost_writes, write_lost_writes
from bench.saved import load_runs, read_object
from bench.svg import inline_svg, svg_text

STRATEGIES = ("single", "hogwild", "apex")
SEEDS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison") / "runs"
    write_comparison(folder, STRATEGIES, SEEDS)
    return folder


@pytest.fixture(scope="module")
def groups(folder: Path) -> list[Group]:
    return make_groups(load_runs(folder))


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with drawing_style():
        yield


def summaries(folder: Path, strategy: str) -> list[dict[str, Any]]:
    """The oracle: the files themselves."""
    return [
        json.loads((folder / f"runs/steps/{strategy}/seed{seed}/summary.json").read_text())
        for seed in range(SEEDS)
    ]


def evaluations(folder: Path, strategy: str, seed: int, clock: str) -> list[tuple[float, float]]:
    run = folder / f"runs/steps/{strategy}/seed{seed}"
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    end = summary["training_seconds" if clock == "seconds" else "env_steps"]
    points = [(row[clock], row["mean"]) for row in rows if row["kind"] == "evaluation"]
    return [*points, (end, summary["returns"]["eval_mean"])]


def lines(axes: Any, label: str) -> list[np.ndarray]:
    return [np.column_stack(line.get_data()) for line in axes.lines if line.get_label() == label]


def title(axes: Any) -> str:
    return str(axes.get_title(loc="left"))


# --- Colours ---


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_strategies_are_told_apart_with_any_colour_vision(theme: str) -> None:
    styles = [*palette.STRATEGY_STYLES.values(), palette.strategy_style("of another package")]
    colours = [getattr(style.colour, theme) for style in styles]
    page = getattr(palette.SURFACE, theme)
    assert min(contrast(colour, page) for colour in colours) >= 3.0
    pairs = [(one, two) for i, one in enumerate(colours) for two in colours[:i]]
    # 0.02 is just noticeable in this measure; the control is what many plots use.
    assert min(distance(one, two) for one, two in pairs) > 0.08
    assert distance("#d62728", "#2ca02c") < 0.08
    assert len({style.marker for style in styles}) == len(styles)


def test_every_colour_has_one_variable_and_text_can_be_read() -> None:
    variables = palette.variables()
    assert len({colour.light for colour in variables.values()}) == len(variables)
    for theme in ("light", "dark"):
        page = getattr(palette.SURFACE, theme)
        assert contrast(getattr(palette.INK, theme), page) >= 7
        assert contrast(getattr(palette.MUTED, theme), page) >= 4.5
    assert set(palette.STRATEGY_STYLES) == {
        "single",
        "vector",
        "sync",
        "hogwild",
        "a3c",
        "impala",
        "apex",
        "pqn",
    }


def test_a_strategy_has_one_colour_in_every_figure(groups: list[Group]) -> None:
    expected = palette.STRATEGY_STYLES["apex"].colour.light
    drawn = [figures.learning(groups, "env_steps"), figures.q_against_bound(groups)]
    drawn.append(figures_inside.distributions(groups))
    for figure in drawn:
        assert figure is not None
        found = [line for axes in figure.axes for line in axes.lines if line.get_label() == "apex"]
        assert found
        assert {line.get_color() for line in found} == {expected}
    figure = figures.throughput(groups)
    assert figure is not None
    place = [group.strategy for group in groups].index("apex")
    bars = [
        bar for bar in figure.axes[0].patches if bar.get_y() < place < bar.get_y() + bar.get_height()
    ]
    assert [round(255 * part) for part in bars[0].get_facecolor()[:3]] == [
        int(expected[i : i + 2], 16) for i in (1, 3, 5)
    ]


# --- Learning ---


@pytest.mark.parametrize("clock", ["env_steps", "seconds"])
def test_every_seed_is_drawn_and_the_bold_line_is_their_median(
    groups: list[Group], folder: Path, clock: str
) -> None:
    figure = figures.learning(groups, clock)
    assert figure is not None
    (axes,) = figure.axes
    own = {
        name: [evaluations(folder, name, seed, clock) for seed in range(SEEDS)] for name in STRATEGIES
    }
    thin = sorted(line.tolist() for line in lines(axes, "_seed"))
    assert np.allclose(
        np.concatenate(thin),
        np.concatenate(
            sorted([[list(point) for point in curve] for curves in own.values() for curve in curves])
        ),
    )
    for name, curves in own.items():
        (bold,) = lines(axes, name)
        begin, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
        assert bold[0, 0] == pytest.approx(begin)
        assert bold[-1, 0] == pytest.approx(end)
        at = [[np.interp(x, *zip(*curve, strict=True)) for curve in curves] for x in bold[:, 0]]
        assert bold[:, 1] == pytest.approx(np.median(at, axis=1))
    assert len(axes.collections) == len(STRATEGIES)  # the intervals
    assert lines(axes, "solved")[0][0, 1] == 475.0


def test_many_groups_have_a_panel_each_with_the_others_in_grey(groups: list[Group]) -> None:
    assert not figures.are_apart(groups)
    together = figures.learning(groups, "env_steps")
    many = [*groups, *groups]
    assert figures.are_apart(many)
    for draw in (lambda of: figures.learning(of, "env_steps"), figures.q_against_bound):
        figure = draw(many)
        panels = [axes for axes in figure.axes if axes.axison]
        assert [axes.get_title(loc="left") for axes in panels] == [group.label for group in many]
        for axes, group in zip(panels, many, strict=True):
            grey = [line for line in axes.lines if line.get_color() == palette.MUTED.light]
            assert len([line for line in grey if len(line.get_xdata()) > 2]) == len(many) - 1
            assert len(lines(axes, group.label)) == 1 and len(axes.collections) == 1
    figure = figures.learning(many, "env_steps")
    assert figure is not None and together is not None
    own, same = lines(figure.axes[0], groups[0].label)[0], lines(together.axes[0], groups[0].label)[0]
    assert own.tolist() == same.tolist()


def test_the_shaded_interval_is_that_of_the_median(groups: list[Group], folder: Path) -> None:
    figure = figures.learning(groups[:1], "env_steps")
    assert figure is not None
    curves = [evaluations(folder, "single", seed, "env_steps") for seed in range(SEEDS)]
    area = figure.axes[0].collections[0].get_paths()[0].vertices
    x = area[5, 0]
    ends = sorted({round(y, 6) for at, y in area if at == x})
    # From three values the 95% interval of the median reaches from the lowest to the highest.
    values = [float(np.interp(x, *zip(*curve, strict=True))) for curve in curves]
    assert (ends[0], ends[-1]) == (pytest.approx(min(values)), pytest.approx(max(values)))


def test_a_single_run_is_its_own_line_and_no_run_draws_nothing(
    folder: Path, groups: list[Group]
) -> None:
    one = make_groups(load_runs(folder / "runs/steps/apex/seed1"))
    figure = figures.learning(one, "env_steps")
    assert figure is not None
    assert lines(figure.axes[0], "apex")[0].tolist() == [
        list(map(float, point)) for point in evaluations(folder, "apex", 1, "env_steps")
    ]
    assert not figure.axes[0].collections
    assert lines(figure.axes[0], "_seed") == []
    assert figures.learning([], "env_steps") is None


def test_q_is_drawn_as_a_multiple_of_its_bound(groups: list[Group]) -> None:
    figure = figures.q_against_bound(groups)
    assert figure is not None
    (axes,) = figure.axes
    seed_lines = lines(axes, "_seed")
    assert len(seed_lines) == len(STRATEGIES) * SEEDS
    rows = groups[0].runs[0].rows("health")
    expected = [[row["env_steps"], row["q_max"] / row["q_bound"]] for row in rows]
    assert any(line.tolist() == expected for line in seed_lines)
    assert lines(axes, "bound")[0][0, 1] == 1.0


# --- Throughput ---


def test_bars_are_medians_dots_are_seeds_and_ceilings_are_lines(
    groups: list[Group], folder: Path
) -> None:
    rates = {"environment": {"2": 12_000.0}, "acting": {"1": 5e5, "2": 9e5}, "update": {"1": 700.0}}
    profile = {"ceilings": {part: {"by_processes": values} for part, values in rates.items()}}
    figure = figures.throughput(groups, profile)
    assert figure is not None
    for axes, path in zip(figure.axes, figures.RATES, strict=True):
        values = {name: [s[path] for s in summaries(folder, name)] for name in STRATEGIES}
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(
            [np.median(values[name]) for name in STRATEGIES]
        )
        dots = [line[:, 0].tolist() for line in lines(axes, "_seeds")]
        assert dots == list(values.values())
        intervals = [line[:, 0].tolist() for line in lines(axes, "_interval")]
        assert intervals == [[min(own), max(own)] for own in values.values()]
    assert [line[0, 0] for line in lines(figure.axes[0], "_ceiling")] == [12_000.0]
    assert [line[0, 0] for line in lines(figure.axes[1], "_ceiling")] == [700.0]
    # One that is far above every bar is named and not drawn.
    assert any("acting alone, 2 processes: 900k" in text.get_text() for text in figure.axes[0].texts)
    assert (
        figures.ceilings({**profile, "env_id": "Acrobot-v1"}, "updates_per_second", "CartPole-v1") == []
    )
    assert figures.throughput([]) is None


# --- Lost writes ---


def test_the_heat_map_shows_every_lost_write(folder: Path) -> None:
    run = folder / "runs/steps/hogwild/seed2"
    parts = load_lost_writes(run)
    assert (
        sum(part.lost.sum() for part in parts)
        == summaries(folder, "hogwild")[2]["audit"]["writes_lost"]
    )
    assert [[part.name, list(part.lost.shape)] for part in parts] == LAYOUT
    figure = figures_inside.lost_heat_map(parts)
    assert figure is not None
    drawn = {title(axes).split(" (")[0]: axes for axes in figure.axes if title(axes)}
    assert set(drawn) == {"linears.0", "advantage_head"}
    for part in parts:
        name = part.name.removesuffix(".weight")
        if name in drawn:
            cells = drawn[name].collections[0].get_array()
            assert np.array_equal(np.asarray(cells).reshape(part.lost.shape), part.lost)


def test_lost_writes_survive_the_file_and_half_a_file_is_none(tmp_path: Path) -> None:
    layout = [("a.weight", (2, 2)), ("a.bias", (2,))]
    result: Any = SimpleNamespace(lost_by_element=np.array([0, 300, 2, 0, 0, 1]), layout=layout)
    write_lost_writes(tmp_path, result)
    read = load_lost_writes(tmp_path)
    assert [(part.name, part.lost.tolist()) for part in read] == [
        ("a.weight", [[0, 300], [2, 0]]),
        ("a.bias", [0, 1]),
    ]
    path = tmp_path / "lost_writes.npz"
    whole = path.read_bytes()
    for half in (whole[:100], whole[:-10], b""):
        path.write_bytes(half)
        assert load_lost_writes(tmp_path) == []
    path.unlink()
    for nothing in (None, np.zeros(6, dtype=np.int64)):
        result.lost_by_element = nothing
        write_lost_writes(tmp_path, result)
    assert not path.exists()
    assert figures_inside.lost_heat_map([]) is None


def test_a_convolution_is_drawn_as_outputs_by_inputs() -> None:
    lost = np.arange(32 * 3 * 2 * 2).reshape(32, 3, 2, 2)
    part = figures_inside.LostWrites("convolutions.0.weight", lost)
    figure = figures_inside.lost_heat_map([part])
    assert figure is not None
    cells = np.asarray(figure.axes[0].collections[0].get_array()).reshape(32, 12)
    assert cells[5, 7] == lost[5, 1, 1, 1]
    assert title(figure.axes[0]) == "convolutions.0 (32 x 12)"


# --- Ages ---


def test_quantiles_can_be_read_off_the_distribution(groups: list[Group]) -> None:
    apex = groups[2]
    counted: dict[float, float] = {}
    for run in apex.runs:
        row = [row for row in run.rows("histogram") if row["name"] == "policy_lag"][-1]
        for edge, count in zip(row["edges"][:-1], row["counts"], strict=True):
            counted[edge] = counted.get(edge, 0) + count
    samples = sorted(edge for edge, count in counted.items() for _ in range(int(count)))
    figure = figures_inside.distributions(groups)
    assert figure is not None
    (axes,) = [axes for axes in figure.axes if title(axes) == "policy lag"]
    (line,) = lines(axes, "apex")
    for share in (0.25, 0.5, 0.95, 1.0):
        at = line[np.flatnonzero(line[:, 1] >= share - 1e-12)[0], 0]
        assert at == samples[int(np.ceil(share * len(samples))) - 1]
    assert axes.get_xlabel() == "updates"
    assert lines(axes, "single") == []


def test_bins_that_fit_no_common_grid_are_not_added_up(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"{seed}", "apex", seed)
    runs = load_runs(tmp_path).runs
    assert histogram_of(runs, "policy_lag") is not None
    log = tmp_path / "1" / "events.jsonl"
    odd = {"kind": "histogram", "name": "policy_lag", "edges": [0, 2.5, 9], "counts": [3, 4]}
    log.write_text(log.read_text() + json.dumps(odd) + '\n{"kind": "histo')
    assert histogram_of(load_runs(tmp_path).runs, "policy_lag") is None
    log.write_text(json.dumps({**odd, "edges": [0, "x"]}))
    assert histogram_of(load_runs(tmp_path).runs[1:], "policy_lag") is None


# --- Shares and time ---


def test_shares_are_the_means_over_the_runs(groups: list[Group], folder: Path) -> None:
    bars = {group.label: figures_inside.shares_by_worker(group) for group in groups}
    assert bars["single"] == []  # one worker has all of it
    figure = figures_inside.shares(bars, "worker")
    assert figure is not None
    axes = next(axes for axes in figure.axes if title(axes) == "apex")
    workers = [s["experience"]["workers"] for s in summaries(folder, "apex")]
    expected = [
        np.mean([own[worker][share] for own in workers])
        for share in ("share_collected", "share_consumed")
        for worker in range(2)
    ]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected)
    assert axes.lines[0].get_ydata()[0] == 0.5
    lengths = figures_inside.shares_by_length(groups[0])
    assert [(bar.label, bar.collected, bar.consumed) for bar in lengths] == [
        ("8-20", 0.3, 0.5),
        ("20-500", 0.7, 0.5),
    ]


def test_a_roles_bar_adds_up_to_all_of_its_time(groups: list[Group], folder: Path) -> None:
    figure = figures_inside.time_by_role(groups)
    assert figure is not None
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["single: actor_learner", "hogwild: actor_learner", "apex: actor", "apex: learner"]
    place = names.index("apex: learner")
    widths = [
        bar.get_width() for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == place
    ]
    fractions = [s["time"]["roles"]["learner"] for s in summaries(folder, "apex")]
    order = ("sample", "update", "publish")
    assert widths == pytest.approx([np.mean([own[name] for own in fractions]) for name in order])
    assert sum(widths) == pytest.approx(1.0)


# --- Sweeps ---


def test_a_sweep_shows_medians_on_a_log_axis_and_where_alarms_fired(tmp_path: Path) -> None:
    values = [0.03, 0.125, 0.5, 2, 8]
    write_sweep(tmp_path / "sweep", "replay_ratio", values)
    groups = make_groups(load_runs(tmp_path / "sweep"))
    assert [group.param["replay_ratio"] for group in groups] == values
    figure = figure_sweep.sweep(groups)
    assert figure is not None
    axes = next(axes for axes in figure.axes if title(axes) == "env steps/s")
    (line,) = lines(axes, "apex")
    # As the runs were made: 1000 (i + 1) + seed, with the seeds 0 and 1.
    assert line.tolist() == [[value, 1000 * (i + 1) + 0.5] for i, value in enumerate(values)]
    assert axes.get_xscale() == "log"
    assert {tuple(dots[:, 1]) for dots in lines(axes, "_seeds")} == {
        (1000.0 * (i + 1), 1000.0 * (i + 1) + 1) for i in range(5)
    }
    shaded = [patch.get_extents().transformed(axes.transData.inverted()) for patch in axes.patches]
    alarmed = [value for value in values if any(area.x0 < value < area.x1 for area in shaded)]
    assert alarmed == [2, 8]


def test_a_swept_choice_that_is_no_number_has_places_in_order(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", "layer_norm", [False, True])
    groups = make_groups(load_runs(tmp_path / "sweep"))
    figure = figure_sweep.sweep(groups)
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["False", "True"]
    assert figure.axes[0].get_xscale() == "linear"
    assert figure_sweep.sweep(make_groups(load_runs(tmp_path / "sweep/runs/steps"))[:0]) is None


# --- The timeline ---


def rectangles(axes: Any, activity: str) -> list[tuple[float, float, float, float]]:
    found = []
    for collection in axes.collections:
        if collection.get_label() == f"_{activity}":
            for path in collection.get_paths():
                (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.append((x0, x1, y0, y1))
    return sorted(found)


def test_the_timeline_draws_every_span_of_its_window() -> None:
    saved = make_timeline("hogwild")
    figure = figure_timeline.timeline(saved)
    assert figure is not None
    (axes,) = figure.axes
    window = axes.get_xlim()
    for place, role in enumerate(saved["roles"]):
        for activity in ("pull", "update", "publish", "wait"):
            own = [
                (begin, end)
                for begin, end, name in role["spans"]
                if name == activity and end > window[0] and begin < window[1]
            ]
            drawn = [(a, b) for a, b, low, high in rectangles(axes, activity) if low < place < high]
            assert len(drawn) == len(own)
            assert np.allclose(drawn, own)
    heights = {name: rectangles(axes, name)[0] for name in ("wait", "update")}
    assert heights["wait"][3] - heights["wait"][2] < (heights["update"][3] - heights["update"][2]) / 2
    (mark,) = lines(axes, "undone")
    assert mark.tolist() == [[1750.0, 0.0]]
    text = str(captions.timeline(make_group_run(), saved).striptags())
    assert "Crosses (1)" in text
    assert "Derived" in text
    assert "that is counted" in text


def make_group_run() -> Any:
    from bench.saved import SavedRun

    return SavedRun("run", Path("run"), "hogwild", 0, "completed", summary=make_summary("hogwild"))


@pytest.mark.parametrize(
    "broken", [{}, {"roles": 3}, {"roles": [{"spans": [[1], "x", [5, 2, "act"]]}]}]
)
def test_a_broken_timeline_draws_nothing(tmp_path: Path, broken: dict[str, Any]) -> None:
    assert figure_timeline.timeline({"window_us": 10.0, **broken}) is None
    assert figure_timeline.timeline_window(broken) is None
    (tmp_path / "timeline.json").write_text(json.dumps(broken)[:-1])
    assert read_object(tmp_path / "timeline.json")[0] == {}


def test_a_crowded_timeline_is_cut_to_what_can_be_seen() -> None:
    saved = make_timeline("apex", workers=4, updates=400)
    begin, end = figure_timeline.timeline_window(saved) or (0, 0)
    inside = [span for role in saved["roles"] for span in role["spans"] if begin <= span[0] < end]
    assert 0 < len(inside) <= figure_timeline.MOST_SPANS_DRAWN + 4
    assert end == saved["window_us"]


# --- SVG ---


def test_an_svg_on_a_page_has_its_own_ids_and_the_themes_colours(
    groups: list[Group], tmp_path: Path
) -> None:
    write_lost(tmp_path, 50)
    drawn = [
        figures.learning(groups, "env_steps"),
        figures_inside.time_by_role(groups),
        figures_inside.lost_heat_map(load_lost_writes(tmp_path)),
        figure_timeline.timeline(make_timeline("hogwild")),
    ]
    texts = [
        inline_svg(svg_text(figure), f"f{i}", "says 42") for i, figure in enumerate(drawn) if figure
    ]
    assert len(texts) == 4
    ids = [name for text in texts for name in re.findall(r'\bid="([^"]+)"', text)]
    assert len(ids) == len(set(ids))
    targets = {name for text in texts for name in re.findall(r'(?:href="|url\()#([^")]+)', text)}
    assert targets <= set(ids)
    light = {colour.light for colour in palette.variables().values()}
    assert not light & {
        found.lower() for text in texts for found in re.findall(r"#[0-9a-fA-F]{6}\b", text)
    }
    assert all("var(--ink)" in text and 'aria-label="says 42"' in text for text in texts)
    assert all("http" not in text for text in texts)


def test_the_same_data_give_the_same_svg(groups: list[Group]) -> None:
    one, two = (figures.learning(groups, "seconds") for _ in range(2))
    assert one is not None
    assert two is not None
    assert svg_text(one) == svg_text(two)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (20_000, "20k"), (1.5e6, "1.5M"), (0.03, "0.03")]
)
def test_axes_are_labelled_in_plain_numbers(value: float, text: str) -> None:
    assert figures.short(value) == text
    assert "e+" not in figures.short(value)
