"""Where tasks run: KBQ_SPARK_MASTER and Spark's options."""

from __future__ import annotations

import pytest

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError

MASTER = "KBQ_SPARK_MASTER"
OPTION = "KBQ_SPARK_CONF_spark.executor.memory"


@pytest.mark.parametrize(
    ("master", "processes", "is_local"),
    [
        ("local[2]", "", True),
        ("spark://host:7077", "", False),
        ("processes[*]", "*", True),
        ("processes[12]", "12", True),
    ],
)
def test_a_master_says_where_tasks_run(master: str, processes: str, is_local: bool) -> None:
    spark = parse_settings({MASTER: master}).spark
    assert (spark.processes, spark.is_local) == (processes, is_local)


@pytest.mark.parametrize(
    "master", ["processes", "processes[]", "processes[0]", "processes[-1]", "processes[1000]"]
)
def test_no_number_of_processes_is_a_mistake(master: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a number of processes\n  next: use processes\[4\]"):
        parse_settings({MASTER: master})


def test_an_option_of_spark_is_refused_where_no_spark_starts() -> None:
    assert parse_settings({MASTER: "local[2]", OPTION: "1g"}).spark.options
    with pytest.raises(
        ConfigurationError, match=r"executor\.memory: KBQ_SPARK_MASTER=processes\[2\] does not start"
    ):
        parse_settings({MASTER: "processes[2]", OPTION: "1g"})
