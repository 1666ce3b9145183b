"""Resource usage of a process, read from outside: memory by backing, descriptors, threads, child processes."""
import collections
import os
import pathlib
import re
import statistics
import time

from lib.kube import until

COUNTED = ("descriptors", "threads", "children", "mapped KiB")
THREADS_HEAP_ALIGNED = 64 << 20  # glibc's HEAP_MAX_SIZE
HEADINGS = ("RSS KiB", "file KiB", "anonymous KiB", "in use KiB", "lines KiB", *COUNTED)


class Sample:
    """Usage of a process at one moment, by HEADINGS; the caller adds "in use" and "lines"."""

    def __init__(self, pid):
        self.at = time.monotonic()
        directory = pathlib.Path(f"/proc/{pid}")
        rollup = (directory / "smaps_rollup").read_text()
        resident, anonymous = (int(re.search(rf"^{name}:\s+(\d+)", rollup, re.M)[1]) for name in ("Rss", "Anonymous"))
        self.values = {"RSS KiB": resident, "file KiB": resident - anonymous, "anonymous KiB": anonymous,
                       "descriptors": len(os.listdir(directory / "fd")), "threads": len(os.listdir(directory / "task")),
                       "children": len(children(pid)), "mapped KiB": mapped_files(pid) // 1024}


def mappings(pid):
    """(from, to, rights, name) of each."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, rights, _, _, _, *name = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in where.split("-"))
        yield first, last, rights, "".join(name)


def mapped_files(pid):
    return sum(last - first for first, last, _, name in mappings(pid) if name.startswith("/"))


def heap_in_use(pid):
    """Allocated bytes of the main heap, plus the whole size of the threads' heaps (a small part); None if the heap changes meanwhile.

    The main heap is a sequence of chunks. The second word of a chunk is its length; the lowest bit shows whether the previous chunk is in
    use. The last chunk is the unused top. Source: glibc 2.36, malloc/malloc.c, "chunk" in its head comment; malloc/arena.c.
    """
    here = list(mappings(pid))
    first, last = next((first, last) for first, last, _, name in here if name == "[heap]")
    others = sum(end - start for start, end, rights, name in here if not name and rights == "rw-p" and start % THREADS_HEAP_ALIGNED == 0)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(first)
        words = memoryview(memory.read(last - first)).cast("Q")
    at, used = 0, 0
    while True:
        length = (words[at + 1] & ~7) // 8
        after = at + length
        if length < 4 or length % 2 or after > len(words):
            return None
        if after == len(words):
            return 8 * used + others
        used += length if words[after + 1] & 1 else 0
        at = after


def steady_in_use(pid):
    return until("the heap can be read", lambda: heap_in_use(pid), 10, 0.05) / 1024


def children(pid):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            pass  # the process has just ended
    return found


def descriptors(pid):
    """The targets of descriptors, without the numbers that distinguish descriptors of one kind."""
    found = collections.Counter()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            found[re.sub(r"\[\d+\]", "", os.readlink(link))] += 1
        except OSError:
            pass  # closed meanwhile
    return found


def medians(samples):
    return {heading: statistics.median(sample.values[heading] for sample in samples) for heading in HEADINGS}


def slope_a_minute(samples, heading):
    """The median of the slopes between any two points (Theil-Sen): robust against outliers."""
    pairs = [(b.values[heading] - a.values[heading], b.at - a.at) for number, a in enumerate(samples) for b in samples[number + 1:]]
    return 60 * statistics.median(more / seconds for more, seconds in pairs if seconds > 1)
