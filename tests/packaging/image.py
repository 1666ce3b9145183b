"""The image: its exact contents, reproducible bytes, and that it runs. Built twice from out/bin."""
import contextlib
import functools
import hashlib
import http.server
import json
import os
import pathlib
import queue
import re
import shlex
import ssl
import subprocess
import tarfile
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ARCHIVE = ROOT / "out" / "image" / "gpulet.tar"
SBOM = ROOT / "out" / "image" / "gpulet.spdx.json"
MAX_MB = 25  # packed and unpacked
MERGED = ("bin", "sbin", "lib", "lib64")  # links of a merged root, for parts of the host's root (driverRootPaths)
FILES = {
    "usr/bin/gpulet", "usr/bin/gpulet-hook", "usr/bin/nvidia-device-plugin", "usr/bin/gpu-feature-discovery",
    "usr/bin/mps-control-daemon", "usr/bin/config-manager", "usr/bin/dcgm-exporter",
    "usr/bin/nvidia-mig-manager", "usr/bin/nvidia-mig-parted", "usr/bin/mig-parted", "etc/passwd", "etc/group", "etc/ssl/certs/ca-certificates.crt",
    "usr/lib/ssl/cert.pem", "usr/share/sbom/gpulet.spdx.json", "lib64/ld-linux-x86-64.so.2",
    *(f"driver-root/{name}" for name in MERGED),
    *(f"lib/x86_64-linux-gnu/{name}" for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")),
}
# Libraries of scripts/packages whose files have another name.
REAL_NAMES = {"libboost-dev": "libboost1.74-dev"}


def build(umask, directory):
    """Builds the image elsewhere. Returns the archive's digest."""
    environment = {**os.environ, "TMPDIR": str(directory), "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    subprocess.run(["sh", "-c", f"umask {umask}; deploy/image/build"], cwd=ROOT, env=environment, check=True,
                   capture_output=True, text=True)
    return hashlib.sha256(ARCHIVE.read_bytes()).hexdigest(), hashlib.sha256(SBOM.read_bytes()).hexdigest()


class Image:
    """The archive as it was read: config, and the layer's members with their bytes."""

    def __init__(self, directory, path=ARCHIVE):
        self.root = directory / "root"
        with tarfile.open(path) as archive:
            def blob(digest):
                return archive.extractfile("./blobs/" + digest.replace(":", "/"))
            index = json.load(archive.extractfile("./index.json"))
            self.manifest = json.load(blob(index["manifests"][0]["digest"]))
            self.config = json.load(blob(self.manifest["config"]["digest"]))
            self.name = index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
            with tarfile.open(fileobj=blob(self.manifest["layers"][0]["digest"])) as layer:
                self.members = {member.name.removeprefix("./"): member for member in layer}
                layer.extractall(self.root, filter="tar") if hasattr(tarfile, "tar_filter") else layer.extractall(self.root)

    def start(self, *command):
        """Starts a program of the image as nobody, with the image as its root."""
        def enter():
            os.chroot(self.root)
            os.chdir("/")
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return subprocess.Popen(["/usr/bin/" + command[0], *command[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, preexec_fn=enter, env={})

    def run(self, *command):
        """(exit status, standard output, standard error)"""
        with self.start(*command) as process:
            said, complained = process.communicate(timeout=20)
        return process.returncode, said, complained


@functools.cache
def image():
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory(dir=ROOT / "out") as other:
        digests = build("022", one), build("077", other)
    directory = tempfile.TemporaryDirectory()
    made = Image(pathlib.Path(directory.name))
    made.directory, made.digests = directory, digests  # the directory lasts as long as its image
    return made


def check_same_bytes():
    return None if image().digests[0] == image().digests[1] else f"archive and list differ: {image().digests}"


def check_contents():
    files = {name for name, member in image().members.items() if not member.isdir()}
    if files != FILES:
        return f"lacks {sorted(FILES - files)}, has {sorted(files - FILES)} besides"
    links = {name: image().members[f"driver-root/{name}"].linkname for name in MERGED}
    if links != {name: f"usr/{name}" for name in MERGED}:
        return f"links of the driver root: {links}"
    owned = {name for name, member in image().members.items() if (member.uid, member.gid) != (0, 0)}
    written = {name for name, member in image().members.items() if member.mode & 0o022 and not member.issym() and name != "tmp"}
    return f"not root's: {sorted(owned)}; others may write: {sorted(written)}" if owned or written else None


def check_size():
    packed, unpacked = ARCHIVE.stat().st_size, sum(member.size for member in image().members.values())
    if max(packed, unpacked) <= MAX_MB * 1e6:
        return None
    return f"{packed / 1e6:.1f} MB packed, {unpacked / 1e6:.1f} MB unpacked, at most {MAX_MB}"


def check_config():
    version = re.search(r"^project\(gpulet VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]
    wanted = {"Entrypoint": ["/usr/bin/gpulet"], "Cmd": ["agent"], "Env": ["PATH=/usr/bin"], "User": "0:0",
              "Labels": {"org.opencontainers.image.title": "gpulet", "org.opencontainers.image.version": version,
                         "org.opencontainers.image.licenses": "Apache-2.0"}}
    if image().config["config"] != wanted or image().name != f"localhost/gpulet:{version}":
        return f"{image().name}: {image().config['config']}"
    said = dockerfile_config(-1)
    return None if said == wanted else f"deploy/image/Dockerfile says {said}"


def dockerfile_config(stage):
    """The settings of a stage of the Dockerfile, as in an image's config."""
    said = {"Labels": {}, "Env": []}
    for word, rest in re.findall(r"^([A-Z]+) (.*)$", (ROOT / "deploy/image/Dockerfile").read_text().split("\nFROM ")[stage], re.MULTILINE):
        if word == "LABEL":
            said["Labels"].update([shlex.split(rest)[0].split("=", 1)])
        elif word in ("ENTRYPOINT", "CMD"):
            said[word.capitalize()] = json.loads(rest)
        elif word == "ENV":
            said["Env"].append(rest)
        elif word == "USER":
            said["User"] = rest
    return said


def check_runs_without_rights():
    for name, version in (("gpulet", "version"), ("gpulet-hook", "--version")):
        status, said, complained = image().run(name, version)
        if status != 0 or not said.startswith(f"{name} "):
            return f"{name} exits {status} and says {said!r} {complained!r}"
    status, said, complained = image().run("gpulet", "list")
    return None if status != 0 and "libnvidia-ml" in complained else f"without a driver list says {said!r} {complained!r}"


def check_bundle():
    """Contains exactly Debian's CA certificates."""
    listed = subprocess.run(["dpkg-query", "-L", "ca-certificates"], check=True, capture_output=True, text=True).stdout
    wanted = {ssl.PEM_cert_to_DER_cert(pathlib.Path(path).read_text()) for path in listed.splitlines() 
              if path.startswith("/usr/share/ca-certificates/") and path.endswith(".crt")}
    context = ssl.create_default_context(cafile=image().root / "etc/ssl/certs/ca-certificates.crt")
    bundle = (image().root / "etc/ssl/certs/ca-certificates.crt").read_text()
    held = {ssl.PEM_cert_to_DER_cert(text) for text in re.findall(r"-----BEGIN.*?-----END CERTIFICATE-----", bundle, re.DOTALL)}
    if held != wanted or len(held) < 100 or context.cert_store_stats()["x509_ca"] < 100:
        return f"{len(held)} certificates, of which {len(held & wanted)} are of Debian's {len(wanted)}"
    return None


@contextlib.contextmanager
def api_server(directory, listener=None):
    """Serves HTTPS with a self-signed certificate, on a listening socket where one is given: nothing is found. Returns (certificate, port,
    queue of the requests as "METHOD path")."""
    requests = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.put(f"{self.command} {self.path}")
            self.send_error(404)

        do_DELETE = do_PATCH = do_POST = do_GET

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):
            """The client ended before the response was sent."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=a test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", directory / "key", "-out",
                    directory / "cert"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert", directory / "key")
    server = Server(("127.0.0.1", 0), Handler)
    if listener:
        server.socket.close()
        server.socket, server.server_address = listener, listener.getsockname()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield (directory / "cert").read_text(), server.server_address[1], requests
    finally:
        server.shutdown()
        server.server_close()


def check_trust():
    """A program of the image trusts exactly its CA certificates."""
    with tempfile.TemporaryDirectory() as directory, api_server(pathlib.Path(directory)) as (certificate, port, requests):
        kubeconfig = {"clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
                      "users": [{"name": "u", "user": {"token": "t"}}],
                      "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
        (image().root / "kubeconfig").write_text(json.dumps(kubeconfig))
        def explain():
            return image().start("gpulet", "explain", "--kubeconfig", "/kubeconfig", "--service", "", "a-pod")
        with explain() as stranger:  # it would retry forever
            complaint = stranger.stderr.readline()
            stranger.kill()
        if not requests.empty() or "not trusted" not in complaint:
            return f"for an untrusted server it reports {complaint!r}"
        with open(image().root / "etc/ssl/certs/ca-certificates.crt", "a", encoding="utf-8") as bundle:
            bundle.write(certificate)
        with explain() as known:
            with contextlib.suppress(queue.Empty):
                requests.get(timeout=20)
                return known.kill()
            known.kill()
            return f"of a server that the bundle vouches for it says {known.stderr.read()!r}"


def check_sbom():
    text = (image().root / "usr/share/sbom/gpulet.spdx.json").read_text()
    document = json.loads(text)
    if text != SBOM.read_text() or document["spdxVersion"] != "SPDX-2.3":
        return "is not the one beside the archive, or not SPDX 2.3"
    packages = {each["name"]: each for each in document["packages"]}
    section = (ROOT / "scripts/packages").read_text().split("[build]")[1].split("[test]")[0]
    installed = {REAL_NAMES.get(name, name) for name in section.split() if name.endswith("-dev")}
    missing = {*installed, "libc6", "ca-certificates", "libstdc++-12-dev", "nvidia-nvml-dev"} - set(packages)
    if missing:
        return f"names no {', '.join(sorted(missing))}"
    for name, each in packages.items():
        if not each["licenseDeclared"] or not each["externalRefs"][0]["referenceLocator"].startswith("pkg:"):
            return f"{name} has no licence or no package URL"
    for file in document["files"]:
        data = (image().root / file["fileName"]).read_bytes()
        if hashlib.sha256(data).hexdigest() not in [each["checksumValue"] for each in file["checksums"]]:
            return f"{file['fileName']} has another digest"
    known = {"SPDXRef-DOCUMENT", *(each["SPDXID"] for each in document["packages"] + document["files"])}
    related = {each[end] for each in document["relationships"] for end in ("spdxElementId", "relatedSpdxElement")}
    return None if related == known else f"relates {sorted(related ^ known)} wrongly"


def check_object_anywhere():
    """A source compiled in another directory gives the same object, including debug information: no path, time or randomness."""
    commands = json.loads((ROOT / "out/build/release/compile_commands.json").read_text())
    # The release compiles files in batches: the command of base's batch, on one of its files.
    unit = next(each for each in commands if "/gpulet_base.dir/" in each["file"])
    command = re.sub(r"^.*?ccache\S* ", "", unit["command"]).replace(unit["file"], str(ROOT / "src/base/text.cpp"))
    objects, build = [], pathlib.Path("out/build/release")
    with tempfile.TemporaryDirectory() as directory:
        elsewhere = pathlib.Path(directory) / "another" / "directory"
        (elsewhere / build).mkdir(parents=True)
        subprocess.run(["cp", "-r", ROOT / "src", elsewhere], check=True)
        for root, made in ((ROOT, pathlib.Path(directory) / "one.o"), (elsewhere, pathlib.Path(directory) / "other.o")):
            moved = [part.replace(str(ROOT), str(root)) for part in shlex.split(command)]
            moved[moved.index("-o") + 1] = str(made)
            subprocess.run([*moved, "-g"], cwd=root / build, check=True, capture_output=True, text=True, timeout=100)
            objects.append(made.read_bytes())
    return None if objects[0] == objects[1] else "src/base/text.cpp compiled twice gives two objects"


CHECKS = [
    ("image: reproducible", check_same_bytes), ("image: contents", check_contents), ("image: size", check_size),
    ("image: config", check_config), ("image: runs unprivileged", check_runs_without_rights),
    ("image: certificates", check_bundle), ("image: trusted CAs", check_trust), ("image: SBOM", check_sbom),
    ("objects: reproducible", check_object_anywhere),
]
