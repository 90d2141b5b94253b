"""The registry, in teaching order. Listing the names imports nothing heavy."""

from __future__ import annotations

import difflib
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from common.config import Config, ConfigError

if TYPE_CHECKING:
    from common.types import Traits

STRATEGIES = ("single", "vector", "sync", "hogwild", "a3c", "impala", "apex", "pqn")


def load(name: str) -> ModuleType:
    """Return a strategy's module, with its ``Config``, ``TRAITS`` and ``train``.

    Raises:
        ConfigError: there is no such strategy; the message names the nearest.
    """
    if name not in STRATEGIES:
        close = difflib.get_close_matches(name, STRATEGIES, n=1, cutoff=0.3)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown strategy {name!r}{hint} (there are {', '.join(STRATEGIES)})")
    return importlib.import_module(f"strategies.{name}")


def traits_of(name: str, config: Config | None = None) -> Traits:
    """Return a strategy's header as data: in general, or as it is with a configuration."""
    module = load(name)
    traits: Traits = module.TRAITS
    if config is not None and hasattr(module, "traits"):
        traits = module.traits(config)
    return traits
