"""The literal that is looked for before a regular expression: part of everything the expression matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.trace.patterns import literal_of, load_patterns

RULES = load_patterns()
EXPRESSIONS = sorted({rule.expression for rule in (*RULES.kernel_rules, *RULES.range_rules, *RULES.collective_rules)})
LITERALS = {
    "nccl": "nccl",
    r"\bnotify_dispatch\b": "notify_dispatch",
    "all_?to_?all": "all",
    "ccl_(all|send)": "ccl_",
    "(ab)?cd": "cd",
    "x(a(b|c)d)*yz": "yz",
    "a{2,3}bc": "bc",
    "ab+c": "ab",
    "a.bc": "bc",
    "[ab]cde?": "cd",
    # what could be misread gives none
    "ab|cd": "",
    "(?x) a b": "",
    "(?=ab)a": "",
    r"\x41b": "",
    "[]ab]cd": "",
    r"a\(b": "a",
    "": "",
}


@pytest.mark.parametrize("expression", LITERALS)
def test_literals(expression: str) -> None:
    assert literal_of(expression) == LITERALS[expression]


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *LITERALS])
def test_whatever_matches_has_the_literal(expression: str) -> None:
    @given(st.from_regex(expression))
    def holds(name: str) -> None:
        assert literal_of(expression) in name

    holds()


def test_the_built_in_rules_have_literals() -> None:
    without = [rule.expression for rule in RULES.kernel_rules if not rule.literal]
    assert not without
