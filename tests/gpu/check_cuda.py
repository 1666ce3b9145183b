"""The CUDA driver API's answers to right and wrong calls, and to settings of CUDA_VISIBLE_DEVICES (cuda_calls.py)."""
import json
import sys

from machine import HERE, run
from report import Skip, between


def check_cuda(report, machine):
    with report.check("CUDA: every call of cuda_calls.py has an answer"):
        if machine.simulated:
            raise Skip("needs CUDA, which the simulated driver does not have")
        found = json.loads(run(sys.executable, "-B", HERE / "cuda_calls.py", limit_s=180).stdout)
        report.figure("cuda", found)
        between(len(found["codes"]), 200, 1000, "calls")
