"""Results of the checks: one line each, figures for the result file, and the totals."""
import contextlib
import pathlib
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from outcome import between, same  # noqa: E402, F401


class Skip(Exception):
    """Raised by a check that this machine cannot run; the text is the reason."""


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.lines = []  # all result lines, for the result file
        self.figures = {}

    def _print(self, line):
        print(line, flush=True)
        self.lines.append(line)

    @contextlib.contextmanager
    def check(self, name, counted=True):
        """The block passes, raises Skip(reason), or fails with its exception; `counted`: a pass is reported."""
        started = time.monotonic()
        try:
            yield
        except Skip as skip:
            self.skipped += 1
            self._print(f"SKIP {name}: {skip}")
        except Exception as error:  # any exception is a failure
            if not isinstance(error, AssertionError):
                traceback.print_exc()
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:2000] or type(error).__name__
            self.failed += 1
            self._print(f"FAIL {name}: {text} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})")
        else:
            if not counted:
                return
            self.passed += 1
            self._print(f"ok {name}, {time.monotonic() - started:.1f} s")

    def skip(self, name, reason):
        with self.check(name):
            raise Skip(reason)

    def figure(self, path, value):
        """Stores a figure under "section.name"."""
        place = self.figures
        *sections, last = path.split(".")
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
        return value

    def totals(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def wait_until(condition, limit_s, what, interval_s=0.02):
    """Polls until `condition()` is true and returns it; fails after `limit_s`."""
    end = time.monotonic() + limit_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {limit_s} s")
        time.sleep(interval_s)
