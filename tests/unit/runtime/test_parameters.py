import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.parameters import (
    BY_NAME,
    PARAMETERS,
    Kind,
    ParameterError,
    Reader,
    Tunables,
    add_arguments,
    for_reader,
    from_arguments,
    from_environment,
)
from scripts import parameter_docs


def test_names_are_unique_and_every_default_is_within_its_bounds() -> None:
    assert len(BY_NAME) == len(PARAMETERS)
    for parameter in PARAMETERS:
        assert parameter.check(parameter.default) == parameter.default
        assert parameter.parse(str(parameter.default)) == parameter.default
        assert parameter.readers and parameter.sentence.endswith(".")


@pytest.mark.parametrize("text", ["abc", "-5", "1e9", "", " ", "nan", "inf", "2.5"])
def test_rep_33_a_bad_integer_is_refused_with_name_and_fix(text: str) -> None:
    with pytest.raises(ParameterError, match=r"decoder_kv_blocks_ttl.*hint: set 6 to 86400"):
        BY_NAME["decoder_kv_blocks_ttl"].parse(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "x"])
def test_a_bad_number_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=r"handle_ttl.*hint"):
        BY_NAME["handle_ttl"].parse(text)


@given(st.text())
def test_any_text_is_a_value_within_bounds_or_a_parameter_error(text: str) -> None:
    for parameter in PARAMETERS:
        try:
            value = parameter.parse(text)
        except ParameterError as error:
            assert parameter.name in str(error)
        else:
            assert parameter.check(value) == value


@pytest.mark.parametrize("ttl", [480.0, 480.1, 900.0])
def test_rep_03_a_router_lifetime_not_below_the_engines_is_refused(ttl: float) -> None:
    with pytest.raises(
        ParameterError, match=r"handle_ttl .* not below decoder_kv_blocks_ttl .*hint: set handle_ttl below 480"
    ):
        Tunables.of({"handle_ttl": ttl})
    assert Tunables.of({"handle_ttl": ttl, "round_trip": False}).number("handle_ttl") == ttl


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ParameterError, match="handle_ttl"):
        Tunables.of({"handel_ttl": 3})


def test_a_flag_wins_over_the_environment_and_both_over_the_default() -> None:
    parser = argparse.ArgumentParser()
    parameters = for_reader(Reader.ROUTER)
    add_arguments(parser, parameters)
    environ = {"KVR_HANDLE_TTL": "100", "KVR_MAX_ATTEMPTS": "3", "KVR_OTHER": "x"}
    given = from_arguments(parser.parse_args(["--handle-ttl", "200"]), environ, parameters)
    assert given == {"handle_ttl": 200.0, "max_attempts": 3}
    assert Tunables.of(given).integer("decoder_kv_blocks_ttl") == BY_NAME["decoder_kv_blocks_ttl"].default


def test_a_bad_environment_variable_is_refused() -> None:
    with pytest.raises(ParameterError, match="max_attempts"):
        from_environment({"KVR_MAX_ATTEMPTS": "many"})


def test_help_names_every_parameter_with_bounds_default_and_variable() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, PARAMETERS)
    text = " ".join(parser.format_help().split())
    for parameter in PARAMETERS:
        assert parameter.flag in text and parameter.env in text and parameter.bounds in text
        assert str(parameter.default).lower() in text if parameter.kind is Kind.FLAG else str(parameter.default) in text


def test_the_documentation_is_what_the_schema_says() -> None:
    assert parameter_docs.PAGE.read_text() == parameter_docs.page(), "run: python -m scripts.parameter_docs"
