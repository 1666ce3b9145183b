"""Runs the programs of examples/programs with PyTorch and TensorFlow for CPUs: data, training that is interrupted and resumes, several
workers, evaluation, serving, video."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile

import outcome
from scaffold import PROGRAMS, Server

CACHE = pathlib.Path(os.environ.get("GPULET_CACHE") or pathlib.Path.home() / ".cache" / "gpulet") / "workloads"
PYTHON = "/usr/bin/python3"  # with Debian's PyTorch
TENSORFLOW = CACHE / "tensorflow" / "bin" / "python"
# PyTorch 1.13 with Python 3.11 stumbles over torchrun's default of these two: a rank that does not exist has the same effect.
ENVIRONMENT = {**os.environ, "PET_REDIRECTS": "9:1", "PET_TEE": "9:1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2",
               "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(CACHE / "video")}
LIMIT_S = 240
INTERRUPTED = 143


def run(*command, status=0, env=None):
    """The output of a program that is expected to end with `status`."""
    done = subprocess.run(list(map(str, command)), env={**ENVIRONMENT, **(env or {})}, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    outcome.same(done.returncode, status, f"{' '.join(map(str, command))}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def interrupted(command, after, number):
    """Starts it and signals it once it has printed a line that matches. SIGKILL goes to all of its processes, as when a container or
    its node dies. Returns (exit status, output)."""
    said = []
    process = subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        for line in process.stdout:
            said.append(line)
            if re.search(after, line):
                (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)
                break
        said.append(process.stdout.read())
        return process.wait(timeout=LIMIT_S), "".join(said)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_saved(said):
    return int(re.findall(r"saved step (\d+)", said)[-1])


class Programs:
    """One directory for data and checkpoints, as the shared volume."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.data = self.directory / "set"

    def data_set(self):
        run(PYTHON, PROGRAMS / "dataset.py", f"--data={self.data}", "--rows=4000")
        outcome.same(sorted(path.name for path in self.data.iterdir()), ["test.npz", "train.npz"])

    def pytorch(self, name, steps, processes=2):
        return ["torchrun", "--standalone", f"--nproc_per_node={processes}", PROGRAMS / "train_pytorch.py", f"--data={self.data}",
                f"--checkpoints={self.directory / name}", f"--steps={steps}", "--save-every=20", "--device=cpu"]

    def tensorflow(self, name, steps, *more):
        return [TENSORFLOW, PROGRAMS / "train_tensorflow.py", f"--data={self.data}", f"--checkpoints={self.directory / name}", f"--steps={steps}",
                "--save-every=20", "--device=cpu", *more]

    def pytorch_interrupted(self):
        """By SIGTERM and by SIGKILL; the result is that of a run that was never interrupted."""
        long = self.pytorch("pytorch", 1_000_000)
        status, said = interrupted(long, "saved step 40 ", signal.SIGTERM)
        assert status != 0 and "SIGTERM after step" in said, said
        first = last_saved(said)
        status, said = interrupted(long, f"saved step {first // 20 * 20 + 40} ", signal.SIGKILL)
        assert f"resumes after step {first} " in said, said
        second = last_saved(said)
        steps = second + 40
        said = run(*self.pytorch("pytorch", steps))
        resumed = int(re.search(r"resumes after step (\d+) ", said).group(1))
        outcome.between(resumed, second, steps, "the step after the kill")
        run(*self.pytorch("straight", steps))
        difference = run(PYTHON, "-c", "import sys, torch; a, b = (torch.load(p, weights_only=True) for p in sys.argv[1:]); assert a['step'] == b['step'], "
                         "(a['step'], b['step']); print(max(float((a['model'][k] - b['model'][k]).abs().max()) for k in a['model']))",
                         self.directory / "pytorch/pytorch.pt", self.directory / "straight/pytorch.pt")
        outcome.between(float(difference), 0, 1e-5, "difference of the weights from an uninterrupted run")
        left = [path.name for path in (self.directory / "straight").iterdir()]
        outcome.same(left, ["pytorch.pt"], "files beside the checkpoint")

    def evaluated(self):
        checkpoints = f"--checkpoints={self.directory / 'straight'}"
        run(PYTHON, PROGRAMS / "evaluate.py", f"--data={self.data}", checkpoints)
        result = json.loads((self.directory / "straight/evaluation.json").read_text())
        outcome.between(result["accuracy"], 0.9, 1, "accuracy")
        run(PYTHON, PROGRAMS / "evaluate.py", f"--data={self.data}", checkpoints, "--least-accuracy=1.1", status=1)

    def no_gpu(self):
        """Asked for GPUs that it cannot use, training fails instead of running on the CPU."""
        command = [word for word in self.pytorch("none", 10, 1) if word != "--device=cpu"]
        done = subprocess.run(list(map(str, command)), env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode != 0 and "process 0 of this Pod has no GPU" in done.stderr, done.stderr
        command = [word for word in self.tensorflow("none", 10) if word != "--device=cpu"]
        done = subprocess.run(list(map(str, command)), env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 1 and "TensorFlow finds no GPU" in done.stderr, done.stderr

    def tensorflow_interrupted(self):
        status, said = interrupted(self.tensorflow("tensorflow", 1_000_000, "--cpu-replicas=2"), "saved step 40 ", signal.SIGTERM)
        outcome.same(status, INTERRUPTED, said)
        assert "MirroredStrategy: 2 replicas of 1 workers" in said, said
        first = last_saved(said)
        status, said = interrupted(self.tensorflow("tensorflow", 1_000_000, "--cpu-replicas=2"), f"saved step {first // 20 * 20 + 40} ", signal.SIGKILL)
        outcome.same(status, -signal.SIGKILL, said)
        assert f"resumes after step {first} " in said, said
        second = last_saved(said)
        said = run(*self.tensorflow("tensorflow", second + 40, "--cpu-replicas=2"))
        outcome.between(int(re.search(r"resumes after step (\d+) ", said).group(1)), second, second + 40, "the step after the kill")

    def tensorflow_workers(self):
        """Two processes by TF_CONFIG; a second run of both resumes."""
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            ports = [one.getsockname()[1], other.getsockname()[1]]
        tasks = [{"type": "chief", "index": 0}, {"type": "worker", "index": 0}]
        cluster = {"chief": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}
        for steps, wanted in ((40, "starts at step 0"), (80, "resumes after step 40")):
            both = [subprocess.Popen(list(map(str, self.tensorflow("workers", steps))), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     env={**ENVIRONMENT, "TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}) for task in tasks]
            try:
                for process in both:
                    said, _ = process.communicate(timeout=LIMIT_S)
                    outcome.same(process.returncode, 0, said[-3000:])
                    assert wanted in said and "MultiWorkerMirroredStrategy: 2 replicas of 2 workers" in said, said
            finally:
                for process in both:
                    process.kill()

    def bad_data(self):
        bad = self.directory / "bad"
        bad.mkdir()
        run(PYTHON, "-c", "import sys, numpy; numpy.savez(sys.argv[1], x=[[1.0]])", bad / "train.npz")
        why = run(PYTHON, "-c", "import sys, dataset\ntry: dataset.load(sys.argv[1], 'train')\nexcept ValueError as error: print(error)", bad,
                  env={"PYTHONPATH": str(PROGRAMS)})
        outcome.same(why, f"{bad}/train.npz: no array y, found ['x']\n")

    def inference(self):
        checkpoint = f"--checkpoint={self.directory / 'straight/pytorch.pt'}"
        with Server([PYTHON, PROGRAMS / "inference.py", checkpoint, "--device=cpu", "--port=0", "--drain-s=0"], ENVIRONMENT) as one:
            one.until("/readyz", 200)
            status, answer = one.get("/predict", json.dumps({"rows": [[0.0] * 32] * 3}).encode())
            assert status == 200 and len(answer["classes"]) == 3 and answer["step"] > 0, answer
            outcome.same(one.get("/predict", json.dumps({"rows": [[0.0]]}).encode()), (400, "rows: found [1, 1], expected [any, 32]"))
            outcome.same(one.get("/predict", b"{")[0], 400)
            one.process.send_signal(signal.SIGTERM)
            outcome.same(one.end()[0], 0)
        with Server([PYTHON, PROGRAMS / "inference.py", checkpoint, "--port=0"], ENVIRONMENT) as one:
            status, said = one.end()
            assert status == 1 and "no GPU" in said, said

    def video(self):
        clip = self.directory / "clip.mp4"
        run(PYTHON, pathlib.Path(__file__).with_name("clip.py"), clip)
        with Server([PYTHON, PROGRAMS / "video.py", "--decoder=software", "--device=cpu", "--size=64", "--batch=4", "--port=0", "--drain-s=0"], ENVIRONMENT) as one:
            one.until("/readyz", 200)
            status, answer = one.get("/analyze", clip.read_bytes())
            assert status == 200 and answer["frames"] == 50 and len(answer["scores"]) == 10, answer
            # The clip becomes brighter from black to white.
            outcome.same(answer["scores"], sorted(answer["scores"]))
            outcome.between(answer["scores"][-1] - answer["scores"][0], 0.6, 1, "the rise in brightness")
            status, answer = one.get("/analyze", b"not a clip")
            assert status == 400 and answer.startswith("not a clip that FFmpeg decodes"), answer
            outcome.same(one.get("/healthz")[0], 200)


def checks(one):
    return [
        ("the data set is written", one.data_set),
        ("data of another shape is one clear line", one.bad_data),
        ("PyTorch, two processes: SIGTERM and SIGKILL, each time it resumes, to the same weights", one.pytorch_interrupted),
        ("evaluation passes and stops a pipeline", one.evaluated),
        ("TensorFlow, two replicas: SIGTERM and SIGKILL, each time it resumes", one.tensorflow_interrupted),
        ("TensorFlow, two workers by TF_CONFIG", one.tensorflow_workers),
        ("without a GPU training fails, unless it is asked for the CPU", one.no_gpu),
        ("inference answers, says what is wrong, and drains", one.inference),
        ("video is decoded and analysed", one.video),
    ]


DIRECTORY = tempfile.TemporaryDirectory(prefix="gpulet-workloads-")
CHECKS = checks(Programs(DIRECTORY.name))
