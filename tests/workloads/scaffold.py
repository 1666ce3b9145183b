"""serving.py and pipeline.py of examples/programs need only Python's standard library: they run in every test."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import outcome

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "programs"
LIMIT_S = 30
# Answers a request when the file that it names appears; `bad` is bad input, `wrong` a fault of the program.
SERVER = """
import argparse, os, sys
sys.path.insert(0, sys.argv.pop(1))
import serving
options = argparse.ArgumentParser()
options.add_argument("--loads", default="yes")
serving.add_options(options)
options = options.parse_args()
def load():
    if options.loads != "yes":
        raise RuntimeError("no GPU")
    def answer(body):
        if body == b"bad":
            raise ValueError("not a clip")
        if body == b"wrong":
            raise KeyError("it")
        if body.startswith(b"/"):
            with open(body) as gate:  # a FIFO: a call that hangs until somebody writes to it
                return gate.read()
        return body.decode()
    return answer
serving.serve(options, "/ask", load)
"""


class Server:
    """A running server; a context manager that kills it."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})})
        self.said, self.port = [], None

    def __enter__(self):
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith("listens on port"):
                self.port = int(line.split()[-1])
                return self
        raise AssertionError(f"it did not listen: {''.join(self.said)}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def get(self, path, body=None):
        """(status, JSON)."""
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=body), timeout=LIMIT_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def until(self, path, status):
        """Asks until the answer has this status."""
        for _ in range(LIMIT_S * 20):
            if self.get(path)[0] == status:
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"{path} does not become {status}: {self.get(path)}")

    def end(self):
        """The exit status and the rest of the output, of a server that was told to end."""
        rest = self.process.stdout.read()  # until it closes it
        return self.process.wait(timeout=LIMIT_S), rest


def server(*options):
    return Server([sys.executable, "-c", SERVER, str(PROGRAMS), "--port=0", *options])


def check_answers():
    with server("--drain-s=0") as one:
        one.until("/readyz", 200)
        outcome.same(one.get("/ask", b"clip"), (200, "clip"))
        outcome.same(one.get("/ask", b"bad"), (400, "not a clip"))
        outcome.same(one.get("/ask", b"wrong"), (500, "KeyError: 'it'"))
        outcome.same([one.get("/other")[0], one.get("/other", b"x")[0]], [404, 404])
        one.process.send_signal(signal.SIGTERM)
        outcome.same(one.end(), (0, "drained\n"))


def check_drain():
    """After SIGTERM it is not ready, but still answers; check_answers sees its end."""
    with server("--drain-s=600") as one:
        one.until("/readyz", 200)
        one.process.send_signal(signal.SIGTERM)
        one.until("/readyz", 503)
        outcome.same(one.get("/ask", b"late"), (200, "late"))


def check_hang(tmp):
    """A call that never returns makes /healthz fail, and only that."""
    gate = tmp / "gate"
    os.mkfifo(gate)
    with server("--stuck-s=0.3", "--drain-s=0") as one:
        one.until("/readyz", 200)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(one.get("/ask", str(gate).encode())))
        asking.start()
        one.until("/healthz", 503)
        gate.write_text("at last")
        asking.join(LIMIT_S)
        outcome.same(answers, [(200, "at last")])
        one.until("/healthz", 200)


def check_no_model():
    with server("--loads=no") as one:
        status, said = one.end()
        outcome.same((status, said), (1, "cannot load the model: RuntimeError: no GPU\n"))


def check_states():
    """A Job is complete or failed by its conditions alone."""
    import pipeline
    for conditions, wanted in (([], None), ([{"type": "Suspended", "status": "True"}], None), ([{"type": "Complete", "status": "True"}], "Complete"),
                               ([{"type": "FailureTarget", "status": "True"}], None), ([{"type": "Failed", "status": "True"}], "Failed"),
                               ([{"type": "Complete", "status": "False"}], None)):
        outcome.same(pipeline.state_of({"status": {"conditions": conditions}}), wanted, str(conditions))
    outcome.same(pipeline.state_of({}), None)


def with_directory(check):
    import tempfile

    def run():
        with tempfile.TemporaryDirectory() as directory:
            return check(pathlib.Path(directory))
    return run


CHECKS = [
    ("the server answers, and says what is wrong with a request", check_answers),
    ("after SIGTERM it is not ready and still answers", check_drain),
    ("a call that hangs fails the liveness probe", with_directory(check_hang)),
    ("a model that cannot be loaded ends the server", check_no_model),
    ("a pipeline knows complete and failed stages", check_states),
]
