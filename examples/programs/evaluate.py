"""Evaluates the checkpoint of train_pytorch.py on the test rows and writes the result as JSON. Ends with 1 below --least-accuracy, so
that a pipeline stops there. Runs on a CPU: this stage of pipeline.yaml needs no GPU."""
import argparse
import json
import pathlib
import sys

import torch

from dataset import load, write_atomically
from train_pytorch import model_of


def main():
    options = argparse.ArgumentParser(description=__doc__.partition(". ")[0])
    options.add_argument("--data", type=pathlib.Path, required=True, help="directory with test.npz")
    options.add_argument("--checkpoints", type=pathlib.Path, required=True, help="directory with pytorch.pt")
    options.add_argument("--least-accuracy", type=float, default=0.9)
    options = options.parse_args()
    x, y = map(torch.from_numpy, load(options.data, "test"))
    state = torch.load(options.checkpoints / "pytorch.pt", map_location="cpu", weights_only=True)
    model = model_of(x.shape[1], state["model"]["2.bias"].shape[0])
    model.load_state_dict(state["model"])
    with torch.inference_mode():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    result = {"step": state["step"], "rows": len(x), "accuracy": round(accuracy, 4)}
    write_atomically(options.checkpoints / "evaluation.json", lambda file: file.write(json.dumps(result).encode()))
    print(f"evaluated {json.dumps(result)}", flush=True)
    sys.exit(0 if accuracy >= options.least_accuracy else f"accuracy {accuracy:.4f} is below {options.least_accuracy}")


if __name__ == "__main__":
    main()
