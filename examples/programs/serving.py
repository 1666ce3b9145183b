"""The HTTP side of an inference server: requests, and the probes that Kubernetes needs to treat it well.

  POST PATH   the model's answer as JSON; 400 with one line for bad input, 503 while it cannot answer
  GET /readyz   200 once the model is loaded and has answered once, 503 from SIGTERM on: a Service sends requests to ready Pods only
  GET /healthz  503 if one call of the model has taken longer than `stuck_s`: the kubelet restarts the container. A GPU that hangs
                never returns, so nothing that runs on it can notice

One thread calls the model, so that requests wait in line instead of sharing the GPU's memory. At SIGTERM the server keeps
answering for `drain_s`, while endpoints are being updated, finishes the requests that it has, and ends with 0.
"""
import http.server
import json
import os
import queue
import signal
import sys
import threading
import time

WAITING = 64         # requests in line; more are refused with 503
ANSWER_S = 30        # for one request, in line and on the GPU
MAX_BODY = 64 << 20  # bytes


class Busy(Exception):
    pass


class Worker(threading.Thread):
    """The thread that calls the model. `load` returns a function of a request's body; ValueError means bad input. A model that
    cannot be loaded ends the server."""

    def __init__(self, load, stuck_s):
        super().__init__(daemon=True)
        self.load, self.stuck_s = load, stuck_s
        self.line = queue.Queue(WAITING)
        self.ready = threading.Event()
        self.began = None  # when the present call began
        self.failed = None  # why the model could not be loaded

    def run(self):
        try:
            answer = self.load()
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.ready.set()
        while True:
            body, reply = self.line.get()
            self.began = time.monotonic()
            try:
                reply.put(answer(body))
            except Exception as error:  # the request's, not the server's
                reply.put(error)
            self.began = None

    def alive(self):
        began = self.began
        return began is None or time.monotonic() - began < self.stuck_s

    def ask(self, body):
        reply = queue.Queue(1)
        try:
            self.line.put_nowait((body, reply))
            answer = reply.get(timeout=ANSWER_S)
        except (queue.Full, queue.Empty):
            raise Busy("too many requests in line") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def handler_of(path, worker, draining):
    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status, content):
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path == "/healthz":
                return self.answer(*((200, "ok") if worker.alive() else (503, "a call of the model hangs")))
            if self.path == "/readyz":
                ready = worker.ready.is_set() and not draining.is_set()
                return self.answer(200 if ready else 503, "ready" if ready else "not ready")
            return self.answer(404, "no such path")

        def do_POST(self):
            length = self.headers.get("Content-Length", "")
            if self.path != path:
                return self.answer(404, "no such path")
            if not length.isdigit() or int(length) > MAX_BODY:
                return self.answer(413, f"Content-Length must be at most {MAX_BODY}")
            body = self.rfile.read(int(length))
            if not worker.ready.is_set():
                return self.answer(503, "not ready")
            try:
                return self.answer(200, worker.ask(body))
            except ValueError as error:
                return self.answer(400, str(error))
            except Busy as error:
                return self.answer(503, str(error))
            except Exception as error:
                return self.answer(500, f"{type(error).__name__}: {error}")

        def log_message(self, *_):
            pass
    return Handler


def add_options(options):
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--stuck-s", type=float, default=60, help="one call of the model this long is a hang")
    options.add_argument("--drain-s", type=float, default=5, help="how long it answers new requests after SIGTERM")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for the requests
    block_on_close = True


def serve(options, path, load):
    """Returns after SIGTERM, when the requests that it has are answered. Exits with 1 if the model cannot be loaded."""
    draining = threading.Event()
    worker = Worker(load, options.stuck_s)
    server = Server(("", options.port), handler_of(path, worker, draining))
    # Waited for, not handled: a handler that set the event while this thread enters its wait() would wait for itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    worker.start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listens on port {server.server_address[1]}", flush=True)
    signal.sigwait({signal.SIGTERM})
    draining.set()
    if worker.failed:
        sys.exit(f"cannot load the model: {worker.failed}")
    threading.Event().wait(options.drain_s)
    server.shutdown()
    server.server_close()
    print("drained", flush=True)
