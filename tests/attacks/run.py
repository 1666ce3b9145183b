#!/usr/bin/python3
"""Attacks on the release's network services, as a stranger on the Pod network makes them: the real processes, with the sandbox on.

  tests/attacks/run.py [--only NAME] [--bin out/bin]     ends in `N passed, N failed`

listener: the agent's unprivileged child, which serves port 9400. scheduler: `gpulet scheduler`, which serves kube-scheduler.
A check fails where the service ends, where it is slow for others, or where it uses more than its memory limit.
"""
import argparse
import contextlib
import pathlib
import signal
import sys
import tempfile

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "monitoring")]
import listener  # noqa: E402
import outcome  # noqa: E402
import scheduler  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the checks with this text in their names")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out" / "bin")
    arguments = parser.parse_args()
    # Stop all processes also if the tests are interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checks = [check for module in (listener, scheduler) for check in module.checks(arguments.bin.resolve(), directory, stack)]
        return outcome.report_checks((name, check) for name, check in checks if arguments.only in name)


if __name__ == "__main__":
    sys.exit(main())
