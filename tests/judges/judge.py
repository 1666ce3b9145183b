"""Shared by the judges: named checks with one line of output each, and the machine under test."""
import functools
import json
import os
import pathlib
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from outcome import between, same  # noqa: E402, F401

CHECKS = []


def check(function):
    """Registers a check: a function without arguments that raises on an error."""
    CHECKS.append(function)
    return function


@functools.cache
def machine():
    """Returns the machine of its YAML, one mapping per GPU: see run.py."""
    with open(os.environ["JUDGE_MACHINE"], encoding="utf-8") as file:
        return json.load(file)


def main():
    """Runs the checks; a line `ok NAME` or `FAIL NAME: why` for each."""
    prefix = sys.argv[1]
    for function in CHECKS:
        name = f"{prefix} {function.__name__.replace('_', ' ')}"
        try:
            function()
            print(f"ok {name}", flush=True)
        except Exception as error:  # any exception is a failure
            where = traceback.extract_tb(error.__traceback__)[-1]
            why = " ".join(str(error).split()) or type(error).__name__
            print(f"FAIL {name}: {why} ({os.path.basename(where.filename)}:{where.lineno})", flush=True)
