"""Serves the classifier that train_pytorch.py has trained: POST /predict with {"rows": [[…], …]} answers {"classes": […], "step": N}."""
import argparse
import json
import pathlib
import sys

import torch

import serving
from train_pytorch import model_of


def load(options):
    """Loads and warms the model. Returns the function that answers a request."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("no GPU: see `gpulet doctor` on the node")
    state = torch.load(options.checkpoint, map_location=options.device, weights_only=True)
    columns, classes = state["model"]["0.weight"].shape[1], state["model"]["2.bias"].shape[0]
    model = model_of(columns, classes).to(options.device)
    model.load_state_dict(state["model"])
    model.eval()
    print(f"model of step {state['step']} on {options.device}: {columns} columns, {classes} classes", flush=True)

    @torch.inference_mode()
    def answer(body):
        try:
            rows = torch.tensor(json.loads(body)["rows"], dtype=torch.float32, device=options.device)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f'expected {{"rows": [[number, …], …]}}: {error}') from None
        if rows.dim() != 2 or rows.shape[1] != columns:
            raise ValueError(f"rows: found {list(rows.shape)}, expected [any, {columns}]")
        return {"classes": model(rows).argmax(1).tolist(), "step": state["step"]}
    answer(json.dumps({"rows": [[0.0] * columns]}))  # the first call loads kernels: before the Pod is ready, not after
    return answer


def main():
    options = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    options.add_argument("--checkpoint", type=pathlib.Path, required=True)
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    serving.add_options(options)
    options = options.parse_args()
    serving.serve(options, "/predict", lambda: load(options))
    sys.exit(0)


if __name__ == "__main__":
    main()
