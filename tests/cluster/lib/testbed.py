"""The testbed: a control plane, with nodes that run Pods, or with kwok nodes, each an object without a machine."""
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

TESTBED = pathlib.Path(__file__).resolve().parent.parent / "testbed" / "tb"
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet")


class Cluster:
    def __init__(self, env):
        self.env, self.state = env, pathlib.Path(env["TB_STATE"])

    def run(self, script, *arguments, python=sys.executable, **options):
        """Runs the script with `--inside STATE` where the control plane runs, in its network namespace."""
        return subprocess.run([TESTBED, "cp", python, script, "--inside", self.state, *arguments], env=self.env, check=False, **options)


def environment():
    """The variables that the testbed needs, with Go where scripts/bootstrap put it."""
    return {**os.environ, "PATH": f"{os.environ['PATH']}:{CACHE / 'go' / 'bin'}:/usr/local/go/bin", "PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def cluster(nodes, *programs):
    """A cluster of nodes that run Pods, removed at the end. `programs`: what to build beside Kubernetes' own."""
    env = environment()
    subprocess.run([TESTBED, "build", *programs], check=True, env=env)
    env["TB_STATE"] = tempfile.mkdtemp(prefix="gpulet-cluster-")
    try:
        subprocess.run([TESTBED, "up", str(nodes)], check=True, env=env, stdout=subprocess.DEVNULL)
        yield Cluster(env)
    finally:
        subprocess.run([TESTBED, "down"], env=env, check=False)


@contextlib.contextmanager
def kwok_cluster(nodes, gpus, *programs):
    """A cluster of `nodes` kwok nodes of `gpus` GPUs each. `programs`: as for cluster()."""
    with cluster(0, "kwok", *programs) as made:
        subprocess.run([TESTBED, "kwok", str(nodes), str(gpus)], check=True, env=made.env, stdout=subprocess.DEVNULL)
        yield made
