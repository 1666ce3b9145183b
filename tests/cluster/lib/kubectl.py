"""kubectl as the tests call it: what it printed, or an AssertionError with what it said."""
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
    told = kubectl("create", "--dry-run=client", "-o", "json", "-f", path).strip()
    items = []
    while told:  # one JSON value after the other
        item, end = json.JSONDecoder().raw_decode(told)
        items.append(item)
        told = told[end:].lstrip()
    return items
