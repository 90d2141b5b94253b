"""The regression gate: what it says, and that it finds what was planted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import ROOT

from bench.regression import (
    PARTS,
    MissingPartError,
    Verdict,
    Version,
    compare,
    confidence,
    files_of,
    main,
    ratio_of_pair,
    verdicts,
)


def test_slower_needs_every_pair_of_processes() -> None:
    ratios = {"a": [1.2, 1.3, 1.06], "b": [1.2, 1.3, 1.04], "c": [0.8, 0.9, 0.7], "d": [1.0, 1.0, 1.0]}
    found = verdicts(ratios, 0.05)
    assert [each.word for each in found] == [
        "SLOWER",
        "no difference shown",
        "faster",
        "no difference shown",
    ]
    assert found[0].median == 1.2 and found[0].is_slower and not found[1].is_slower
    assert not Verdict("a", (1.2, 1.3, 1.06), 0.10).is_slower


def test_the_interval_is_that_of_the_sign_test() -> None:
    # All n on one side of the true median, or all on the other: 2 of the 2^n equally likely patterns.
    for n in (1, 3, 5, 7):
        patterns = [[(pattern >> bit) & 1 for bit in range(n)] for pattern in range(2**n)]
        inside = sum(0 < sum(pattern) < n for pattern in patterns)
        assert confidence(n) == inside / 2**n
    assert confidence(7) > 0.98


def test_drift_leaves_the_ratio_alone() -> None:
    time = 0.0

    def work(seconds: float) -> float:
        nonlocal time
        time += 1
        return seconds * (1 + time / 20)  # the machine becomes slower and slower

    measured = ratio_of_pair(lambda: work(1.3), lambda: work(1.0), turns=40)
    assert measured == pytest.approx(1.3, rel=0.02)
    first, last = work(1.0), [work(1.0) for _ in range(40)][-1]
    assert last > 1.3 * first  # one after the other, the drift is as large as what was looked for


def test_order_of_turns_is_abba() -> None:
    order: list[str] = []

    def turn(name: str) -> float:
        order.append(name)
        return 1.0

    assert ratio_of_pair(lambda: turn("A"), lambda: turn("B"), turns=4) == 1.0
    assert "".join(order) == "ABBAABBA"


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_planted_slowdown_is_found_and_equal_code_is_not_accused(tmp_path: Path) -> None:
    for name in ("bench", "common", "strategies"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "common" / "weights.py"
    text = path.read_text(encoding="utf-8")
    line = '        version = self._arrays["version"]\n        new = '
    assert text.count(line) == 1
    path.write_text(text.replace(line, f"        for _ in range(2_000):\n            pass\n{line}"))
    ratios, failed = compare(ROOT, tmp_path, ["publish", "act, batch 8"], num_pairs=2, turns=4)
    slow, same = verdicts(ratios, 1.0)  # twice as slow counts as equal here: the plant is tenfold
    assert failed == {} and slow.is_slower and not same.is_slower


@pytest.mark.multiprocess
def test_a_part_that_a_version_lacks_is_said(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    ratios, failed = compare(tmp_path, ROOT, ["publish"], num_pairs=1, turns=2)
    assert ratios == {} and "common" in failed["publish"]
    version = Version(tmp_path)
    with pytest.raises(MissingPartError, match="No module"):
        version.seconds("publish", 1)
    version.close()


def test_bad_input_gets_one_sentence() -> None:
    unknown = CliRunner().invoke(main, ["--baseline", "HEAD", "--part", "flying"])
    assert unknown.exit_code == 2 and "there is no part 'flying'" in unknown.output
    nothing = CliRunner().invoke(main, ["--baseline", "no-such-commit"])
    assert nothing.exit_code == 2 and "cannot be read" in nothing.output
    assert "publish" in PARTS


def test_a_commit_is_unpacked_beside_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    with files_of("HEAD") as folder:
        assert (folder / "common" / "weights.py").is_file() and folder != ROOT
    assert not folder.exists()
