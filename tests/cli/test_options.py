"""Options that several commands share."""

from __future__ import annotations

import shlex

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.cli import COMMANDS, cli, main
from moescope.cli.options import HostsType, RegexType


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("0-3,4-7", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("0", ((0,),)),
        ("0-1+4-5, 2-3 + 6", ((0, 1, 4, 5), (2, 3, 6))),
        ("7,0-2", ((7,), (0, 1, 2))),
    ],
)
def test_hosts(text, hosts):
    assert HostsType().convert(text, None, None) == hosts


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-3,3-5", "0--3", "0-3,", "-1", "0-99999999999", "0-9999999"])
def test_hosts_refuses(text):
    with pytest.raises(click.BadParameter):
        HostsType().convert(text, None, None)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_hosts_reads_what_it_was_written_from(sizes):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    text = ",".join(f"{start}-{start + size - 1}" for start, size in zip(starts, sizes, strict=True))
    expected = tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
    assert HostsType().convert(text, None, None) == expected


def test_regex():
    assert RegexType().convert(r"node-(\d+)", None, None) == r"node-(\d+)"


@pytest.mark.parametrize("text", ["(", r"node-\d+"])
def test_regex_refuses(text):
    with pytest.raises(click.BadParameter):
        RegexType().convert(text, None, None)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_ends_with_examples_of_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    shown = [line for line in lines if line.startswith(f"moescope {name} ")]
    assert 2 <= len(shown) <= 3
    known = {option for param in cli.get_command(None, name).params for option in (*param.opts, *param.secondary_opts)}
    for line in shown:
        assert {word for word in shlex.split(line) if word.startswith("-")} <= known


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_no_option_takes_a_number_that_is_not_finite(number: str) -> None:
    options = [
        param
        for name in COMMANDS
        for param in cli.get_command(None, name).params
        if isinstance(param.type, click.types.FloatParamType) and name != "train"  # whose settings have rules
    ]
    assert len(options) >= 3
    for option in options:
        with pytest.raises(click.BadParameter):
            option.type.convert(number, option, None)
