#!/usr/bin/python3
"""What a person meets on the command line, with the programs of `make build`. As root. Ends in `N passed, N failed`.

  tests/cli/run.py [--only NAME]    inputs, outputs, kubectl, completions, manuals
  UPDATE_GOLDEN=1 tests/cli/run.py  rewrites wrong_inputs.txt

inputs       each wrong command line of wrong_inputs.txt, with its exit code and its exact output
outputs      each command with each -o, on a simulated node with an agent: JSON and YAML by real parsers and the schemas of
             docs/reference, tables of 80 columns
kubectl      the same of `kubectl gpulet`, with an API server of these tests
completions  in bash, zsh and fish, as typed
manuals      the man pages, by `man --warnings`; the help of each command
"""
import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import completions  # noqa: E402
import inputs  # noqa: E402
import kubectl  # noqa: E402
import manuals  # noqa: E402
import node  # noqa: E402
import outcome  # noqa: E402
import outputs  # noqa: E402

PARTS = {"inputs": inputs, "outputs": outputs, "kubectl": kubectl, "completions": completions, "manuals": manuals}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    arguments = parser.parse_args()
    # Its path is in messages: as long on every machine.
    with tempfile.TemporaryDirectory(prefix="gpulet-cli-") as directory:
        with node.Node(arguments.bin.resolve(), pathlib.Path(directory)) as simulated:
            return outcome.report_checks([
                (f"{name}: {what}", check) for name, part in PARTS.items()
                if not arguments.only or name in arguments.only for what, check in part.checks(simulated)])


if __name__ == "__main__":
    sys.exit(main())
