"""`qmq pipeline doctor` and `script`: check the installation, and print the file for spark-submit."""

import sys

import click

from ..options import json_option
from ..output import print_json


@click.command
@json_option
def doctor(as_json: bool) -> None:
    """Check whether everything for the pipeline is installed.

    Checks packages, Java, the Python of Spark's workers, and memory. If something is missing, prints what to do, with
    exit code 1.
    """
    from ...spark.doctor import check_all

    checks = check_all()
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        for check in checks:
            click.echo(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.said}")
    if not all(check.ok for check in checks):
        sys.exit(1)


@click.command
def script() -> None:
    """Print the path of the file that spark-submit runs.

    For example: spark-submit --master spark://host:7077 $(qmq pipeline script) archive --path /data/a /archive
    """
    from importlib.util import find_spec

    found = find_spec("pyspark_qmq")
    assert found is not None and found.origin is not None, "it is in the same wheel"
    click.echo(found.origin.replace("__init__.py", "__main__.py"))
