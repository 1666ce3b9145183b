"""Assertions and output of check runners: scripts/test reads the lines `FAIL name: why` and `N passed, N failed`."""
import time
import traceback


def same(found, wanted, what=""):
    if found != wanted:
        raise AssertionError(f"{what + ': ' if what else ''}{found!r}, not {wanted!r}")


def between(found, low, high, what=""):
    if not low <= found <= high:
        raise AssertionError(f"{what + ': ' if what else ''}{found!r} is not from {low!r} to {high!r}")


def report_checks(checks):
    """Runs each (name, check): a check returns or raises its error. Prints each result, and the totals at the
    end. Returns the runner's exit status: 1 where one failed or there was none."""
    passed = failed = 0
    for name, check in checks:
        started = time.monotonic()
        try:
            why = check()
        except Exception as error:  # an exception is a failure
            traceback.print_exc()
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"
        print(f"FAIL {name}: {why}" if why else f"ok {name}, {time.monotonic() - started:.1f} s", flush=True)
        passed, failed = passed + (not why), failed + bool(why)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0
