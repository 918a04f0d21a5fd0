"""``kbq check``: failed checks, and the files that wait for them."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from kbq_assets.cli.context import ExitCode, each_warehouse, json_option, pass_observer
from kbq_assets.cli.render import console, echo_json, number, table
from kbq_assets.core.observation.check_names import CHECKS, COUNTS_AGREE
from kbq_assets.core.observation.checks import CheckResult
from kbq_assets.core.protocol.waits import next_lines
from kbq_assets.pipelines.observation.checks import CheckReport
from kbq_assets.pipelines.observation.documents import document
from kbq_assets.pipelines.observation.observer import Observer


@click.command()
@click.option(
    "--counts", is_flag=True, help="Also count the warehouse's rows, as `kbq reconcile --counts` does."
)
@json_option
@each_warehouse
@pass_observer
def check(observer: Observer, counts: bool, as_json: bool) -> None:
    """Run all checks; exit code 1 if one fails, 75 if one could not run.

    Prints each failure with the commands that fix it. If a topic's option `blocking` names a failed check, the topic's
    files wait until the check passes. If the store does not give a commit or a table's state, names it and checks the
    rest. Changes nothing.
    """
    report = observer.checks(queries=counts, survives_silence=True)
    if as_json:
        echo_json(report_json(report))
    else:
        _print(report, console())
    sys.exit(_code(report))


def report_json(report: CheckReport) -> dict[str, object]:
    return {
        "failed": len(report.failures),
        "checks": [_result_json(result) for result in report.results],
        "unknown": dict(report.unknown),
        "unavailable": dict(report.unavailable),
        "holds": [document(block, "topic check message commands") for block in report.blocks],
    }


def _result_json(result: CheckResult) -> dict[str, object]:
    found = document(result, "check subject passed severity message commands")
    return {**found, "holds": result.blocks, "numbers": dict(result.numbers)}


def _print(report: CheckReport, out: Console) -> None:
    shown = table("check", "#passed", "#failed", "")
    for name in CHECKS:
        results = report.of(name)
        failed = sum(not result.passed for result in results)
        if results or name in report.unknown:
            verdict = "unknown" if name in report.unknown else CHECKS[name].severity if failed else "ok"
            shown.add_row(name, number(len(results) - failed), number(failed), verdict)
    out.print(shown)
    for result in report.failures:
        out.print(f"{result.severity}: {result.check}: {result.subject}: {result.message}", style="yellow")
        for line in next_lines(result.commands):
            out.print(line, style="yellow")
        if result.blocks:
            out.print("  its files are not loaded until this passes", style="yellow")
    for message in dict.fromkeys(report.unknown.values()):
        names = ", ".join(name for name, why in report.unknown.items() if why == message)
        out.print(f"unknown: {names}: {message}", style="yellow")
    for path, why in report.unavailable.items():
        out.print(f"unknown: {path}: {why}", style="yellow")
    if not report.unknown and COUNTS_AGREE not in {result.check for result in report.results}:
        out.print("the warehouse's rows were not counted; --counts counts them")


def _code(report: CheckReport) -> ExitCode:
    if report.failures:
        return ExitCode.FAILED
    return ExitCode.TRY_AGAIN if report.unknown or report.unavailable else ExitCode.DONE
