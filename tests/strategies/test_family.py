"""The strategy files are siblings: same sections, same order, and the header tells the truth."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import strategies
from common.config import Config, ConfigError
from common.types import Traits

ROOT = Path(__file__).parents[2]
# All that are planned: a strategy may name a parent that comes later.
TEACHING_ORDER = ("single", "vector", "sync", "hogwild", "a3c", "impala", "apex", "pqn")
FIELDS = ("Processes", "Weights", "Experience", "Correction", "Can go wrong")
DIFFERENCE = "# --- The difference that matters ---"
LOOP = ("act", "observe", "learn", "sync")
MAX_LINES, MAX_FUNCTION_LINES, MAX_DIAGRAM_LINES = 200, 50, 12

# The template is not registered, but whoever copies it should get a file of the same shape.
every_file = pytest.mark.parametrize("name", (*strategies.STRATEGIES, "template"))
every_strategy = pytest.mark.parametrize("name", strategies.STRATEGIES)


def source(name: str) -> str:
    return (ROOT / "strategies" / f"{name}.py").read_text(encoding="utf-8")


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"strategies.{name}")


def functions(name: str) -> dict[str, ast.FunctionDef]:
    body = ast.parse(source(name)).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def test_the_registry_is_in_teaching_order() -> None:
    places = [TEACHING_ORDER.index(name) for name in strategies.STRATEGIES]
    assert places == sorted(places) and len(set(places)) == len(places) >= 3
    for name in strategies.STRATEGIES:
        assert strategies.load(name).__name__ == f"strategies.{name}"


def test_an_unknown_strategy_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as caught:
        strategies.load("apxe")
    assert "'apxe'" in str(caught.value) and "did you mean 'apex'" in str(caught.value)
    with pytest.raises(ConfigError, match="single, vector"):
        strategies.load("os")


@every_file
def test_the_three_public_names(name: str) -> None:
    module = module_of(name)
    assert issubclass(module.Config, Config) and module.Config.__module__ == module.__name__
    assert module.Config.__dataclass_params__.frozen
    assert isinstance(module.TRAITS, Traits)
    assert list(inspect.signature(module.train).parameters) == ["config", "probe"]


@every_strategy
def test_the_traits_hold(name: str) -> None:
    module = module_of(name)
    traits: Traits = module.TRAITS
    assert traits.name == name and traits.summary.endswith(".")
    assert traits.parent is None if name == "single" else traits.parent in TEACHING_ORDER
    assert traits.parent != name
    assert traits.roles and set(traits.ratios) <= {"held", "free", "derived"}
    for role in traits.roles:
        assert inspect.isfunction(getattr(module, role)) and role in functions(name)
    known = {item.name for item in dataclasses.fields(module.Config)}
    assert set(traits.unused_options) <= known
    assert traits.single_process == (module.Config().workers == 1 and "actor" not in traits.roles)
    assert ("free" in traits.ratios) == (name == "apex")
    for item in dataclasses.fields(traits):
        assert getattr(traits, item.name) not in ("", ()) or item.name == "unused_options"


@every_strategy
def test_the_traits_of_a_configuration_are_those_of_the_default_or_less_can_go_wrong(name: str) -> None:
    module = module_of(name)
    assert strategies.traits_of(name) is module.TRAITS
    assert strategies.traits_of(name, module.Config()) == module.TRAITS
    if "lock" in {item.name for item in dataclasses.fields(module.Config)}:
        guarded = strategies.traits_of(name, module.Config(lock=True))
        assert module.TRAITS.can_lose_updates and not guarded.can_lose_updates
        assert guarded == dataclasses.replace(
            module.TRAITS, can_lose_updates=False, can_go_wrong=guarded.can_go_wrong
        )


@every_strategy
def test_only_the_common_part_evaluates_and_says_what_is_solved(name: str) -> None:
    assert not re.search(r"common\.evaluate|play_episodes|reward_threshold|solved", source(name))
    assert sum("probe.evaluate()" in ast.unparse(role) for role in roles_of(name)) == 1


@every_strategy
def test_defaults_differ_from_the_common_ones_only_where_declared(name: str) -> None:
    module = module_of(name)
    own, common = module.Config(), Config()
    declared = set(module.Config.__annotations__) - {"presets"}
    for item in dataclasses.fields(Config):
        assert item.name in declared or getattr(own, item.name) == getattr(common, item.name)
    for item in dataclasses.fields(module.Config):
        assert item.metadata["help"].endswith(".")


@every_strategy
def test_the_header_has_the_fields_in_order(name: str) -> None:
    header = ast.get_docstring(ast.parse(source(name)))
    assert header is not None
    first, blank = header.split("\n")[:2]
    assert first.endswith(".") and blank == "" and len(first) <= 100
    places = [re.search(rf"^{field}:\s+\S", header, re.MULTILINE) for field in FIELDS]
    starts = [place.start() for place in places if place is not None]
    assert len(starts) == len(FIELDS) and starts == sorted(starts)
    paper = re.search(r"^Papers?: \S", header, re.MULTILINE)
    assert paper is not None and paper.start() > starts[-1]
    diagram = header[len(first) : starts[0]].strip("\n").split("\n")
    assert 3 <= len(diagram) <= MAX_DIAGRAM_LINES and header.isascii()
    assert all(line.startswith("    ") for line in diagram) and "->" in "".join(diagram)


@every_file
def test_the_sections_stand_in_order(name: str) -> None:
    text = source(name)
    assert text.count(DIFFERENCE) == 1
    lines = text.split("\n")
    own = functions(name)
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert [node.name for node in classes] == ["Config"]
    (traits,) = (
        node.lineno
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TRAITS"
    )
    roles = [own[role].lineno for role in module_of(name).TRAITS.roles]
    difference = lines.index(DIFFERENCE) + 1
    order = [classes[0].lineno, traits, *roles, difference, own["train"].lineno]
    assert order == sorted(order)
    assert own["train"].lineno == tree.body[-1].lineno
    between = [node for node in own.values() if difference < node.lineno < own["train"].lineno]
    assert between, "the difference is a function"
    assert {node.name for node in between} & used_by_roles(name), "the roles call it"


def used_by_roles(name: str) -> set[str]:
    """Return the names that the roles use, or the file's own functions that they call."""
    own, used = functions(name), set(module_of(name).TRAITS.roles)
    todo = list(used)
    while todo:
        names = {node.id for node in ast.walk(own[todo.pop()]) if isinstance(node, ast.Name)}
        todo += [each for each in names - used if each in own]
        used |= names
    return used


def roles_of(name: str) -> list[ast.FunctionDef]:
    return [functions(name)[role] for role in module_of(name).TRAITS.roles]


@every_file
def test_files_and_functions_are_short(name: str) -> None:
    lines = source(name).split("\n")
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    header = ast.get_docstring(ast.parse(source(name))) or ""
    # A longer file says why in its header: "Longer than ... lines because ...".
    assert len(code) <= MAX_LINES or re.search(r"Longer than \d+ lines because \w+", header)
    for node in functions(name).values():
        assert node.end_lineno is not None
        assert node.end_lineno - node.lineno + 1 <= MAX_FUNCTION_LINES, node.name


@every_file
def test_nothing_inherits_from_a_strategy_and_functions_are_plain(name: str) -> None:
    tree = ast.parse(source(name))
    bases = [
        ast.unparse(base)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    ]
    assert bases == ["CommonConfig"]
    assert "from common.config import Config as CommonConfig" in source(name)
    assert not any(isinstance(node, ast.Lambda) for role in roles_of(name) for node in ast.walk(role))
    assert all(not node.decorator_list for node in functions(name).values())


@every_file
def test_everything_public_has_a_docstring(name: str) -> None:
    module = module_of(name)
    public = [node for node in functions(name).values() if not node.name.startswith("_")]
    assert len(public) >= 3 and module.Config.__doc__
    for node in public:
        documentation = ast.get_docstring(node)
        assert documentation and documentation.split("\n")[0].endswith("."), node.name


@every_file
def test_loops_read_act_observe_learn_sync(name: str) -> None:
    for role in roles_of(name):
        lines = source(name).split("\n")[role.lineno - 1 : role.end_lineno]
        marks = [re.fullmatch(r"\s*# (\w+)(:.*)?", line) for line in lines]
        stages = [mark[1] for mark in marks if mark is not None and mark[1] in LOOP]
        assert stages == [stage for stage in LOOP if stage in stages]
        assert len(stages) >= 2 and ("act" in stages) == ("actor" in role.name)
        assert ("learn" in stages) == ("learner" in role.name)


@every_file
def test_train_only_allocates_starts_and_collects(name: str) -> None:
    train = functions(name)["train"]
    assert (ast.get_docstring(train) or "").startswith("Allocate, start, wait, collect.")
    loops = [node for node in ast.walk(train) if isinstance(node, ast.For | ast.While)]
    arithmetic = [node for node in ast.walk(train) if isinstance(node, ast.BinOp)]
    assert loops == [] and arithmetic == []
    assert isinstance(train.body[-1], ast.Return) and "run_roles" in ast.unparse(train.body[-1])
