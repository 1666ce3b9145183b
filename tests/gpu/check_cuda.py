"""The CUDA driver API's answers to right and wrong calls, and to settings of CUDA_VISIBLE_DEVICES (cuda_calls.py)."""
import json
import sys

from machine import HERE, run
from report import between, same


def check_cuda(report, machine):
    with report.check("CUDA: every call of cuda_calls.py has an answer"):
        found = json.loads(run(sys.executable, "-B", HERE / "cuda_calls.py", env=machine.cuda_env(), limit_s=180).stdout)
        report.figure("cuda", found)
        between(len(found["codes"]), 400, 1000, "calls")
        if machine.simulated:  # a real driver may end a process that passes null; ours does not
            same({call: code for call, code in found["codes"].items() if isinstance(code, str) and code != "absent"}, {}, "ended")
