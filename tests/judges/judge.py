"""What the judges share: named checks, each one line of output, and the machine that they are about."""
import functools
import json
import os
import sys
import traceback

CHECKS = []


def check(function):
    """Registers a check: a function without arguments that raises when something is wrong."""
    CHECKS.append(function)
    return function


def same(found, wanted, what=""):
    if found != wanted:
        raise AssertionError(f"{what + ': ' if what else ''}{found!r}, not {wanted!r}")


def between(found, low, high, what=""):
    if not low <= found <= high:
        raise AssertionError(f"{what + ': ' if what else ''}{found!r} is not from {low!r} to {high!r}")


@functools.cache
def machine():
    """The machine as its YAML says it, one mapping for each GPU: see run.py."""
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
        except Exception as error:  # whatever it raises is what was wrong
            where = traceback.extract_tb(error.__traceback__)[-1]
            why = " ".join(str(error).split()) or type(error).__name__
            print(f"FAIL {name}: {why} ({os.path.basename(where.filename)}:{where.lineno})", flush=True)
