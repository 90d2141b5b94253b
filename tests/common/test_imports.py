"""Who imports whom: ``bench -> strategies -> common``, and torch only where it is used."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import strategies

ROOT = Path(__file__).parents[2]
# What every process imports, the command line and workers that only act included.
COMMON = [
    *("config", "types", "envs", "policy", "acting", "replay", "weights", "processes"),
    *("telemetry", "experience", "supervisor", "evaluate", "checkpoint"),
    *("state_files", "role_state", "saved_run", "saving", "env_state"),
    *("shared_memory", "returns", "audit", "barrier", "locks", "optimizer", "trajectories"),
]
TORCH_FREE = [f"strategies.{name}" for name in strategies.STRATEGIES]
TORCH_FREE += [f"common.{name}" for name in COMMON]
if (ROOT / "bench" / "cli.py").exists():
    TORCH_FREE.append("bench.cli")
    TORCH_FREE += [f"bench.{name}" for name in ("diagnosis", "profile", "profile_tables", "ceilings")]
    TORCH_FREE += [
        f"bench.{name}" for name in ("thread_trap", "vector_envs", "device_sweep", "devices")
    ]

REPORT = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    found[name] = [heavy for heavy in ("torch", "numba") if heavy in sys.modules]
print(json.dumps(found))
"""


def heavy_imports(*names: str) -> dict[str, list[str]]:
    """Import modules in turn in one fresh interpreter; return what was loaded after each."""
    command = [sys.executable, "-c", REPORT, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_what_workers_and_the_command_line_import_is_free_of_torch() -> None:
    # One interpreter for all: if nothing is loaded after the last, none of them loads it alone.
    found = heavy_imports(*TORCH_FREE)
    assert list(found) == TORCH_FREE and len(found) >= 18
    assert {name: heavy for name, heavy in found.items() if heavy} == {}


def test_the_probe_sees_torch_where_it_is_used() -> None:
    found = heavy_imports("common.acting", "common.network")
    assert found["common.acting"] == []
    assert "torch" in found["common.network"]


def imports_of(path: Path) -> set[str]:
    """Return the dotted names that a file imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize(
    "package, forbidden",
    [("common", {"strategies", "bench", "tests"}), ("strategies", {"bench", "tests"})],
)
def test_imports_point_one_way(package: str, forbidden: set[str]) -> None:
    assert len(files(package)) >= 4
    for path in files(package):
        tops = {name.split(".")[0] for name in imports_of(path)}
        assert not tops & forbidden, path


def test_strategies_do_not_import_each_other() -> None:
    names = {f"strategies.{path.stem}" for path in files("strategies")}
    for path in files("strategies"):
        wrong = {name for name in imports_of(path) if any(name.startswith(each) for each in names)}
        assert path.stem == "__init__" or not wrong, path
    assert len(names) > len(strategies.STRATEGIES)


def code_strings(path: Path) -> set[str]:
    """Return the string constants and identifiers of a file's code, without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documentation.add(id(node.value))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set() if id(node) in documentation else {node.value}
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def test_no_file_in_common_asks_which_strategy_it_serves() -> None:
    names = set(strategies.STRATEGIES) - {"vector"}  # it is also the common word for the flat weights
    for path in files("common"):
        assert not code_strings(path) & names, path
    planted = code_strings(ROOT / "strategies" / "apex.py")
    assert planted & names == {"apex", "impala"}
