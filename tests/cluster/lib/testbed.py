"""The testbed: a control plane, with nodes that run Pods, or with kwok nodes, each an object without a machine."""
import argparse
import contextlib
import importlib
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


def run_script(script, description, nodes, module, **options):
    """The command line of a script with a cluster of its own: `options` are its numbers with their defaults. Calls inside(state, **options)
    of `lib.<module>` where the control plane runs. Returns the exit status."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--inside", type=pathlib.Path, help=argparse.SUPPRESS)
    chosen = vars(parser.parse_args())
    state = chosen.pop("inside")
    if state:
        return importlib.import_module(f"lib.{module}").inside(state, **chosen)  # has what only the virtual environment has
    words = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    with cluster(nodes) as made:
        return made.run(script, *words, python=CACHE / "venv" / "bin" / "python").returncode
