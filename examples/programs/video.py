"""Video analytics: POST /analyze with a clip (MP4, MKV, …) decodes it, runs the model on every --every-th frame in batches, and answers
{"frames": decoded, "scores": [one per analysed frame]}.

With --decoder=nvdec FFmpeg decodes on the GPU, which needs `video` in NVIDIA_DRIVER_CAPABILITIES and PyAV from version 14 on; with
--decoder=software on the CPU. --model is a TorchScript file that takes float32 [frames, 3, size, size] of 0 to 1 and returns one
number per frame; without it, a stand-in of the same shape computes the mean brightness by a convolution.
"""
import argparse
import io
import pathlib
import sys

import av
import torch
from torch import nn

import serving


class Brightness(nn.Module):
    """Stands in for a model."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 1, 1)
        nn.init.constant_(self.convolution.weight, 1 / 3)
        nn.init.zeros_(self.convolution.bias)

    def forward(self, frames):
        return self.convolution(frames).mean((1, 2, 3))


def opened(body, decoder):
    if decoder == "software":
        return av.open(io.BytesIO(body))
    from av.codec.hwaccel import HWAccel
    return av.open(io.BytesIO(body), hwaccel=HWAccel(device_type="cuda", allow_software_fallback=False))


def load(options):
    """Returns the function that answers a request."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("no GPU: see `gpulet doctor` on the node")
    model = torch.jit.load(options.model, map_location=options.device) if options.model else Brightness().to(options.device)
    model.eval()

    @torch.inference_mode()
    def infer(batch):
        frames = torch.stack([torch.frombuffer(bytearray(rgb), dtype=torch.uint8) for rgb in batch]).to(options.device)
        frames = frames.view(-1, options.size, options.size, 3).permute(0, 3, 1, 2).float() / 255
        return [round(score, 4) for score in model(frames).tolist()]

    def answer(body):
        decoded, scores, batch = 0, [], []
        try:
            with opened(body, options.decoder) as clip:
                for frame in clip.decode(video=0):
                    if decoded % options.every == 0:
                        small = frame.reformat(options.size, options.size, "rgb24")
                        batch.append(packed(small.planes[0], options.size * 3, options.size))
                    decoded += 1
                    if len(batch) == options.batch:
                        scores += infer(batch)
                        batch = []
        except (av.FFmpegError, IndexError) as error:
            raise ValueError(f"not a clip that FFmpeg decodes: {error}") from None
        return {"frames": decoded, "scores": scores + (infer(batch) if batch else [])}
    infer([bytes(options.size * options.size * 3)])  # the first call loads kernels: before the Pod is ready, not after
    return answer


def packed(plane, row_bytes, rows):
    """The plane's pixels without the padding that FFmpeg adds to each row."""
    data = bytes(plane)
    return b"".join(data[row * plane.line_size:row * plane.line_size + row_bytes] for row in range(rows))


def main():
    options = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    options.add_argument("--model", type=pathlib.Path)
    options.add_argument("--decoder", choices=("nvdec", "software"), default="nvdec")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--size", type=int, default=224, help="pixels of a frame's sides, as the model takes them")
    options.add_argument("--every", type=int, default=5, metavar="FRAMES")
    options.add_argument("--batch", type=int, default=16, metavar="FRAMES")
    serving.add_options(options)
    options = options.parse_args()
    serving.serve(options, "/analyze", lambda: load(options))
    sys.exit(0)


if __name__ == "__main__":
    main()
