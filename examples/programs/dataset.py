"""A labelled data set in one file, train.npz or test.npz: `x` is float32 [rows, columns], `y` int64 [rows].

As a program it writes both files, as the first stage of pipeline.yaml: points around the centre of their class. Your own data
needs only the same two arrays.
"""
import argparse
import os
import pathlib

import numpy

COLUMNS = 32
CLASSES = 4


def load(directory, part):
    """Returns x and y of train or test. Raises ValueError with one line for data of another shape."""
    path = pathlib.Path(directory) / f"{part}.npz"
    with numpy.load(path) as arrays:
        missing = {"x", "y"} - set(arrays.files)
        if missing:
            raise ValueError(f"{path}: no array {sorted(missing)[0]}, found {sorted(arrays.files)}")
        x, y = arrays["x"].astype(numpy.float32), arrays["y"].astype(numpy.int64)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(f"{path}: x is {x.shape} and y {y.shape}; expected [rows, columns] and [rows]")
    return x, y


def write_atomically(path, write):
    """Calls write(file) for a new file beside `path` and renames it: a reader, on any node, sees the old file or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(new, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def main():
    options = argparse.ArgumentParser(description="Write a data set of points around the centres of their classes.")
    options.add_argument("--data", type=pathlib.Path, required=True, help="directory to write")
    options.add_argument("--rows", type=int, default=20000)
    options = options.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(1)
    centres = random.normal(size=(CLASSES, COLUMNS))
    for part, rows in (("train", options.rows), ("test", options.rows // 10)):
        y = random.integers(CLASSES, size=rows)
        x = (centres[y] + random.normal(size=(rows, COLUMNS))).astype(numpy.float32)
        write_atomically(options.data / f"{part}.npz", lambda file, x=x, y=y: numpy.savez(file, x=x, y=y))
        print(f"wrote {options.data / part}.npz: {rows} rows", flush=True)


if __name__ == "__main__":
    main()
