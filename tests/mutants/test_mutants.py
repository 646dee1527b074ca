"""The list of mutants fits the package, and the command says what was noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_takes_out_is_there_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_of_a_mutant_exist(mutant: Mutant) -> None:
    paths = [argument for argument in mutant.tests if argument.startswith("tests/")]
    assert paths
    for path in paths:
        file, _, test = path.partition("::")
        assert (ROOT / file).exists(), file
        assert not test or f"def {test.rpartition('::')[2]}(" in (ROOT / file).read_text()


def test_no_name_is_there_twice() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.slow
def test_a_mutant_is_noticed_and_one_that_changes_nothing_survives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guards, tests = "django_tasklock/row_updates.py", ["tests/unit/test_guards.py"]
    missing = Mutant("no check for atomic", guards, "if is_in_atomic(using):", "if False:", tests)
    same = Mutant("the same", guards, "if is_in_atomic(using):", "if (is_in_atomic(using)):", tests)
    monkeypatch.setattr(command, "MUTANTS", [missing, same])

    assert command.main([]) == 1

    said = capsys.readouterr().out
    assert "noticed   no check for atomic: FAILED tests/unit/test_guards.py" in said
    assert "SURVIVED  the same: " in said
    assert "2 mutants, 1 survived" in said


@pytest.mark.slow
def test_tests_that_fail_without_a_mutant_prove_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none = Mutant("any", "django_tasklock/row_updates.py", "if is_in_atomic(using):", "if False:",
                  ["tests/unit/test_guards.py", "-k", "no_such_test"])  # fmt: skip
    monkeypatch.setattr(command, "MUTANTS", [none])

    assert command.main([]) == 2

    assert "Without a mutant this does not pass" in capsys.readouterr().out
