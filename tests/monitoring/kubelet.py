"""A minimal kubelet for the metrics tests: it accepts registrations, reports which Pod holds which device, and requests a
preferred allocation. It implements gRPC over HTTP/2 without a library: messages are sent in the simplest encoding, and only the
needed parts of received ones are decoded.

Source: RFC 9113 (frames), RFC 7541 (literal headers without indexing), gRPC over HTTP2, proto/*.proto.
"""
import os
import socket
import socketserver
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
MUCH = 1 << 30  # flow control window of the peer, which is never extended
LIMIT_S = 10


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def message(payload):
    return b"\x00" + struct.pack(">I", len(payload)) + payload


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number, value):
    """Encodes a protobuf field: an integer, a string, or an encoded message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(encoded, number):
    """The values of one field, in a message of length-delimited and varint fields only."""
    found, at = [], 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = encoded[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
    while at < len(encoded):
        key = read()
        length = read()
        if key & 7 == 2:
            if key >> 3 == number:
                found.append(encoded[at:at + length])
            at += length
    return found


def frames(file):
    while len(head := file.read(9)) == 9:
        yield head[3], head[4], struct.unpack(">I", head[5:])[0], file.read(int.from_bytes(head[:3], "big"))


class Call(socketserver.StreamRequestHandler):
    def handle(self):
        if self.rfile.read(len(PREFACE)) != PREFACE:
            return
        self.request.sendall(frame(SETTINGS, 0, 0))
        bodies = {}
        try:
            for kind, flags, stream, payload in frames(self.rfile):
                if kind == SETTINGS and not flags & ACK:
                    self.request.sendall(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK:
                    self.request.sendall(frame(PING, ACK, 0, payload))
                elif kind == DATA:
                    bodies[stream] = bodies.get(stream, b"") + payload
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    self.answer(stream, self.server.answer(bodies.pop(stream, b"")[5:]))
        except ConnectionError:
            pass  # the agent has exited

    def answer(self, stream, reply):
        # 0x88 is ":status: 200" of the static table.
        self.request.sendall(frame(HEADERS, END_HEADERS, stream, b"\x88" + header("content-type", "application/grpc")) +
                             frame(DATA, 0, stream, message(reply)) +
                             frame(HEADERS, END_HEADERS | END_STREAM, stream, header("grpc-status", "0")))


class Plugin:
    """One call of a device plugin."""

    def __init__(self, path, method, request=b""):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(path))
        self.connection.sendall(
            PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, MUCH)) +
            frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", MUCH)) + frame(HEADERS, END_HEADERS, 1, b"".join(
                header(*pair) for pair in ((":method", "POST"), (":scheme", "http"), (":authority", "localhost"),
                                           (":path", f"/v1beta1.DevicePlugin/{method}"), ("te", "trailers"),
                                           ("content-type", "application/grpc")))) +
            frame(DATA, END_STREAM, 1, message(request)))

    def replies(self):
        """Yields frames, not messages, until the stream ends."""
        try:
            for kind, flags, stream, payload in frames(self.connection.makefile("rb")):
                if kind == SETTINGS and not flags & ACK:
                    self.connection.sendall(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK:
                    self.connection.sendall(frame(PING, ACK, 0, payload))
                elif kind == DATA:
                    yield payload
                if kind == GOAWAY or stream == 1 and kind in (DATA, HEADERS) and flags & END_STREAM:
                    return
        except OSError:
            return  # the client has disconnected
        finally:
            self.connection.close()

    def messages(self):
        """The same, message by message."""
        held = b""
        for payload in self.replies():
            held += payload
            while len(held) >= 5 and len(held) >= (end := 5 + int.from_bytes(held[1:5], "big")):
                yield held[5:end]
                held = held[end:]

    def end(self):
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended by itself


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, path, answer):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.answer, self.open = path, answer, set()
        super().__init__(str(path), Call)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def process_request(self, request, client_address):
        self.open.add(request)
        super().process_request(request, client_address)

    def end(self):
        self.shutdown()
        self.server_close()
        os.unlink(self.path)
        for request in self.open:
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed by the agent before


class Kubelet:
    """In `directory`, as /var/lib/kubelet. hold() assigns devices to Pods."""

    def __init__(self, directory):
        self.directory, self.pods, self.servers, self.watched = directory, {}, [], []
        self.changed, self.plugins, self.health = threading.Condition(), {}, {}

    def start(self):
        self.servers = [Server(self.directory / "device-plugins" / "kubelet.sock", self.register),
                        Server(self.directory / "pod-resources" / "kubelet.sock", self.list)]

    def stop(self):
        for one in self.servers + self.watched:
            one.end()
        self.servers, self.watched = [], []

    def hold(self, namespace, pod, resource, *devices):
        self.pods[namespace, pod] = (resource, devices)

    def register(self, request):
        resource, endpoint = fields(request, 3)[0].decode(), fields(request, 2)[0].decode()
        plugin = Plugin(self.directory / "device-plugins" / endpoint, "ListAndWatch")
        threading.Thread(target=self.follow, args=(plugin,), daemon=True).start()
        with self.changed:
            self.watched.append(plugin)
            self.plugins[resource] = endpoint
            self.changed.notify_all()
        return b""

    def follow(self, plugin):
        """Yields each device's health from the plugin."""
        for message in plugin.messages():
            with self.changed:
                self.health = {fields(device, 1)[0].decode(): fields(device, 2)[0].decode() for device in fields(message, 1)}
                self.changed.notify_all()

    def wait_for_health(self, *health):
        """Waits for these devices of the last registered plugin, in any order."""
        with self.changed:
            return self.changed.wait_for(lambda: sorted(self.health.values()) == sorted(health), LIMIT_S)

    def list(self, _):
        return b"".join(field(1, field(1, pod) + field(2, namespace) + field(3, field(1, "main") + field(
            2, field(1, resource) + b"".join(field(2, device) for device in devices))))
            for (namespace, pod), (resource, devices) in self.pods.items())

    def prefer(self, resource, devices, size):
        """Calls GetPreferredAllocation of the plugin; returns the devices."""
        with self.changed:
            if not self.changed.wait_for(lambda: resource in self.plugins, LIMIT_S):
                raise TimeoutError(f"{resource} was not registered")
        request = field(1, b"".join(field(1, device) for device in devices) + field(3, size))
        plugin = Plugin(self.directory / "device-plugins" / self.plugins[resource], "GetPreferredAllocation", request)
        plugin.connection.settimeout(LIMIT_S)
        reply = b"".join(plugin.replies())[5:]
        return [device.decode() for answer in fields(reply, 1) for device in fields(answer, 1)]
