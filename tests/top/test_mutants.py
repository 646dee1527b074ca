"""The mutants that `python -m tests.nightly.mutants` tries fit the package and its tests; and so do
the copies of a later version."""

from __future__ import annotations

import re

from tests.nightly.mutants import MUTANTS, PACKAGE, ROOT
from tests.nightly.newer import FIELDS, OTHERS


def test_each_mutant_takes_out_what_is_there_and_names_tests_that_exist() -> None:
    # Given the list, and the tests, which the stores have from mixins
    mixins = [*ROOT.glob(f"{PACKAGE}/testing/*.py"), *ROOT.glob("tests/stores/contract/*.py")]
    contract = "".join(each.read_text() for each in mixins)

    # I expect each mutant to take out what is there once, and to name tests that exist
    for mutant in MUTANTS:
        assert (ROOT / PACKAGE / mutant.file).read_text().count(mutant.old) == 1, mutant
        there = (ROOT / "tests" / mutant.tests).read_text()
        there += contract if mutant.tests.endswith("test_store_contract.py") else ""
        names = re.findall(r"test_\w+", mutant.chosen)
        assert names, mutant
        for name in names:
            assert f"def {name}(" in there, f"{mutant.guarantee}: {mutant.tests} has no {name}"
    assert len({mutant.guarantee for mutant in MUTANTS}) == len(MUTANTS)


def test_a_later_version_can_be_made_of_this_one() -> None:
    for file, changes in [*FIELDS.items(), *OTHERS.items()]:
        text = (ROOT / PACKAGE / file).read_text()
        assert [old for old, _ in changes if text.count(old) != 1] == [], file
