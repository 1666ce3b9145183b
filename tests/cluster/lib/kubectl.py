"""Runs kubectl. Returns its output, or raises an AssertionError with its message."""
import json
import subprocess


def kubectl(*arguments, text=None, items=None):
    """`text`, or objects as a list, is its standard input."""
    if items is not None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    done = subprocess.run(["kubectl", *map(str, arguments)], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"kubectl {' '.join(map(str, arguments[:4]))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def manifest(path):
    """The objects of a file, as kubectl reads it."""
    return objects(kubectl("create", "--dry-run=client", "-o", "json", "-f", path))


def objects(text):
    """The objects that kubectl has printed, one JSON value after the other."""
    items, text = [], text.strip()
    while text:
        item, end = json.JSONDecoder().raw_decode(text)
        items.append(item)
        text = text[end:].lstrip()
    return items
