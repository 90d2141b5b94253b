"""Strategies from other packages, through an entry point group."""

import sys
from importlib.metadata import EntryPoint

import pytest

import strategies
from common.config import ConfigError


@pytest.fixture
def installed(monkeypatch):
    """Pretend that packages are installed which provide the given entry points."""

    def install(**modules):
        found = [
            EntryPoint(name, value, strategies.ENTRY_POINT_GROUP) for name, value in modules.items()
        ]
        monkeypatch.setattr(
            strategies, "entry_points", lambda group: [e for e in found if e.group == group]
        )
        strategies.registered.cache_clear()

    yield install
    strategies.registered.cache_clear()


def test_a_strategy_of_another_package_is_listed_last_and_loads(installed, tmp_path, monkeypatch):
    (tmp_path / "elsewhere.py").write_text("from strategies.single import TRAITS, Config, train\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed(mine="elsewhere")
    assert list(strategies.registered()) == [*strategies.STRATEGIES, "mine"]
    assert strategies.load("mine").Config is strategies.load("single").Config
    sys.modules.pop("elsewhere", None)


def test_a_name_that_is_taken_is_refused_with_both_modules(installed):
    installed(single="elsewhere")
    with pytest.raises(ConfigError, match=r"'single'.*strategies\.single.*elsewhere"):
        strategies.registered()
    installed()
    assert list(strategies.registered()) == list(strategies.STRATEGIES)


def test_an_unknown_name_gets_the_nearest(installed):
    installed()
    with pytest.raises(ConfigError, match="did you mean 'apex'"):
        strategies.load("apx")
    assert "apx" not in strategies.registered()
