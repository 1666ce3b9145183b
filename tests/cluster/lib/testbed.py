"""Clusters of kwok nodes for the programs that measure the scheduler extender: each node is an object without a machine."""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

TESTBED = pathlib.Path(__file__).resolve().parent.parent / "testbed" / "tb"
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet")


class KwokCluster:
    def __init__(self, env):
        self.env, self.state = env, pathlib.Path(env["TB_STATE"])

    def run(self, script, *arguments, **options):
        """Runs the script with `--inside STATE` where the control plane runs, in its network namespace."""
        return subprocess.run([TESTBED, "cp", sys.executable, script, "--inside", self.state, *arguments], env=self.env, check=False, **options)


@contextlib.contextmanager
def kwok_cluster(nodes, gpus):
    """A control plane with `nodes` kwok nodes of `gpus` GPUs each, removed at the end."""
    env = {**os.environ, "PATH": f"{os.environ['PATH']}:{CACHE / 'go' / 'bin'}:/usr/local/go/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([TESTBED, "build", "kwok"], check=True, env=env)
    env["TB_STATE"] = tempfile.mkdtemp(prefix="gpulet-kwok-")
    try:
        subprocess.run([TESTBED, "up", "0"], check=True, env=env, stdout=subprocess.DEVNULL)
        subprocess.run([TESTBED, "kwok", str(nodes), str(gpus)], check=True, env=env, stdout=subprocess.DEVNULL)
        yield KwokCluster(env)
    finally:
        subprocess.run([TESTBED, "down"], env=env, check=False)
