"""The settings file: precedence, the origin of values, and invalid files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.settings_file import (
    ports_file,
    read_settings,
    read_with_origins,
    remember_ports,
    remembered_ports,
    setting_line,
)
from kbq_assets.core.errors import ConfigurationError


def named(folder: Path, text: str | bytes) -> dict[str, str]:
    """An environment that names a file of these contents."""
    file = folder / "s.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return {"KBQ_SETTINGS": str(file)}


def error_of(environ: dict[str, str]) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        read_settings(environ)
    assert environ["KBQ_SETTINGS"] in raised.value.message
    return raised.value


class TestReading:
    @pytest.mark.parametrize(
        ("written", "value"),
        [
            ('"a b"', "a b"),
            ("''", ""),
            ("300", "300"),
            ("-1", "-1"),
            ("1_000", "1000"),
            ("0.5", "0.5"),
            ("true", "true"),
            ("false", "false"),
            ('"True"', "True"),
            ('"é\\n"', "é\n"),
        ],
        ids=repr,
    )
    def test_a_value_is_the_text_that_the_environment_would_hold(
        self, tmp_path: Path, written: str, value: str
    ) -> None:
        assert read_settings(named(tmp_path, f"# a file\nKBQ_A = {written}\n"))["KBQ_A"] == value

    def test_the_environment_wins_and_both_places_are_named(self, tmp_path: Path) -> None:
        environ = {
            **named(tmp_path, 'KBQ_A = "file"\nKBQ_B = "file"\n'),
            "KBQ_A": "",
            "HOME": "/h",
            "KBQ_C": "c",
        }
        values, origins = read_with_origins(environ)
        file = environ["KBQ_SETTINGS"]
        assert values == {"KBQ_SETTINGS": file, "KBQ_A": "", "KBQ_B": "file", "KBQ_C": "c", "HOME": "/h"}
        assert origins == {
            "KBQ_SETTINGS": "environment",
            "KBQ_A": f"environment, not {file}",
            "KBQ_B": file,
            "KBQ_C": "environment",
        }

    def test_without_a_file_the_environment_is_all(self, current_folder: Path) -> None:
        environ = {"KBQ_A": "a", "PATH": "/bin"}
        assert read_with_origins(environ) == (environ, {"KBQ_A": "environment"})

    @pytest.mark.parametrize("named_as", [{}, {"KBQ_SETTINGS": ""}, {"KBQ_SETTINGS": "kbq.toml"}], ids=str)
    def test_the_current_folders_file_is_read_and_remembered_by_its_whole_path(
        self, current_folder: Path, named_as: dict[str, str]
    ) -> None:
        (current_folder / "kbq.toml").write_text("KBQ_A = 1\n", encoding="utf-8")
        values, origins = read_with_origins(named_as)
        assert values == {"KBQ_A": "1", "KBQ_SETTINGS": str(Path.cwd() / "kbq.toml")}
        assert origins["KBQ_A"] == "kbq.toml"

    def test_an_empty_file_sets_nothing(self, tmp_path: Path) -> None:
        environ = named(tmp_path, "")
        assert read_settings(environ) == environ


class TestFilesThatAreNone:
    def test_a_named_file_must_exist(self, tmp_path: Path) -> None:
        error = error_of({"KBQ_SETTINGS": str(tmp_path / "none.toml")})
        assert "cannot be read: No such file or directory" in error.message

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        assert "Is a directory" in error_of({"KBQ_SETTINGS": str(tmp_path)}).message

    @pytest.mark.parametrize(
        "text",
        [
            "KBQ_A",
            "KBQ_A=",
            "KBQ_A = a",
            "KBQ_A = 1\nKBQ_A = 2",
            b"KBQ_A = '\xff'",
            b"\xff\xfeK\0",
            'KBQ_A = "\0"',
            "KBQ_A = " + "9" * 5000,
            "KBQ_A = " + "[" * 5000,
            "KBQ_A = " + "{a=" * 5000,
        ],
        ids=lambda text: repr(text[:20]),
    )
    def test_what_is_not_toml_says_what_a_line_is(self, tmp_path: Path, text: str | bytes) -> None:
        error = error_of(named(tmp_path, text))
        assert "cannot be read: " in error.message
        assert error.next_step == 'write one KBQ_NAME = "value" per line'
        assert len(error.message) < 1000

    @pytest.mark.parametrize(
        ("line", "name", "advice"),
        [
            ("PATH = '/bin'", "PATH", ""),
            ("kbq_staging = 'x'", "kbq_staging", "KBQ_STAGING"),
            ("KBQ_SETTINGS = 'other.toml'", "KBQ_SETTINGS", "`kbq settings` lists"),
            ("KBQ_STAGING = ['x']", "KBQ_STAGING", "`kbq settings` lists"),
            ("KBQ_STAGIN = ['x']", "KBQ_STAGIN", "did you mean KBQ_STAGING?"),
            ("KBQ_A = 2023-11-14", "KBQ_A", ""),
            ("[KBQ_A]", "KBQ_A", ""),
            (
                "KBQ_SPARK_CONF_spark.executor.memory = '2g'",
                "KBQ_SPARK_CONF_spark",
                "the whole name in quotes",
            ),
        ],
    )
    def test_a_key_that_is_no_setting_is_named_with_what_was_meant(
        self, tmp_path: Path, line: str, name: str, advice: str
    ) -> None:
        error = error_of(named(tmp_path, line))
        assert f": {name} is not a setting" in error.message
        assert advice in error.next_step

    def test_spark_s_options_are_settings_in_quotes(self, tmp_path: Path) -> None:
        environ = named(tmp_path, '"KBQ_SPARK_CONF_spark.executor.memory" = "2g"')
        assert read_settings(environ)["KBQ_SPARK_CONF_spark.executor.memory"] == "2g"


@given(value=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(max_examples=60)
def test_every_text_is_read_back_from_its_line(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    assert read_settings(named(folder, setting_line("KBQ_A", value)))["KBQ_A"] == value


@pytest.mark.parametrize(
    "value", ["\x7f", "\0\t\n\r\x1f", '"\\', "\x80\u2028\U0001f600", "C:\\new"], ids=repr
)
def test_control_characters_and_quotes_are_read_back_from_their_line(tmp_path: Path, value: str) -> None:
    assert read_settings(named(tmp_path, setting_line("KBQ_A", value)))["KBQ_A"] == value


class TestPorts:
    def test_ports_are_remembered_below_the_home(self, tmp_path: Path) -> None:
        home = tmp_path / "a" / "b"
        remember_ports(home, {"kafka_port": 1})
        remember_ports(home, {"kafka_port": 2, "registry_port": 3})
        assert remembered_ports({"KBQ_HOME": str(home)}) == {"kafka_port": 2, "registry_port": 3}
        assert [each.name for each in ports_file(home).parent.iterdir()] == ["local.json"]

    def test_the_home_is_a_folder_of_the_current_one(self, current_folder: Path) -> None:
        remember_ports(Path(".kbq"), {"kafka_port": 1})
        assert remembered_ports({}) == {"kafka_port": 1}

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[1]", "null", '{"a": "x"}', '{"a": null}', '{"a": {}}', '{"a": Infinity}', "[" * 99_999],
        ids=lambda text: text[:20],
    )
    def test_what_does_not_parse_is_as_if_the_stack_never_ran(self, tmp_path: Path, text: str) -> None:
        remember_ports(tmp_path, {})
        ports_file(tmp_path).write_text(text, encoding="utf-8")
        assert remembered_ports({"KBQ_HOME": str(tmp_path)}) == {}

    def test_a_stack_that_never_ran_has_no_ports(self, tmp_path: Path) -> None:
        assert remembered_ports({"KBQ_HOME": str(tmp_path)}) == {}

    def test_ports_are_numbers_whatever_wrote_them(self, tmp_path: Path) -> None:
        remember_ports(tmp_path, {})
        ports_file(tmp_path).write_text(json.dumps({"a": "1", "b": 2.0}), encoding="utf-8")
        assert remembered_ports({"KBQ_HOME": str(tmp_path)}) == {"a": 1, "b": 2}
