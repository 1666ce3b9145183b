#!/usr/bin/python3
"""The pages in Debian's Chromium, driven by Playwright: the node page against the listener as the agent runs it (page_server.cpp)
and against the agent that ships on a simulated node (live.py), the cluster page of the scheduler that ships (cluster.py).

  tests/web/run.py [--program out/build/asan/tests/page_server] [--bin out/bin] [--only NAME...] [--screenshots DIRECTORY]

The listener's documents are those of src/agent/observe/page_json_test.cpp (tests/golden/web), with this moment's times.
A line `ok NAME` or `FAIL NAME: why` for each check, at the end `N passed, N failed`.
"""
import argparse
import copy
import json
import math
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "web"
CACHE = pathlib.Path(os.environ.get("GPULET_CACHE", pathlib.Path.home() / ".cache" / "gpulet"))
VENV = CACHE / "venv"
if pathlib.Path(sys.prefix) != VENV and (VENV / "bin" / "python").exists():
    os.execv(VENV / "bin" / "python", [str(VENV / "bin" / "python"), *sys.argv])  # where scripts/bootstrap put Playwright

from playwright.sync_api import sync_playwright  # noqa: E402

import cluster  # noqa: E402
import features  # noqa: E402
import live  # noqa: E402
from view import BADGE, LIMIT_MS, WIDTHS, WORDS, View  # noqa: E402

CHROMIUM = "/usr/bin/chromium"
GOLDEN_NOW_MS = 1_760_000_000_000
TIMES = {"at", "since", "due", "opened", "last"}


def shifted(value, by):
    """Returns the document with its times moved by this many milliseconds."""
    if isinstance(value, list):
        return [shifted(item, by) for item in value]
    if isinstance(value, dict):
        return {key: item + by if key in TIMES and isinstance(item, int) else shifted(item, by) for key, item in value.items()}
    return value


def golden(name):
    return shifted(json.loads((GOLDEN / name).read_text()), int(time.time() * 1000) - GOLDEN_NOW_MS)


def sample(node, at=None, **of_all):
    """Returns a sample document: each GPU slightly different, deterministic in time."""
    at = at or int(time.time() * 1000)
    gpus = {}
    for gpu in node["gpus"]:
        wave = (1 + math.sin(at / 40_000 + gpu["index"])) / 2
        gpus[gpu["uuid"]] = {"util": round(20 + 75 * wave), "memory_util": round(50 * wave), "memory": round(gpu["memory"] * (0.3 + 0.5 * wave)),
                             "temperature": round(38 + 30 * wave), "memory_temperature": round(42 + 30 * wave),
                             "power": round(90 + 560 * wave, 1), "power_limit": 700, "sm_clock": 1980, "memory_clock": 2619, **of_all}
    return {"at": at, "gpus": gpus}


class Server:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.watchers = queue.Queue()
        self.port = int(self.process.stdout.readline().split()[1])
        threading.Thread(target=self.listen, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.port}/"

    def listen(self):
        for line in self.process.stdout:
            self.watchers.put(int(line.split()[1]))

    def tell(self, what, document=None):
        self.process.stdin.write(what + (" " + json.dumps(document) if document is not None else "") + "\n")
        self.process.stdin.flush()

    def has(self, at):
        """Waits until the sample of that time is served."""
        deadline = time.monotonic() + LIMIT_MS / 1000
        while True:
            try:
                if json.load(urllib.request.urlopen(self.url + "api/now", timeout=20))["at"] == at:
                    return
            except urllib.error.HTTPError:
                pass  # it has received nothing yet
            assert time.monotonic() < deadline, "the sample does not come"

    def hears(self, count):
        deadline = time.monotonic() + LIMIT_MS / 1000
        while True:
            if self.watchers.get(timeout=max(0.01, deadline - time.monotonic())) == count:
                return

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=20) == 0


CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


class Bench:
    def __init__(self, browser, program):
        self.browser, self.server = browser, Server(program)
        self.node = golden("node-healthy.json")
        self.server.tell("node", self.node)
        now = int(time.time() * 1000)
        for age in range(900_000, -1, -5_000):  # a quarter of an hour
            self.server.tell("now", sample(self.node, now - age))
            if age % 100_000 == 0:
                self.server.has(now - age)  # a burst would be thinned: only the newest is sent
        self.views = []

    sample, golden = staticmethod(sample), staticmethod(golden)

    def view(self, width=1440, **options):
        self.views.append(View(self.browser, self.server.url, width, **options))
        return self.views[-1].open()

    def close(self):
        for view in self.views:
            view.close()
        self.server.close()


@check
def load_shows_within_a_second(bench):
    view = bench.view()
    assert view.page.title() == "gpu-node-1 · GPUs · gpulet"
    assert view.page.locator(".card").count() == 8
    assert "NVIDIA H100 80GB HBM3" in view.card(3).inner_text()
    view.waits("() => document.getElementById('link').textContent === 'Live'", LIMIT_MS)
    now = sample(bench.node)
    now["gpus"][bench.node["gpus"][3]["uuid"]].update(util=77, power=612.0, temperature=81)
    bench.server.tell("now", now)
    for words in (["util", "77 %"], ["power", "612 / 700 W"], ["temperature", "81 °C"]):
        view.waits(WORDS, argument=[3, *words])
    # An unreadable GPU has no values; the others do.
    del now["gpus"][bench.node["gpus"][4]["uuid"]]
    now["at"] += 1
    bench.server.tell("now", now)
    view.waits(WORDS, argument=[4, "util", "–"])
    view.waits(WORDS, argument=[3, "util", "77 %"])
    assert view.page.locator("#tiles a").nth(3).inner_text().split() == ["GPU", "3", "77", "%"]


@check
def fault_and_heal_show_within_a_second(bench):
    view = bench.view()
    bench.server.tell("node", golden("node-broken.json"))
    view.waits(BADGE, argument=[2, "lost"])
    text = view.card(2).inner_text()
    assert "XID 79: GPU has fallen off the bus" in text and "Comes back: when the node was rebooted" in text, text
    assert view.card(2).get_attribute("data-tone") == "bad"
    assert view.page.locator("#announcements").inner_text().startswith("GPU 2 is lost: XID 79")
    assert "healthy → lost" in view.page.locator("#timeline").inner_text()
    assert "GPUUnhealthy" in view.page.locator("#events li").first.inner_text()
    assert view.card(1).locator(".badge").inner_text() == "healthy"
    bench.server.tell("node", bench.node)
    view.waits(BADGE, argument=[2, "healthy"])
    assert view.card(2).locator(".why").is_hidden()


@check
def an_excluded_gpu_names_its_rule(bench):
    view = bench.view()
    changed = copy.deepcopy(bench.node)
    changed["gpus"][3].update(offered=False, excluded="is excluded by the rule at x.yaml:3:5")
    bench.server.tell("node", changed)
    view.waits("() => !document.querySelectorAll('.card')[3].querySelector('.why').hidden")
    assert view.card(3).locator(".why").inner_text().strip() == "GPU 3 is excluded by the rule at x.yaml:3:5"
    assert view.card(3).locator(".badge").inner_text() == "healthy"
    assert view.card(2).locator(".why").is_hidden()
    bench.server.tell("node", bench.node)
    view.waits("() => document.querySelectorAll('.card')[3].querySelector('.why').hidden")


@check
def mig_devices_lie_where_they_are(bench):
    view = bench.view()

    def places():
        area = view.card(6).locator(".slices").bounding_box()
        boxes = [item.bounding_box() for item in view.card(6).locator(".slices li").all()]
        slice_width = area["width"] / 8
        return [(round((box["x"] - area["x"]) / slice_width, 1), round(box["width"] / slice_width, 1), round(box["y"])) for box in boxes]
    before = places()
    assert [round(start) for start, _, _ in before] == [4, 0, 0, 2], before
    assert [round(size) for _, size, _ in before] == [4, 2, 2, 1], before
    assert before[1][2] != before[2][2], "two compute instances of one GPU instance hide each other"
    assert "team-b/notebook" in view.card(6).locator(".slices li").first.inner_text()
    changed = copy.deepcopy(bench.node)
    mig = changed["gpus"][6]["mig"]["devices"]
    mig[:] = [{**mig[0], "profile": "1g.10gb", "start": start, "size": 1, "uuid": f"MIG-{start}", "index": start} for start in range(7)]
    changed["gpus"][6]["holders"] = []
    bench.server.tell("node", changed)
    view.waits("() => document.querySelectorAll('.card')[6].querySelectorAll('.slices li').length === 7")
    assert [round(start) for start, _, _ in places()] == list(range(7))


@check
def lines_go_on_over_a_reload(bench):
    view = bench.view()
    points = "() => document.querySelector('[data-series=util] path:not(.area):not(.grid)')?.getAttribute('d').split('L').length"
    view.waits(f"() => ({points})() > 20", LIMIT_MS)
    before = view.page.evaluate(points)
    view.page.reload()
    view.waits(f"(n) => ({points})() >= n", LIMIT_MS, before)


@check
def only_what_changed_is_drawn(bench):
    node = copy.deepcopy(bench.node)
    for gpu in node["gpus"]:  # 8 GPUs of 48 shares, each held
        gpu["mig"], gpu["shares"] = None, [f"{gpu['uuid']}::{i}" for i in range(48)]
        gpu["holders"] = [{"device": device, "uuid": gpu["uuid"], "namespace": "team", "pod": f"pod-{i}", "container": "c",
                           "resource": "nvidia.com/gpu.shared"} for i, device in enumerate(gpu["shares"])]
    bench.server.tell("node", node)
    view = bench.view()
    view.waits("() => document.querySelectorAll('.shares i.held').length === 384", LIMIT_MS)
    view.page.evaluate("""() => {
        window.drawn = { added: 0, cards: new Set(), slow: 0 };
        new MutationObserver((all) => all.forEach((change) => {
          change.addedNodes.forEach((added) => { if (added.nodeType === 1) ++window.drawn.added; });
          const card = change.target.nodeType === 1 ? change.target.closest('.card') : null;
          if (card && change.addedNodes.length > 0 && change.addedNodes[0].nodeType === 1) window.drawn.cards.add(card.dataset.uuid);
        })).observe(document.body, { childList: true, subtree: true });
        new PerformanceObserver((list) => { window.drawn.slow += list.getEntries().length; }).observe({ type: 'longtask' });
      }""")
    for i in range(20):
        now = sample(node)
        now["gpus"][node["gpus"][0]["uuid"]]["util"] = i
        bench.server.tell("now", now)
        view.waits(WORDS, argument=[0, "util", f"{i} %"])
    assert view.page.evaluate("() => window.drawn.added") == 0, "a sample makes new elements"
    assert view.page.evaluate("() => window.drawn.slow") <= 2, "samples keep the browser busy"
    broken = copy.deepcopy(node)
    broken["gpus"][5].update(state="quarantined", reason="XID 48: double bit error", offered=False)
    bench.server.tell("node", broken)
    view.waits(BADGE, argument=[5, "quarantined"])
    assert view.page.evaluate("() => [...window.drawn.cards]") == [node["gpus"][5]["uuid"]], "other cards were redrawn"


@check
def a_lost_connection_comes_back(bench):
    view = bench.view()
    bench.server.hears(1)
    view.waits("() => document.getElementById('link').textContent === 'Live'", LIMIT_MS)
    bench.server.tell("kill")
    view.waits("() => document.getElementById('link').dataset.link === 'lost'")
    view.wrong.clear()  # the browser reports a closed connection
    view.waits("() => document.getElementById('link').textContent === 'Live'", LIMIT_MS)
    bench.server.tell("now", sample(bench.node, util=33))
    view.waits(WORDS, argument=[0, "util", "33 %"])
    view.wrong.clear()
    view.waits("() => document.getElementById('link').textContent.startsWith('No sample for')", LIMIT_MS)


@check
def the_agent_hears_who_watches(bench):
    view = bench.view()
    bench.server.hears(1)
    view.close()
    bench.views.remove(view)
    bench.server.hears(0)


@check
def beyond_sixteen_watchers_the_page_asks_now_and_then(bench):
    watching = [urllib.request.urlopen(bench.server.url + "api/events", timeout=20) for _ in range(16)]
    view = bench.view()
    view.waits("() => document.getElementById('link').textContent.startsWith('Too many watch')", LIMIT_MS)
    assert view.page.locator(".card").count() == 8
    view.wrong.clear()  # the browser reports status 503
    for one in watching:
        one.close()
    view.waits("() => document.getElementById('link').textContent === 'Live'", LIMIT_MS)
    view.wrong.clear()


@check
def texts_of_others_are_only_texts(bench):
    node = copy.deepcopy(bench.node)
    evil = "<img src=x onerror=alert(1)>\"'&lt;"
    node["gpus"][0]["holders"] = [{"device": node["gpus"][0]["shares"][0], "uuid": node["gpus"][0]["uuid"], "namespace": evil, "pod": evil,
                                   "container": evil, "resource": evil}]
    node["events"].append({"at": 1, "severity": "warning", "reason": evil, "message": "</script><script>alert(1)</script>"})
    node["name"] = node["config"] = evil
    view = bench.view()
    view.page.on("dialog", lambda dialog: view.wrong.append("a dialog"))
    bench.server.tell("node", node)
    view.waits("(t) => document.querySelector('.card .holders').textContent.includes(t)", argument=evil)
    assert view.page.locator("main img, main script").count() == 0


@check
def keyboard_alone_will_do(bench):
    view = bench.view()
    view.page.keyboard.press("Tab")
    assert view.page.evaluate("document.activeElement.className") == "skip"
    view.page.keyboard.press("Enter")
    assert view.page.evaluate("document.activeElement.id") == "gpus"
    view.page.locator("#tiles a").nth(4).focus()
    view.page.keyboard.press("Enter")
    assert view.page.evaluate("document.activeElement.id") == f"gpu-{bench.node['gpus'][4]['uuid']}"
    view.page.locator("#matrix summary").focus()
    view.page.keyboard.press("Enter")
    view.waits("() => document.getElementById('matrix').open")
    cells = view.page.locator("#matrix-table td").all_inner_texts()
    assert cells.count("NV18") == 56 and cells.count("X") == 8, cells


@check
def nothing_moves_for_who_wants_that(bench):
    view = bench.view(reduced_motion="reduce")
    assert view.page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert view.page.evaluate("document.getAnimations().length") == 0


@check
def no_width_cuts_anything_off(bench):
    bench.server.tell("node", golden("node-broken.json"))
    for width in WIDTHS:
        view = bench.view(width)
        wide = view.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} pixels wide on {width}"


@check
def axe_finds_nothing(bench):
    import axe_playwright_python
    axe = (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
    bench.server.tell("node", golden("node-broken.json"))
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            view = bench.view(width, color_scheme=scheme, bypass_csp=True)
            view.page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
            view.page.evaluate(axe)
            found = view.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            reported = [f"{item['id']}: {item['help']} ({item['nodes'][0]['html'][:120]}; {len(item['nodes'])}×)" for item in found]
            assert not reported, f"{width} {scheme}: {reported}"


PAGE = ROOT / "src/web/page"
# Every text that the page can say and find in the dictionary, also those that it says by a variable.
SAID = re.compile(r"say\('([^']+)'")
STATES = ("healthy", "unmonitored", "degraded", "recovering", "draining", "quarantined", "lost", "cordoned")


@check
def chinese_readers_get_chinese(bench):
    script, words = "\n".join(path.read_text() for path in PAGE.glob("*.js") if path.name != "cluster.js"), json.loads((PAGE / "chinese.json").read_text())
    shown = {text for line in script.splitlines() if line.startswith("  ['") for text in re.findall(r"^  \['\w+', '(\w+)'", line)}
    shown |= set(re.findall(r"\[\d+, '([^']+)'\]", script))
    html = re.sub(r"<(noscript|title|footer)\b.*?</\1>", "", (PAGE / "page.html").read_text(), flags=re.DOTALL)
    shown |= {text.strip() for text in re.findall(r">([^<>]+)<|aria-label=\"([^\"]+)\"", html) for text in text if text.strip() not in ("", "GPUs")}
    shown |= set(re.findall(r"this\.numbers\['([^']+)'\]", script)) | set(STATES) | set(SAID.findall(script))
    missing = sorted(text for text in shown if text not in words)
    assert not missing, f"chinese.json lacks {missing}"
    for text, translated in words.items():
        assert sorted(re.findall(r"\{\d\}", text)) == sorted(re.findall(r"\{\d\}", translated)), text
    view = bench.view(locale="zh-CN")
    view.waits("() => document.getElementById('link').textContent === '实时'", LIMIT_MS)
    assert view.page.evaluate("document.documentElement.lang") == "zh-CN"
    for element in view.page.locator("summary").all():
        element.click()
    view.page.evaluate("document.getElementById('runbook-text').remove()")  # a part of the docs, in English
    seen = view.page.locator("body").inner_text() + view.page.evaluate(
        "[...document.querySelectorAll('[aria-label]')].map((one) => one.getAttribute('aria-label')).join('\\n')")
    for text, translated in words.items():
        if "{" not in text and translated in seen:
            assert not re.search(rf"^{re.escape(text)}$", seen, re.MULTILINE), f"{text} is shown in English too"
    lines = [line.strip() for line in seen.splitlines()]
    left = sorted(text for text in words if text in lines)
    assert not left, f"in English: {left}"
    assert "显存" in seen and "利用率" in seen and "健康时间线" in seen, seen
    other = bench.view(locale="de-DE")
    other.waits("() => document.getElementById('link').textContent === 'Live'", LIMIT_MS)


def fallen(node):
    """Returns a sample without the lost GPUs."""
    now = sample(node)
    for gpu in node["gpus"]:
        if gpu["state"] == "lost":
            del now["gpus"][gpu["uuid"]]
    for one in now["gpus"].values():
        one["nvlink"] = round(450e9 * one["util"] / 100)
    return now


def screenshots(browser, program, directory):
    """The page for the documentation: a fault, shares, MIG, use by Pods, NVLink traffic, fifteen minutes of history."""
    bench = Bench(browser, program)
    directory.mkdir(parents=True, exist_ok=True)
    broken = golden("node-broken.json")
    bench.server.tell("node", broken)
    bench.server.tell("now", fallen(broken))
    use = features.used(bench)
    del use["devices"][broken["gpus"][7]["uuid"]]  # its Pod's, whose use is not known, not a stranger's
    bench.server.tell("use", use)
    for width in WIDTHS:
        view = bench.view(width, color_scheme="dark" if width == 820 else "light")
        view.waits("() => document.getElementById('link').textContent === 'Live'", LIMIT_MS)
        bench.server.tell("now", fallen(broken))
        view.waits("() => document.querySelector('.chart path.area')?.getAttribute('d').length > 500", LIMIT_MS)
        if width == 820:  # from the GPU with MIG devices on
            view.page.set_viewport_size({"width": width, "height": 1500})
            view.card(6).evaluate("(card) => card.scrollIntoView({behavior: 'instant'})")
            view.waits("() => document.querySelectorAll('.card')[7].querySelector('.chart path.area').hasAttribute('d')", LIMIT_MS)
        view.page.screenshot(path=directory / f"node-page-{width}.png", scale="css")
    bench.close()


# A terminal's colours on a dark page; the numbers of GPUs, Pods and processes are the node page's.
TERMINAL_PAGE = """<meta charset="utf-8"><style>:root {{ --text: #d8dee9; --screen: #12161d; }}
body {{ margin: 0; background: var(--screen); color: var(--text); display: inline-block; }}
pre {{ margin: 0; padding: 14px 16px; font: 13px/1.25 "DejaVu Sans Mono", monospace; }}
i {{ display: inline-block; width: 1ch; font-style: normal; }}</style><pre>{}</pre>"""


def with_rates(now, node):
    """The sample with what the page does not draw: rates, memory errors, and the use of MIG devices."""
    for reading in now["gpus"].values():
        part = reading["util"] / 100
        reading.update(nvlink_rx=round(231e9 * part), nvlink_tx=round(224e9 * part), pcie_rx=round(9.1e9 * part),
                       pcie_tx=round(3.4e9 * part), ecc_corrected=0, ecc_uncorrected=0)
    devices = [device for gpu in node["gpus"] for device in (gpu.get("mig") or {}).get("devices", [])]
    return {**now, "mig": {device["uuid"]: {"util": 90 - 20 * at, "memory": round(device["memory"] * (0.8 - 0.15 * at))}
                           for at, device in enumerate(devices)}}


def top_screenshot(browser, program, gpulet, directory):
    """`gpulet top` of 170 columns, on the same node."""
    bench = Bench(browser, program)
    broken = golden("node-broken.json")
    present = fallen(broken)["gpus"]
    bench.server.tell("node", broken)
    bench.server.tell("use", features.used(bench))
    for age in range(900_000, -1, -5_000):
        at = int(time.time() * 1000) - age
        now = sample(broken, at)
        now["gpus"] = {uuid: reading for uuid, reading in now["gpus"].items() if uuid in present}
        bench.server.tell("now", with_rates(now, broken))
        if age % 100_000 == 0:
            bench.server.has(at)
    shown = subprocess.run([pathlib.Path(program).parent / "terminal_html", "34", "170", "GPU 0", gpulet, "top", "--url", bench.server.url.rstrip("/")],
                           capture_output=True, text=True, timeout=120, check=True).stdout
    page = browser.new_page(viewport={"width": 1600, "height": 800})
    page.set_content(TERMINAL_PAGE.format(shown.rstrip()))
    page.locator("body").screenshot(path=directory / "top-170.png", scale="css")
    bench.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=ROOT / "out/build/asan/tests/page_server")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "out/bin", help="the directory of gpulet and gpulet-sim")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--screenshots", type=pathlib.Path)
    options = parser.parse_args()
    passed = failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        if options.screenshots:
            screenshots(browser, options.program, options.screenshots)
            top_screenshot(browser, options.program, options.bin / "gpulet", options.screenshots)
            cluster.screenshot(browser, options.bin, options.screenshots)
            return 0
        runs = [(one, lambda: Bench(browser, options.program)) for one in CHECKS + features.CHECKS]
        runs += [(one, lambda: live.Agent(browser, options.bin)) for one in live.CHECKS]
        runs += [(one, lambda: cluster.Cluster(browser, options.bin)) for one in cluster.CHECKS]
        for one, begin in runs:
            if options.only and one.__name__ not in options.only:
                continue
            try:
                bench = begin()
                try:
                    one(bench)
                finally:
                    bench.close()
                passed += 1
                print(f"ok {one.__name__}", flush=True)
            except Exception as error:
                failed += 1
                traceback.print_exc(file=sys.stdout)
                first = (str(error).splitlines() or [""])[0]
                print(f"FAIL {one.__name__}: {type(error).__name__}: {first}", flush=True)
        browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
