"""A raw HTTP client and helpers that the attacks share."""
import base64
import contextlib
import multiprocessing
import selectors
import socket
import ssl
import subprocess
import time
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import crypt  # the library that checks the passwords

LIMIT_S = 20


def basic(name, password):
    """The header of HTTP's basic authentication."""
    return "Authorization: Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def bcrypt(password, cost=4):
    return crypt.crypt(password, f"$2b${cost:02}$abcdefghijklmnopqrstuu")


def connect(where, limit_s=LIMIT_S, source=None):
    """A stream to a Unix socket's path or a port of this host, from the address `source`."""
    if not isinstance(where, int):
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(limit_s)
        stream.connect(str(where))
        return stream
    return socket.create_connection(("127.0.0.1", where), timeout=limit_s, source_address=(source, 0) if source else None)


def request_text(path, *headers, method="GET", body=b""):
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *length, *headers, "", ""]).encode() + body


def exchange(where, path, *headers, method="GET", body=b"", tls=None, limit_s=LIMIT_S, source=None):
    """One request on a connection of its own: (status, body). Status 0: the connection ended without a response."""
    answer = b""
    with connect(where, limit_s, source) as plain, contextlib.suppress(ConnectionResetError, ssl.SSLError):
        with tls.wrap_socket(plain, server_hostname="127.0.0.1") if tls else plain as stream:
            # It may respond before it has read everything.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stream.sendall(request_text(path, "Connection: close", *headers, method=method, body=body))
            while piece := stream.recv(1 << 20):
                answer += piece
    head, _, rest = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), rest


def wait_for(what, condition, limit_s=LIMIT_S):
    """The first true value of `condition`, for what gives no event."""
    until = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {limit_s} s")
        time.sleep(0.02)
    return value


def make_certificate(directory, name):
    """A self-signed certificate for 127.0.0.1 as PEM files: (certificate, key)."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


def trusting(certificate, shown=None):
    """A TLS client that trusts one certificate, and shows (certificate, key) when asked."""
    context = ssl.create_default_context(cafile=certificate)
    if shown:
        context.load_cert_chain(*shown)
    return context


def flood(where, connections, text):
    """Sends a text again and again over many connections, and reads what comes back. Never returns."""
    block = memoryview(text * (1 + (256 << 10) // len(text)))
    events = selectors.DefaultSelector()
    for _ in range(connections):
        stream = connect(where)
        stream.setblocking(False)
        events.register(stream, selectors.EVENT_READ | selectors.EVENT_WRITE, [0])
    while True:
        for key, ready in events.select():
            try:
                if ready & selectors.EVENT_READ:
                    key.fileobj.recv(1 << 20)
                if ready & selectors.EVENT_WRITE:
                    # From where the text was left, so that every request is whole.
                    key.data[0] = (key.data[0] + key.fileobj.send(block[key.data[0]:])) % len(block)
            except OSError:
                events.unregister(key.fileobj)


@contextlib.contextmanager
def meanwhile(task, *arguments):
    """Runs a function in a process of its own, until the end of the block."""
    process = multiprocessing.get_context("fork").Process(target=task, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
