"""What the node page shows of use, the past, faults and an agent that stops. Each check gets a Bench of run.py."""
import copy
import pathlib
import re
import time

import axe_playwright_python
from view import BADGE, LIMIT_MS, WIDTHS, WORDS

GIB = 2**30
AXE = (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
NO_DRIVER = "driver: cannot load libnvidia-ml.so.1: no such file"
LIVE = "() => document.getElementById('link').textContent === 'Live'"
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def used(bench):
    """Returns the use of GPU 0 by a Pod with two processes, of GPU 1 by a process of no Pod, and of a MIG device."""
    pod = {"namespace": "team-a", "pod": "train-0"}
    gpus = bench.node["gpus"]
    return {"at": int(time.time() * 1000), "devices": {
        gpus[0]["uuid"]: {"pods": [{**pod, "containers": ["main", "side"], "shares": 2, "memory": 12 * GIB, "busy": 71.4}],
                          "rest": {"memory": GIB // 2, "busy": 0},
                          "processes": [{"pid": 4711, "name": "python3", "memory": 11 * GIB, "sm": 70, **pod},
                                        {"pid": 4712, "name": "nccl", "memory": GIB, "sm": 1.4, **pod}]},
        gpus[7]["uuid"]: {"pods": [], "rest": {"memory": 3 * GIB, "busy": 94},
                          "processes": [{"pid": 812, "memory": 3 * GIB, "sm": 94}]},
        gpus[6]["mig"]["devices"][0]["uuid"]: {
            "pods": [{"namespace": "team-b", "pod": "notebook", "containers": ["lab"], "shares": 0, "memory": 2 * GIB}],
            "rest": {"memory": 0, "busy": 0}, "processes": []}}}


def rows(view, gpu, table):
    return [[cell.inner_text() for cell in row.locator("th, td").all()] for row in view.card(gpu).locator(f"tbody.{table} tr").all()]


@check
def pods_and_processes_have_their_use(bench):
    view, use = bench.view(), used(bench)
    alone = copy.deepcopy(bench.node)
    alone["gpus"][7]["holders"] = []
    bench.server.tell("node", alone)
    bench.server.tell("use", use)
    view.waits("() => document.querySelectorAll('.card')[0].querySelectorAll('.processes tr').length === 2")
    pods = rows(view, 0, "holders")
    assert ["team-a/train-0 · main, side (2 shares)", "12.0 GiB", "71 %"] in pods, pods
    assert ["of no Pod", "0.5 GiB", "0 %"] in pods, pods
    assert rows(view, 0, "processes") == [["4711 python3 · team-a/train-0", "11.0 GiB", "70 %"], ["4712 nccl · team-a/train-0", "1.0 GiB", "1 %"]]
    assert rows(view, 7, "processes") == [["812 · of no known Pod", "3.0 GiB", "94 %"]]
    assert "Nobody" not in view.card(7).inner_text() and rows(view, 7, "holders") == [["of no Pod", "3.0 GiB", "94 %"]]
    assert ["3g.40gb @4: team-b/notebook · lab", "2.0 GiB", "–"] in rows(view, 6, "holders"), rows(view, 6, "holders")
    # Of the next sample only numbers are written.
    view.page.evaluate("document.querySelector('.processes tr').marked = true")
    use["devices"][bench.node["gpus"][0]["uuid"]]["processes"][0].update(memory=20 * GIB, sm=99)
    bench.server.tell("use", use)
    view.waits("() => document.querySelector('.processes tr').innerText.includes('20.0 GiB')")
    assert view.page.evaluate("document.querySelector('.processes tr').marked")
    many = use["devices"][bench.node["gpus"][0]["uuid"]]["processes"]
    many += [{"pid": 10_000 + i, "sm": 0} for i in range(60)]
    bench.server.tell("use", use)
    view.waits("() => document.querySelector('.card').innerText.includes('12 more processes')")
    assert view.card(0).locator(".processes tr").count() == 50


@check
def load_without_a_pod_is_not_nobodys(bench):
    node = copy.deepcopy(bench.node)
    node["gpus"][7]["holders"] = []
    bench.server.tell("node", node)
    view = bench.view()
    bench.server.tell("now", bench.sample(node, util=94))
    view.waits("() => document.querySelectorAll('.card')[7].innerText.includes('No Pod; the driver names no process that uses it')")
    bench.server.tell("now", bench.sample(node, util=0))
    view.waits("() => document.querySelectorAll('.card')[7].innerText.includes('Nobody')")


def trends_of(bench, busy_hours=24):
    """Returns a day of history, in which the agent ran for the last hours; each GPU's use is its index times ten."""
    rings, now = [], int(time.time() * 1000)
    for step, buckets in ((60, 60), (180, 120), (600, 144)):
        last = (now // (step * 1000) - 1) * step * 1000
        count = min(buckets - 1, busy_hours * 3600 // step)
        rings.append({"step": step, "last": last, "gpus": {
            gpu["uuid"]: {"util": [gpu["index"] * 10] * count, "memory": [40_000] * count, "power": [300] * count, "temperature": [50] * count}
            for gpu in bench.node["gpus"]}})
    return {"at": now, "rings": rings}


# In the page: the x of a curve's first and last point.
ENDS = """(i) => { const d = document.querySelectorAll('.card')[i].querySelector('[data-series=util] path:not(.area):not(.grid)').getAttribute('d');
                   const x = [...d.matchAll(/[ML]([\\d.]+) /g)].map((found) => Number(found[1])); return [x[0], x[x.length - 1], x.length]; }"""


@check
def ranges_from_five_minutes_to_a_day_have_axes(bench):
    bench.server.tell("trends", trends_of(bench))
    view = bench.view()
    view.waits(LIVE, LIMIT_MS)
    view.waits(f"() => ({ENDS})(2)[2] > 60", LIMIT_MS)
    for minutes, text, most in ((5, "5 min", 0), (15, "15 min", 0), (60, "1 h", 60), (360, "6 h", 120), (1440, "24 h", 144)):
        button = view.page.get_by_role("button", name=text, exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert view.page.locator("#ranges [aria-pressed=true]").count() == 1
        first, last, count = view.page.evaluate(ENDS, 2)
        assert first < 15 and last == 300, (text, first, last)
        assert count > 50 and (not most or count < most + 450), (text, count)
        plot = view.card(2).locator("[data-series=util] .plot")
        begin, _, end = [label.inner_text() for label in plot.locator(".axis span").all()]
        shown = view.page.evaluate("([minutes]) => [-minutes, 0].map((m) => clock(latest.at + m * 60000, minutes <= 5))", [minutes])
        assert [begin, end] == shown, (text, begin, end, shown)
        assert plot.locator(".top").inner_text() == "100 %" and plot.locator(".zero").inner_text() == "0"
    assert view.card(2).locator("[data-series=memory] .top").inner_text() == "80 GiB"
    assert view.card(2).locator("[data-series=power] .top").inner_text() == "700 W"


@check
def a_curve_ends_at_the_newest_sample_also_where_its_bucket_is_closed(bench):
    view = bench.view()
    view.waits(LIVE, LIMIT_MS)
    view.page.get_by_role("button", name="1 h", exact=True).click()
    ends = view.page.evaluate("""() => {
        trends.set('GPU-x', new Map([[60, new Map([0, 60000, 120000].map((at) => [at, { at, util: 1 }]))]]));
        lines.set('GPU-x', [149000, 178000, 179800].map((at) => ({ at, util: 2 })));
        return [179800, 180000].map((end) => pointsOf('GPU-x', end).map((point) => point.at)); }""")
    assert ends == [[30000, 90000, 150000, 178000, 179800]] * 2, ends


@check
def buttons_copy_a_uuid_and_the_config(bench):
    for script in ("() => {}", "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('plain HTTP')); }"):
        view = bench.view(permissions=["clipboard-read", "clipboard-write"])
        view.page.evaluate(script)
        button = view.card(3).get_by_role("button", name="Copy the UUID")
        button.click()
        view.waits("() => document.querySelectorAll('.card')[3].querySelector('.copy').textContent === 'Copied'", LIMIT_MS)
        assert view.page.evaluate("navigator.clipboard.readText()") == bench.node["gpus"][3]["uuid"]
        view.page.locator("summary", has_text="Show it").click()
        view.page.get_by_role("button", name="Copy the config").click()
        view.waits("() => document.querySelector('#config-copy .copy').textContent === 'Copied'", LIMIT_MS)
        copied = view.page.evaluate("navigator.clipboard.readText()")
        assert copied == bench.node["config"], (copied, bench.node["config"])
        assert view.page.locator("textarea").count() == 0


@check
def an_xid_leads_to_its_runbook(bench):
    node = bench.golden("node-broken.json")
    node["events"].append({"at": int(time.time() * 1000), "severity": "warning", "reason": "XidIgnored", "message": "GPU 1: XID 43 and XID 9999"})
    bench.server.tell("node", node)
    view = bench.view()
    view.waits(BADGE, LIMIT_MS, [2, "lost"])
    view.card(2).locator(".why strong a", has_text="XID 79").click()
    view.waits("() => document.activeElement.id === 'xid'", LIMIT_MS)
    text = view.page.locator("#xid").inner_text()
    assert "XID 79: GPU has fallen off the bus" in text and "reboot the node" in text and "RESTART_BM" in text, text
    view.card(2).get_by_role("link", name="Runbook: xid-reboot").click()
    view.waits("() => document.activeElement.id === 'runbook-xid-reboot'", LIMIT_MS)
    view.page.locator("#events a", has_text="XID 43").click()
    view.waits("() => document.getElementById('xid').innerText.includes('Nothing has to be done.')", LIMIT_MS)
    view.page.locator("#events a", has_text="XID 9999").click()
    view.waits("() => document.getElementById('xid').innerText.includes('DP_DISABLE_HEALTHCHECKS=CODE')", LIMIT_MS)
    # Each class of a fault that the docs have, and each link of the page, leads somewhere.
    missing = view.page.evaluate("""() => [...Object.values(XID_SECTIONS), ...[...document.querySelectorAll('a[href^="#runbook-"]')]
        .map((link) => link.getAttribute('href').slice(9))].filter((name) => !document.getElementById(`runbook-${name}`))""")
    assert not missing, missing
    # An address that someone was given.
    other = bench.view()
    other.page.goto(bench.server.url + "#xid-79")
    other.page.reload()
    other.waits("() => document.getElementById('xid').innerText.includes('XID 79')", LIMIT_MS)


@check
def nvlink_traffic_is_on_the_topology(bench):
    view = bench.view()
    now = bench.sample(bench.node)
    uuid = [gpu["uuid"] for gpu in bench.node["gpus"]]
    now["gpus"][uuid[2]]["nvlink"], now["gpus"][uuid[3]]["nvlink"] = 412_340_000_000, 0
    bench.server.tell("now", now)
    view.waits("(u) => document.querySelector(`[data-rate='${u}']`).textContent === '412.3 GB/s'", argument=uuid[2])
    width = {i: float(view.page.locator(f"[data-traffic='{uuid[i]}']").get_attribute("stroke-width")) for i in (2, 3, 4)}
    assert width[2] > 2 * width[3] and width[3] == width[4], width
    assert view.page.locator(f"[data-rate='{uuid[3]}']").text_content() == "0 MB/s"
    assert view.page.locator(f"[data-rate='{uuid[4]}']").text_content() == "", "unknown is not zero"
    assert re.search(r"NVLink traffic\s+412.3 GB/s", view.card(2).locator(".numbers").inner_text())
    assert "NVLink" not in view.card(4).locator(".numbers").inner_text()


@check
def faulty_links_are_on_the_topology(bench):
    view = bench.view()
    view.waits(LIVE, LIMIT_MS)
    node = copy.deepcopy(bench.node)
    uuid = [gpu["uuid"] for gpu in node["gpus"]]
    node["gpus"][2]["nvlinks"] = {"all": 18, "up": 17, "faulty": [{"link": 3, "fault": "down", "peer": None}]}
    node["gpus"][3]["nvlinks"] = {"all": 18, "up": 18, "faulty": [{"link": 5, "fault": "errors", "peer": None}]}
    node["gpus"][4]["nvlinks"] = {"all": 18, "up": 18, "faulty": []}
    bench.server.tell("node", node)
    view.waits("(u) => document.querySelector(`[data-traffic='${u}']`).dataset.fault === 'down'", argument=uuid[2])
    for index, fault in ((3, "errors"), (4, "none"), (5, "none")):
        assert view.page.locator(f"[data-traffic='{uuid[index]}']").get_attribute("data-fault") == fault, index
    for index, text, details in ((2, "17 of 18 links", "17 of 18 links up"), (3, "link errors", "18 of 18 links up, errors on link 5")):
        assert view.page.locator(f"[data-links='{uuid[index]}']").text_content() == text + details, index
        assert view.page.locator(f"[data-links='{uuid[index]}'] title").text_content() == details, index
    assert view.page.locator("[data-links]").count() == 2
    # Direct links: the line between the two GPUs.
    for gpu in node["gpus"]:
        gpu["nvswitch_links"] = 0
    node["gpus"][2]["nvlinks"]["faulty"][0]["peer"] = 3
    bench.server.tell("node", node)
    view.waits("() => document.querySelectorAll(`#picture path[data-fault='down']`).length === 1")


@check
def profile_names_stay_in_one_piece(bench):
    node = copy.deepcopy(bench.node)
    mig = node["gpus"][6]["mig"]["devices"]
    names = ["1g.10gb+me", *["1g.10gb"] * 4, "1c.2g.20gb"]
    mig[:] = [{**mig[0], "profile": name, "start": i, "size": 2 if i == 5 else 1, "uuid": f"MIG-{i}", "index": i} for i, name in enumerate(names)]
    node["gpus"][6]["holders"] = []
    bench.server.tell("node", node)
    for width in WIDTHS:
        view = bench.view(width)
        found = view.page.evaluate("""() => [...document.querySelectorAll('.card')[6].querySelectorAll('.slices b')].map((name) => {
            const range = document.createRange();
            range.selectNodeContents(name);
            const text = range.getBoundingClientRect(), item = name.parentElement.getBoundingClientRect();
            return [name.textContent, range.getClientRects().length, text.right <= item.right + 0.5]; })""")
        assert found == [[name, 1, True] for name in names], (width, found)
        wide = view.page.evaluate("[...document.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.wide')).map((e) => e.tagName + '.' + e.getAttribute('class') + '#' + e.id).slice(0, 12)")
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width, wide


def stop_agent(bench, view):
    bench.server.tell("stop")
    view.waits("() => document.getElementById('link').dataset.link === 'lost'", LIMIT_MS)


@check
def an_agent_that_stops_dims_the_page_and_curves_survive(bench):
    view = bench.view()
    view.waits(LIVE, LIMIT_MS)
    view.waits(f"() => ({ENDS})(0)[2] > 100", LIMIT_MS)
    before = view.page.evaluate(ENDS, 0)
    stop_agent(bench, view)
    assert "grayscale" in view.card(0).evaluate("(card) => getComputedStyle(card).filter")
    shown = view.page.evaluate("stamp(latest.at)")
    assert view.page.locator("#link").inner_text() == f"Connection lost; trying again. Last data: {shown}"
    view.page.evaluate("window.scrollTo({top: document.body.scrollHeight, behavior: 'instant'})")
    view.waits("() => window.scrollY > 500", LIMIT_MS)
    box = view.page.locator("#link").bounding_box()
    assert 0 <= box["y"] < 100, box
    parts = view.page.evaluate("stripParts(node.gpus[0], Date.now() - rangeMs(), Date.now(), knownSpans(Date.now() - rangeMs(), Date.now(), false))")
    assert parts[-1][0] == "unknown", parts
    # The agent that starts has no history.
    bench.server.tell("go")
    view.waits(LIVE, 2 * LIMIT_MS)
    bench.server.tell("now", bench.sample(bench.node, util=41))
    view.waits(WORDS, LIMIT_MS, [0, "util", "41 %"])
    after = view.page.evaluate(ENDS, 0)
    assert after[2] >= before[2] - 10 and after[0] < 15, (before, after)
    assert view.card(0).evaluate("(card) => getComputedStyle(card).filter") == "none"
    view.wrong.clear()  # the browser reports refused connections


@check
def the_timeline_is_grey_where_nothing_was_known(bench):
    trends = trends_of(bench, busy_hours=6)
    # Within the last hour the agent was away for ten minutes, which the coarser buckets do not show.
    for values in trends["rings"][0]["gpus"].values():
        for series in values.values():
            series[20:30] = [None] * 10
    bench.server.tell("trends", trends)
    node = copy.deepcopy(bench.node)
    now = int(time.time() * 1000)
    for gpu in node["gpus"]:
        gpu["since"] = now - 6 * 3600_000
    node["gpus"][2].update(state="lost", reason="XID 79", offered=False)
    node["timeline"] = [{"at": now - 3 * 3600_000, "uuid": node["gpus"][2]["uuid"], "device": "GPU 2", "from": "healthy", "to": "lost", "reason": "XID 79"}]
    bench.server.tell("node", node)
    view = bench.view()
    view.waits(LIVE, LIMIT_MS)
    view.waits("() => trends.size === 8", LIMIT_MS)
    view.page.get_by_role("button", name="24 h", exact=True).click()
    strip = "(i) => [...document.querySelectorAll('.strip div')[i].style.backgroundImage.matchAll(/var\\(--(\\w+)\\) ([\\d.]+)% ([\\d.]+)%/g)].map((m) => [m[1], +m[2], +m[3]])"
    whole = [part for part in view.page.evaluate(strip, 2) if part[2] - part[1] > 5]
    assert [name for name, _, _ in whole] == ["unknown", "good", "bad"], whole
    assert abs(whole[0][2] - 75) < 2 and abs(whole[1][2] - 87.5) < 2 and abs(whole[2][1] - 87.5) < 2, whole
    view.page.get_by_role("button", name="1 h", exact=True).click()
    hour = [part for part in view.page.evaluate(strip, 0) if part[2] - part[1] > 5]
    assert [name for name, _, _ in hour] == ["good", "unknown", "good"] and abs(hour[1][2] - hour[1][1] - 100 / 6) < 1, hour
    view.page.get_by_role("button", name="15 min", exact=True).click()
    assert [name for name, _, _ in view.page.evaluate(strip, 0)] in (["good"], ["unknown", "good"]), view.page.evaluate(strip, 0)
    assert view.page.locator("#strip-axis span").count() == 3


@check
def no_driver_is_said_with_the_next_step(bench):
    view = bench.view(permissions=["clipboard-read", "clipboard-write"])
    node = {**bench.node, "gpus": [], "links": [], "driver": {"version": "", "cuda": ""}, "problems": [NO_DRIVER]}
    bench.server.tell("node", node)
    view.waits("() => document.getElementById('empty').innerText.includes('The NVIDIA driver does not answer')")
    text = view.page.locator("#empty").inner_text()
    assert "Next step: run gpulet doctor" in text, text
    assert NO_DRIVER in view.page.locator("#problems").inner_text()
    view.page.locator("#empty .copy").click()
    view.waits("() => document.querySelector('#empty .copy').textContent === 'Copied'", LIMIT_MS)
    assert view.page.evaluate("navigator.clipboard.readText()") == "gpulet doctor"
    bench.server.tell("node", {**node, "problems": []})
    view.waits("() => document.getElementById('empty').innerText === 'This node has no NVIDIA GPU.'")
    # A driver that goes away: the GPUs stay, and the problem has the next step.
    bench.server.tell("node", {**bench.node, "problems": [NO_DRIVER]})
    view.waits("() => document.getElementById('problems').innerText.includes('Next step: run gpulet doctor')")


@check
def claims_that_wait_and_gpus_that_move_are_said(bench):
    view = bench.view()
    view.waits(LIVE, LIMIT_MS)
    assert not view.page.locator("#claims").is_visible()
    gpu = bench.node["gpus"][3]
    bench.server.tell("node", {**bench.node, "claims": {
        "offered": 7, "waiting": [{"namespace": "team", "name": "a", "uid": "u", "since": 1, "reason": "the MPS control daemon starts"}],
        "moves": [{"gpu": gpu["uuid"], "to": "claims", "since": 1, "reason": "is offered by claims when Pod team/b ends"}]}})
    view.waits("() => document.querySelectorAll('#claims li').length === 2")
    lines = view.page.locator("#claims li").all_inner_texts()
    assert lines == ["claim team/a is not prepared: the MPS control daemon starts",
                     f"GPU {gpu['index']} is offered by claims when Pod team/b ends"], lines
    bench.server.tell("node", bench.node)
    view.waits("() => document.getElementById('claims').hidden")


@check
def grades_of_memory_limits_are_said(bench):
    view = bench.view()
    view.waits(LIVE, LIMIT_MS)
    assert not view.page.locator("#limits").is_visible()
    container = {"namespace": "team", "container": "main", "gpu": bench.node["gpus"][0]["uuid"], "limit": 1 << 30}
    bench.server.tell("node", {**bench.node, "memory_limit": {
        "grade": "audited", "reasons": ["no driver"],
        "containers": [{**container, "pod": "a", "grade": "audited", "reasons": ["no driver"]},
                       {**container, "pod": "b", "grade": "none", "reasons": ["container main is privileged"]}]}})
    view.waits("() => document.querySelectorAll('#limits li').length === 2")
    lines = view.page.locator("#limits li").all_inner_texts()
    assert lines == ["memory limits of shared GPUs: audited · no driver",
                     "memory limit of container main of Pod team/b: none · container main is privileged"], lines
    bench.server.tell("node", bench.node)
    view.waits("() => document.getElementById('limits').hidden")


def violations(view):
    view.page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    view.page.evaluate(AXE)
    found = view.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{item['id']}: {item['help']} ({item['nodes'][0]['html'][:120]}; {len(item['nodes'])}×, {item['nodes'][0]['failureSummary'][:200]})" for item in found]


@check
def axe_finds_nothing_in_any_state(bench):
    bench.server.tell("trends", trends_of(bench, busy_hours=6))
    bench.server.tell("use", used(bench))
    bench.node["gpus"][5]["mig"] = bench.node["gpus"][6]["mig"]
    bench.server.tell("node", bench.node)
    for scheme in ("light", "dark"):
        view = bench.view(color_scheme=scheme, bypass_csp=True, locale="zh-CN" if scheme == "dark" else "en-US")
        view.waits("() => document.querySelectorAll('.processes tr').length > 2", LIMIT_MS)
        view.page.locator("#ranges button").last.click()
        states = {"use": violations(view)}
        bench.server.tell("node", bench.golden("node-broken.json"))
        view.waits("() => document.querySelectorAll('.card')[2].dataset.tone === 'bad'")
        view.card(2).locator(".why strong a").click()
        view.waits("() => !document.getElementById('xid').hidden", LIMIT_MS)
        states["runbook"] = violations(view)
        stop_agent(bench, view)
        states["stopped"] = violations(view)
        bench.server.tell("go")
        view.waits("() => !document.body.classList.contains('stale')", 2 * LIMIT_MS)
        bench.server.tell("node", {**bench.node, "gpus": [], "links": [], "driver": {"version": "", "cuda": ""}, "problems": [NO_DRIVER]})
        view.waits("() => document.querySelectorAll('.card').length === 0")
        states["no driver"] = violations(view)
        bench.server.tell("node", bench.node)
        view.wrong.clear()  # the browser reports refused connections
        view.close()
        bench.views.remove(view)
        assert not any(states.values()), f"{scheme}: {states}"
