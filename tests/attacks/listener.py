"""The agent's listener child under attack: it must live, and answer its node and everybody else in time."""
import contextlib
import itertools
import json
import select
import ssl
import time

import client
from node import Node
from outcome import between, same


PROBE_LIMIT_S = 1  # the kubelet's default for a probe
PROBES = 10
ATTACKER = "127.0.0.2"
TIMED = 4
MAX_COST = 14  # of bcrypt: a second for each check
STREAMS = 16  # all that the network may have


class Target:
    """An agent on a simulated node, with a web config file and the node's own socket."""

    def __init__(self, programs, directory):
        self.node = Node("attacked", "hgx-h100", directory / "node", programs)
        self.web_config, self.socket = directory / "web.yaml", directory / "agent.sock"

    def local(self, path):
        return client.exchange(self.socket, path)[0]

    def child(self):
        """The process id of the listener child."""
        task = f"/proc/{self.node.agent.pid}/task/{self.node.agent.pid}/children"
        with open(task, encoding="ascii") as children:
            for pid in children.read().split():
                with open(f"/proc/{pid}/comm", encoding="ascii") as name:
                    if name.read().strip() == "gpulet-listener":
                        return int(pid)
        return 0

    def restart_with(self, web_config):
        """Starts an agent with this web config, in place of the one before."""
        if self.node.agent is None:
            self.node.driver_up()
        self.node.stop()
        self.web_config.write_text(json.dumps(web_config))
        self.node.start(GPULET_WEB_CONFIG_FILE=str(self.web_config), GPULET_SOCKET=str(self.socket))
        client.wait_for("a sample on the local socket", lambda: self.local("/api/now") == 200)


def web_configs(directory):
    """Every form of the web config: its content, the TLS client, and the headers of a permitted and a rejected request."""
    server, user = client.make_certificate(directory, "server"), client.make_certificate(directory, "user")
    tls = {"tls_server_config": {"cert_file": str(server[0]), "key_file": str(server[1])}}
    users = {"basic_auth_users": {"scraper": client.bcrypt("secret")}}
    right, wrong = [client.basic("scraper", "secret")], [client.basic("scraper", "guess")]

    def asking(how):
        return {"tls_server_config": {**tls["tls_server_config"], "client_auth_type": how,
                                      **({"client_ca_file": str(user[0])} if "Verify" in how else {})}}
    mutual = asking("RequireAndVerifyClientCert")
    trusting, shown, stranger = client.trusting(server[0]), client.trusting(server[0], user), client.trusting(server[0], server)
    older = client.trusting(server[0], user)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    return {"no rules": ({}, None, wrong, None), "users": (users, None, right, wrong), "TLS": (tls, trusting, wrong, None),
            "TLS 1.2": (tls, older, wrong, None), "users and TLS": ({**tls, **users}, trusting, right, wrong),
            "mutual TLS": (mutual, shown, wrong, None), "mutual TLS 1.2": (mutual, older, wrong, None),
            "users and mutual TLS": ({**mutual, **users}, shown, right, wrong),
            "mutual TLS and a stranger's certificate": (mutual, stranger, None, None),
            "mutual TLS and no certificate": (mutual, trusting, None, None),
            "any certificate": (asking("RequireAnyClientCert"), stranger, wrong, None),
            "a certificate that is only requested": (asking("RequestClientCert"), stranger, wrong, None),
            "a certificate if it is given": (asking("VerifyClientCertIfGiven"), trusting, wrong, None)}


class TlsFiles:
    """A web config with TLS, and its client."""

    def __init__(self, directory):
        certificate, key = client.make_certificate(directory, "listener")
        self.config = {"tls_server_config": {"cert_file": str(certificate), "key_file": str(key)}}
        self.client = client.trusting(certificate)


def sample_time(target):
    return json.loads(client.exchange(target.socket, "/api/now")[1])["at"]


def checks(programs, directory, stack):
    target = Target(programs, directory)
    stack.callback(target.node.end)

    def survives(rules, tls, permitted, rejected):
        target.restart_with(rules)
        child = target.child()
        for headers, status in ((permitted or [], 200 if permitted else 0), *([(rejected, 401), ([], 401)] if rejected else [])):
            same(client.exchange(target.node.port, "/healthz", *headers, tls=tls)[0], status, f"status with {headers}")
        # It lives if it answers after the attack; a child that has died is replaced by another.
        same(target.local("/healthz"), 200, "the local socket")
        same(target.child(), child, "the listener child")
    def flooded(path, connections):
        target.restart_with({})
        child = target.child()
        with client.meanwhile(client.flood, target.node.port, connections, client.request_text(path)):
            sampled = sample_time(target)
            for _ in range(PROBES):
                for where in (target.node.port, target.socket):
                    same(client.exchange(where, "/healthz", limit_s=PROBE_LIMIT_S)[0], 200, f"/healthz at {where}")
            # The pages are still the agent's newest.
            client.wait_for("a new sample", lambda: sample_time(target) != sampled, limit_s=5)
        same(target.child(), child, "the listener child")
    tls = TlsFiles(directory)

    def status_of(password, user="scraper", source="127.0.0.1"):
        return client.exchange(target.node.port, "/healthz", client.basic(user, password), tls=tls.client, source=source)[0]

    def guess(user):
        """Wrong passwords of a name, or of many, as fast as they are taken."""
        for i in itertools.count():
            status_of(f"guess {i}", user or f"user {i}", ATTACKER)

    def guessed(*users):
        """While others guess, the right user logs in for the first time."""
        target.restart_with({**tls.config, "basic_auth_users": {"scraper": client.bcrypt("secret", 9)}})
        with contextlib.ExitStack() as guessers:
            for user in users:
                guessers.enter_context(client.meanwhile(guess, user))
            client.wait_for("guesses are put off", lambda: status_of(str(time.monotonic()), "somebody", ATTACKER) == 429)
            same(status_of("secret"), 200, "status for the right user")
    yield "listener: guesses at the user's name keep nobody out", lambda: guessed("scraper")
    yield "listener: guesses at any name keep nobody out", lambda: guessed("scraper", None, None)

    def costly():
        """A password whose check takes a second: a request without a password and the node's own socket are answered before it."""
        target.restart_with({"basic_auth_users": {"scraper": client.bcrypt("secret", MAX_COST)}})
        child = target.child()
        with client.connect(target.node.port, source=ATTACKER) as guess:
            guess.sendall(client.request_text("/healthz", client.basic("scraper", "guess")))
            # Its turn has come where the next request is answered.
            same(client.exchange(target.node.port, "/healthz")[0], 401, "status without a password")
            same(target.local("/healthz"), 200, "the local socket")
            same(select.select([guess], [], [], 0)[0], [], "answers that came before the others")
            same(int(guess.recv(12).split()[1]), 401, "status for the guess")
        same(target.child(), child, "the listener child")
        # While guesses go on, every probe is in time.
        with client.meanwhile(guess_all, "scraper"):
            for _ in range(PROBES):
                same(client.exchange(target.socket, "/healthz", limit_s=PROBE_LIMIT_S)[0], 200, "/healthz")
        same(target.child(), child, "the listener child after the guesses")

    def guess_all(user):
        """Wrong passwords from many addresses without TLS."""
        for i in itertools.count():
            client.exchange(target.node.port, "/healthz", client.basic(user, f"guess {i}"), source=f"127.0.2.{1 + i % 250}")
    yield "listener: a password that is costly to check delays nobody else", costly

    def timed():
        """The time of a rejection by the user's name, the least of several: the rest is the machine's."""
        target.restart_with({**tls.config, "basic_auth_users": {"costly": client.bcrypt("secret", 9), "cheap": client.bcrypt("secret", 4)}})
        times = {name: [] for name in ("costly", "cheap", "unknown")}
        sources = (f"127.0.1.{i}" for i in range(1, 255))  # a check for each, as long as all together have not used up their time
        for attempt in range(TIMED):
            for name, taken in times.items():
                while True:
                    started = time.monotonic()
                    status = status_of(f"guess {attempt}", name, next(sources))
                    if status == 401:
                        taken.append(time.monotonic() - started)
                        break
                    same(status, 429, "status")
                    time.sleep(0.2)
        least = {name: min(taken) for name, taken in times.items()}
        between(max(least.values()) / min(least.values()), 1, 1.5, f"ratio of {least}")
    yield "listener: times do not tell who is a user", timed

    def stream(source):
        stream = client.connect(target.node.port, source=source)
        stream.sendall(client.request_text("/api/events"))
        return stream, int(stream.recv(12).split()[1])

    def streamed(attackers):
        """One client takes all event streams; others still get one."""
        target.restart_with({})
        with contextlib.ExitStack() as streams:
            for source in attackers:
                taken, status = stream(source)
                streams.enter_context(taken)
                same(status, 200, "status for the attacker")
            refused, status = stream(attackers[0])
            streams.enter_context(refused)
            same(status, 503, "status for one stream more")
            for source in ("127.0.0.2", "127.0.0.3"):
                taken, status = stream(source)
                streams.enter_context(taken)
                same(status, 200, f"status for {source}")
                client.exchange(target.node.port, "/healthz")
    yield "listener: one client with all event streams keeps nobody out", lambda: streamed(["127.0.0.1"] * STREAMS)
    for connections, path in ((8, "/healthz"), (64, "/healthz"), (64, "/api/history")):
        yield (f"listener: {connections} clients pipeline {path} without end",
               lambda path=path, connections=connections: flooded(path, connections))
    for name, case in web_configs(directory).items():
        yield f"listener: serves with {name}", lambda case=case: survives(*case)
