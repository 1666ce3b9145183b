"""Runs the GoogleTest programs of a build tree, many tests in one process, and collects each test's outcome.

A process for each of some thousand sanitized tests spends more time starting than testing. Tests run in chunks, as many
in parallel as there are cores. A test that ends its process fails; the rest of its chunk runs in another process.
"""
import concurrent.futures
import os
import re
import signal
import subprocess
import xml.etree.ElementTree
from dataclasses import dataclass

CHUNK_TESTS = 60
# Programs whose tests take seconds or minutes each: small chunks keep all cores busy to the end.
SMALL_CHUNKS = {"tests_seeded_test": 2, "sim_schedule_test": 1, "tests_sim_test": 8, "scheduler_test": 20, "cli_test": 20, "web_test": 20}
CHUNK_LIMIT_S = 600
RAN = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)


@dataclass
class Failure:
    name: str
    output: list  # lines


def programs(directory):
    """The test programs that CTest knows, from the files of CMake's gtest_discover_tests."""
    found = (path.parent / path.name.removesuffix("[1]_include.cmake") for path in directory.rglob("*_test[[]1[]]_include.cmake"))
    return sorted(path for path in found if path.exists())


def list_tests(program, root, env):
    listed = subprocess.run([program, "--gtest_list_tests"], cwd=root, env=env, capture_output=True, text=True, check=True,
                            timeout=60).stdout
    suite, tests = "", []
    for line in listed.splitlines():
        name = line.split("#")[0].rstrip()
        if name and not line.startswith(" "):
            suite = name
        elif name and suite:
            tests.append(suite + name.strip())
    return tests


def run_process(program, tests, report, root, env):
    """(exit status, output). Kills the whole process group if it exceeds its time limit."""
    command = [program, f"--gtest_filter={':'.join(tests)}", f"--gtest_output=xml:{report}"]
    process = subprocess.Popen(command, cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        output = process.communicate(timeout=CHUNK_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0] + f"\nran longer than {CHUNK_LIMIT_S} s"
    return process.returncode, output


def run_chunk(program, tests, report, root, env):
    """(passed, failures) of the tests, each in one process with those before it unless one of them ended it."""
    passed, failures, left = [], [], list(tests)
    while left:
        report.unlink(missing_ok=True)
        status, output = run_process(program, left, report, root, env)
        if report.exists():
            ran = set()
            for case in xml.etree.ElementTree.parse(report).iter("testcase"):
                name = f"{case.get('classname')}.{case.get('name')}"
                if name not in left:
                    continue
                ran.add(name)
                if case.get("result") == "completed" and case.find("failure") is None:
                    passed.append(name)
                else:
                    why = [line for failure in case.iter("failure") for line in (failure.text or "").splitlines()]
                    failures.append(Failure(name, why or [f"did not run: {case.get('result')}"]))
            failures += [Failure(name, ["did not run"]) for name in left if name not in ran]
            if status != 0 and not failures:  # a sanitizer's finding at process exit, as from LeakSanitizer
                failures.append(Failure(f"{program.name} after {tests[0]} and {len(tests) - 1} more", output.splitlines()))
            break
        started = [name for name in RAN.findall(output) if name in left]
        if not started:
            failures += [Failure(name, output.splitlines()) for name in left]
            break
        for name in started[:-1]:
            if f"[       OK ] {name}" in output:
                passed.append(name)
            else:
                failures.append(Failure(name, output.splitlines()))
        failures.append(Failure(started[-1], output.splitlines()))
        left = left[left.index(started[-1]) + 1:]
    return passed, failures


def run_tests(directory, root, libraries, excluded, jobs, env, log):
    """(passed test names, failures) of all programs, or those of some libraries; `excluded` is a pattern of names."""
    environment = {**os.environ, **env}
    chunks = []
    for program in programs(directory):
        if libraries and program.name.removesuffix("_test") not in libraries:
            continue
        tests = [name for name in list_tests(program, root, environment) if not (excluded and re.search(excluded, name))]
        size = SMALL_CHUNKS.get(program.name, CHUNK_TESTS)
        # Tests stay in the order of their program, so that fixtures of a suite are set up once.
        chunks += [(program, tests[at:at + size]) for at in range(0, len(tests), size)]
    reports = directory / "gtest"
    reports.mkdir(exist_ok=True)
    chunks.sort(key=lambda chunk: chunk[0].name not in SMALL_CHUNKS)  # the slow ones first
    passed, failures = [], []
    with concurrent.futures.ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [pool.submit(run_chunk, program, tests, reports / f"{number}.xml", root, environment)
                   for number, (program, tests) in enumerate(chunks)]
        for future, (program, tests) in zip(futures, chunks):
            good, bad = future.result()
            passed += good
            failures += bad
            log.write(f"{program.name}: {len(good)} passed, {len(bad)} failed, from {tests[0]}\n")
            log.flush()
    return passed, failures
