"""The registry, in teaching order. Listing the names imports nothing heavy.

A strategy of another package joins through the entry point group ``parallel_dqn_bench.strategies``:
the entry's name is the strategy's, its value the module.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING

from common.config import Config, ConfigError

if TYPE_CHECKING:
    from common.types import Traits

STRATEGIES = ("single", "vector", "sync", "hogwild", "a3c", "impala", "apex", "pqn")
ENTRY_POINT_GROUP = "parallel_dqn_bench.strategies"


@functools.cache
def registered() -> dict[str, str]:
    """Return the module of each strategy by name: our own first, then those of other packages.

    Raises:
        ConfigError: another package takes a name that is taken.
    """
    modules = {name: f"strategies.{name}" for name in STRATEGIES}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if modules.get(entry.name, entry.value) != entry.value:
            raise ConfigError(
                f"two packages provide a strategy {entry.name!r}: {modules[entry.name]} and "
                f"{entry.value}; uninstall one of them"
            )
        modules[entry.name] = entry.value
    return modules


def load(name: str) -> ModuleType:
    """Return a strategy's module, with its ``Config``, ``TRAITS`` and ``train``.

    Raises:
        ConfigError: there is no such strategy; the message names the nearest.
    """
    modules = registered()
    if name not in modules:
        close = difflib.get_close_matches(name, modules, n=1, cutoff=0.3)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown strategy {name!r}{hint} (there are {', '.join(modules)})")
    return importlib.import_module(modules[name])


def traits_of(name: str, config: Config | None = None) -> Traits:
    """Return a strategy's header as data: in general, or as it is with a configuration."""
    module = load(name)
    traits: Traits = module.TRAITS
    if config is not None and hasattr(module, "traits"):
        traits = module.traits(config)
    return traits
