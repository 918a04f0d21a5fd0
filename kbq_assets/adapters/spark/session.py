"""Spark's configuration and context, with only the options that KBQ needs.

Options may contain secrets, and every user of a machine can read command lines. So Spark gets its options from a file
that only this user can read (`private_options`), or over its socket if its JVM already runs. Its event log and UI hide
everything that looks like a secret (`core/config/redaction.py`).
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import py4j.protocol
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError

from kbq_assets.adapters.java import JavaRuntime, find_java, property_escaped
from kbq_assets.adapters.spark.classes import archive_options, kept_command
from kbq_assets.adapters.spark.engine import DYNAMIC_ALLOCATION
from kbq_assets.adapters.spark.standby import standby
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.config.redaction import SPARK_PATTERN
from kbq_assets.core.errors import ConfigurationError

_LOGGER: Final = logging.getLogger("kbq.extract")
_LOOPBACK = "127.0.0.1"
_REDACTION = "spark.redaction.regex"
#: Spark's option with the module that forks Python workers.
DAEMON: Final = "spark.python.daemon.module"
#: Spark's option to log its jobs and tasks for its history server.
EVENT_LOG: Final = "spark.eventLog.enabled"
#: Number of runs whose event logs are kept in `spark-events/`.
KEPT_EVENT_LOGS: Final = 200
#: Arguments of `spark-submit`, which PySpark starts (https://spark.apache.org/docs/latest/submitting-applications.html).
_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: The variable with the folder in which PySpark finds `bin/spark-submit`.
_HOME: Final = "SPARK_HOME"
#: The Java class that `spark-submit` finally runs for PySpark.
_GATEWAY: Final = "org.apache.spark.api.python.PythonGatewayServer"
#: Prefixes of Spark's options that choose the Python of workers and its variables.
_OF_DAEMON: Final = ("spark.pyspark.", "spark.executorEnv.")
#: Prefixes of variables that affect Spark's scripts. `_OWN_VARIABLES` are those that `prepare_environment` sets.
_READ_BY_SCRIPTS: Final = ("SPARK_", "HADOOP_", "YARN_", "PYSPARK_SUBMIT_ARGS")
_OWN_VARIABLES: Final = ("SPARK_LAUNCHER_OPTS", "SPARK_LOCAL_IP")
#: No record passes through the JVM. It is short-lived and does little, so the quick compiler and the serial collector
#: suit it. The driver's young generation is large enough for all garbage of a short run, if no thread reserves
#: megabytes of it, as Java would let the first threads do. Compiling a method pays only if it is called twice as often
#: as Java assumes.
#: Java prints to standard error, because the output of a command may be JSON. It prints nothing about a class archive
#: that does not match: then the start only takes longer.
#: Measured: start and stop take half the CPU time, 8 s instead of 15.
_QUICK_EXECUTOR = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_JVM = (
    f"{_QUICK_EXECUTOR} -XX:CompileThresholdScaling=2 -Xmn320m"
    " -XX:TLABSize=256k -XX:-ResizeTLAB -XX:-UsePerfData -Xlog:disable -Xlog:all=warning,cds*=off:stderr"
    " -XX:+DisplayVMOutputToStderr"
)
#: Java's property that names the configuration of Spark's log.
LOG4J: Final = "log4j2.configurationFile"
#: Logs only errors, from the start: with Spark's defaults, four lines are printed before `setLogLevel` takes effect.
_QUIET_LOG: Final = """\
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
rootLogger.level=error
rootLogger.appenderRef.console.ref=console
logger.shell.name=org.apache.spark.api.python.PythonGatewayServer
logger.shell.level=error
"""


def spark_config(settings: SparkSettings, home: Path, daemon: str = "") -> dict[str, str]:
    """Spark's configuration for KBQ. The user's options take precedence.

    ``daemon`` is the module that forks Python workers. It is used only if workers have it: with a local master, or with
    the archive from `environment.write_environment`.
    """
    events = home / "spark-events"
    events.mkdir(parents=True, exist_ok=True)
    _delete_old_events(events)
    config = {
        "spark.master": settings.master,
        "spark.app.name": "kbq",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": "false",
        # A cluster's operators look for an application in Spark's UI. On one machine there are Dagster's UI and
        # `kbq status`, and the event log would take a tenth of Java's start time.
        **dict.fromkeys(("spark.ui.enabled", EVENT_LOG), str(not settings.is_local).lower()),
        "spark.driver.memory": "1g",
        _JAVA_OPTIONS: f"{QUICK_JVM} {shlex.join(archive_options(find_java(home / 'java')))}".rstrip(),
        "spark.executor.extraJavaOptions": _QUICK_EXECUTOR,
        # Workers multiply no matrices, so numpy's idle threads would only cost time.
        "spark.executorEnv.OMP_NUM_THREADS": "1",
        "spark.eventLog.dir": events.as_uri(),
        "spark.sql.warehouse.dir": (home / "spark-warehouse").as_uri(),
    }
    if settings.is_local:
        config |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    if daemon and (settings.is_local or _packed_python(settings)):
        config[DAEMON] = daemon
    config |= settings.options
    theirs = settings.options.get(_REDACTION)
    return config | {_REDACTION: f"({SPARK_PATTERN})|({theirs})" if theirs else SPARK_PATTERN}


def resident_options(settings: SparkSettings) -> dict[str, str]:
    """The options of an application that runs for days. The user's options take precedence. On a cluster, executors
    start when tasks wait and leave when idle. The event log is off and the driver keeps few jobs, because both would
    grow without bound."""
    options = {
        EVENT_LOG: "false",
        **dict.fromkeys(("spark.ui.retainedJobs", "spark.ui.retainedStages"), "200"),
        "spark.ui.retainedTasks": "1000",
    }
    if not settings.is_local:
        options |= {DYNAMIC_ALLOCATION: "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true"}
    return options | dict(settings.options)


def _delete_old_events(folder: Path) -> None:
    """Keep only the event logs of the latest runs: a large log is 3 MB, and there may be hundreds per day."""
    runs = []
    for log in folder.iterdir():
        with suppress(OSError):  # another run may delete it too
            runs.append((log.stat().st_mtime, log))
    for _, log in sorted(runs)[: -KEPT_EVENT_LOGS or None]:
        with suppress(OSError):
            log.unlink() if log.is_file() else shutil.rmtree(log)


def prepare_environment(settings: SparkSettings, home: Path) -> None:
    """Choose the Java and the Python that Spark starts. Call this before the JVM starts. Raises ConfigurationError.

    Spark reads both only from the environment. Workers run the archive's Python or this interpreter. PYSPARK_PYTHON
    overrides it for clusters, whose hosts may have Python elsewhere. On this machine, another Python may lack KBQ.
    """
    os.environ["JAVA_HOME"] = str(_java(settings, home).home)
    os.environ.setdefault(
        "SPARK_LAUNCHER_OPTS", _QUICK_EXECUTOR
    )  # for the JVM that builds the driver's command
    if settings.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", _packed_python(settings) or sys.executable)


def _java(settings: SparkSettings, home: Path) -> JavaRuntime:
    try:
        return find_java(home / "java")
    except ConfigurationError as error:
        if settings.is_local:
            error.next_step += "; or do without Java: KBQ_SPARK_MASTER=processes[*]"
        raise


def _packed_python(settings: SparkSettings) -> str:
    """The Python in the archive of `kbq pack`, if that is shipped with the job; else ""."""
    if settings.is_local:
        return ""
    from kbq_assets.adapters.spark.environment import FOLDER, PYTHON  # takes 6 ms

    archives = settings.options.get("spark.archives", "").split(",")
    return PYTHON if any(archive.endswith(f"#{FOLDER}") for archive in archives) else ""


@contextmanager
def spark_context(settings: SparkSettings, home: Path, daemon: str = "") -> Iterator[SparkContext]:
    """A context for one run, which stops afterwards. A SQL session would take twice as long to start."""
    prepare_environment(settings, home)
    hide_interrupts()
    options = spark_config(settings, home, daemon)
    java = find_java(home / "java")
    command = kept_command(java) if _is_plain(settings) else None
    with _without_numpy_arguments(), _standby(settings, options) as found:
        with _kept_interrupts():
            context = _started({**options, **found}, [str(java.executable), *command] if command else [])
        context.setLogLevel("ERROR")
        try:
            yield context
        finally:
            _stop(context)


def _standby(settings: SparkSettings, options: Mapping[str, str]) -> AbstractContextManager[dict[str, str]]:
    """A standby of the daemon, if Spark would run that on this machine with the same Python and variables."""
    module = options.get(DAEMON, "")
    is_same = os.environ.get("PYSPARK_PYTHON") == sys.executable and not any(
        name.startswith(_OF_DAEMON) for name in settings.options
    )
    return standby(module) if settings.is_local and module and is_same else nullcontext({})


@contextmanager
def _kept_interrupts() -> Iterator[None]:
    """Keep this process's handler of Ctrl-C. PySpark's own would call the JVM in the middle of another call, and a
    resident extraction would not end in order."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def hide_interrupts() -> None:
    """Drop py4j's traceback of a Ctrl-C: the command itself reports that it was interrupted."""
    logging.getLogger().addFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


def _stop(context: SparkContext) -> None:
    try:
        _stop_accumulators(context)
        context.stop()
    except Exception as error:  # the JVM is gone; this error must not hide an error of the run
        _LOGGER.warning("Spark did not stop cleanly: %s", error)


def _stop_accumulators(context: SparkContext) -> None:
    """Stop PySpark's server of accumulators, which KBQ does not use, without waiting for it. It looks once a second
    whether it should stop, so `SparkContext.stop` would take a second longer than Spark (ADR 13)."""
    theirs: Any = context
    if (server := getattr(theirs, "_accumulatorServer", None)) is not None:
        theirs._accumulatorServer = None
        threading.Thread(target=server.shutdown, name="kbq-accumulators", daemon=True).start()


def _is_plain(settings: SparkSettings) -> bool:
    """Whether Spark's scripts would add nothing to the kept command: the user has set no options, no variables that the
    scripts read, and no files of defaults."""
    theirs = (name for name in os.environ if name.startswith(_READ_BY_SCRIPTS) and name not in _OWN_VARIABLES)
    has_files = (Path(pyspark.__file__).parent / "conf").is_dir()
    return settings.is_local and not settings.options and not any(theirs) and not has_files


def _started(options: Mapping[str, str], command: Sequence[str]) -> SparkContext:
    config = SparkConf()
    if config.getAll():  # it has defaults, so the JVM of an earlier context runs
        return SparkContext.getOrCreate(config.setAll(list(options.items())))
    try:
        with private_options(options, command):
            return SparkContext.getOrCreate(config)
    except (FileNotFoundError, PySparkRuntimeError, TypeError, py4j.protocol.Py4JError) as error:
        raise _not_started(error) from error


def _not_started(error: Exception) -> ConfigurationError:
    """The error of a Spark that has no scripts, whose JVM ends at once, that refuses its options, or whose classes are
    those of another release."""
    first, _, _ = str(getattr(error, "java_exception", error)).partition("\n")
    causes = "look at Java's lines above, and check JAVA_TOOL_OPTIONS, _JAVA_OPTIONS, KBQ_SPARK_CONF_* and ulimit -a"
    if home := os.environ.get(_HOME):
        causes = f"unset {_HOME} ({home}) unless that is Spark {pyspark.__version__}; else {causes}"
    return ConfigurationError(f"Spark does not start: {first}", next_step=causes)


@contextmanager
def private_options(options: Mapping[str, str], command: Sequence[str] = ()) -> Iterator[None]:
    """Within the block, JVMs start with these options, which are in files that only this user can read.

    The JVM's own options must be on its command line, which refers to a file of arguments. Unless the options configure
    Spark's log, only its errors are printed. With a ``command`` (Java and its options), Spark's scripts do not run.
    They would start a shell, a Python and a JVM to find that command, and then a JVM that first sets up Ivy.
    """
    with tempfile.TemporaryDirectory(prefix="kbq-spark-") as folder:
        java, properties, log = (Path(folder) / name for name in ("java", "spark.conf", "log4j2.properties"))
        log.write_text(_QUIET_LOG)
        arguments = shlex.split(options.get(_JAVA_OPTIONS, ""))
        if not any(LOG4J in argument for argument in arguments):
            arguments.append(f"-D{LOG4J}={log}")
        script = Path(folder, "bin", "spark-submit")
        if command and _write_script(script, shlex.join([command[0], f"@{java}"])):
            theirs = [f"-D{key}={value}" for key, value in options.items() if key != _JAVA_OPTIONS]
            java.write_text("\n".join(map(_java_quoted, [*arguments, *command[1:], *theirs, _GATEWAY])))
            with _variable(_HOME, folder):
                yield
            return
        java.write_text("\n".join(map(_java_quoted, arguments)))
        lines = {**options, _JAVA_OPTIONS: shlex.quote(f"@{java}")}.items()
        escaped = (f"{property_escaped(key)}={property_escaped(value)}" for key, value in lines)
        properties.write_text("\n".join(escaped))
        file = f"--properties-file {shlex.quote(str(properties))} --load-spark-defaults"
        with _variable(_SUBMIT, f"{file} {os.environ.get(_SUBMIT) or 'pyspark-shell'}"):
            yield


def _write_script(path: Path, java: str) -> bool:
    """Write the script that PySpark starts instead of Spark's `bin/spark-submit`. Returns False if it cannot run: the
    folder of temporary files may be mounted with `noexec`."""
    path.parent.mkdir()
    home = shlex.quote(str(Path(pyspark.__file__).parent))
    path.write_text(f"#!/bin/sh\n{_HOME}={home} PYTHONHASHSEED=0 exec {java}\n")
    path.chmod(0o700)
    return os.access(path, os.X_OK)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _java_quoted(argument: str) -> str:
    """An argument, quoted for Java's argument files."""
    text = argument.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


@contextmanager
def _without_numpy_arguments() -> Iterator[None]:
    """Remove py4j's converters for numpy, which import PySpark's test tools and pandas for each argument (ADR 13)."""
    converters: list[Any] = py4j.protocol.INPUT_CONVERTER
    kept = list(converters)
    converters[:] = [each for each in kept if not type(each).__name__.startswith("Numpy")]
    try:
        yield
    finally:
        converters[:] = kept
