"""The page of the shipped agent on a simulated node: it shows changes of a GPU within a second."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "monitoring"))
import node as monitored  # noqa: E402
from view import BADGE, LIMIT_MS, WORDS, View  # noqa: E402

LAYOUT = """version: v1
mig-configs:
  cut:
    - devices: [7]
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "2g.20gb": 1}
    - devices: [0, 1, 2, 3, 4, 5, 6]
      mig-enabled: false
"""


class Agent:
    """An agent with eight H100s, the first used by a Pod, and its pages in a browser."""

    def __init__(self, browser, programs):
        self.browser, self.views = browser, []
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="gpulet-web."))
        self.node = monitored.Node("n1", "hgx-h100", self.directory / "n1", programs.resolve())
        try:
            self.node.kubelet.start()
            self.node.driver_up()
            self.node.kubelet.hold("team-a", "train-0", "nvidia.com/gpu", self.node.devices()[0])
            self.node.start()
        except BaseException:
            self.close()
            raise

    def view(self):
        view = View(self.browser, f"http://127.0.0.1:{self.node.port}/")
        self.views.append(view)
        view.open()
        # A client makes the agent sample each second: from here on, a sample is never older.
        view.waits("() => document.getElementById('link').textContent === 'Live'", LIMIT_MS)
        view.waits("() => document.querySelectorAll('.card').length === 8", LIMIT_MS)
        return view

    def close(self):
        try:
            for view in self.views:
                view.close()
        finally:
            self.node.end()
            shutil.rmtree(self.directory, ignore_errors=True)


def load_of_a_gpu_and_who_holds_it(agent):
    view = agent.view()
    view.waits("() => document.querySelector('.card .holders').textContent.includes('team-a/train-0')", LIMIT_MS)
    agent.node.sim("load", "3", "64", "--memory", "20000")
    # Up to a second until the next sample, and one in the page.
    view.waits(WORDS, 2000, [3, "util", "64 %"])
    view.waits("() => document.querySelectorAll('.card')[3].querySelector('.processes').innerText.includes('64 %')", LIMIT_MS)
    assert "Nobody" not in view.card(3).inner_text()
    # The driver counts the traffic of the links, and nothing has used them.
    view.waits("() => document.querySelectorAll('.rate').length === 8 && document.querySelector('.rate').textContent === '0 MB/s'", LIMIT_MS)
    agent.node.sim("load", "3", "0")
    view.waits(WORDS, 2000, [3, "util", "0 %"])


def a_fault_and_its_end(agent):
    view = agent.view()
    agent.node.sim("xid", "2", "95")
    view.waits(BADGE, argument=[2, "quarantined"])
    assert "XID 95" in view.card(2).inner_text(), view.card(2).inner_text()
    assert view.card(1).locator(".badge").inner_text() == "healthy"
    agent.node.sim("heal", "2")
    agent.node.sim("reset", "2", "--force")
    view.waits(BADGE, LIMIT_MS, [2, "healthy"])
    assert "quarantined" in view.page.locator("#timeline").inner_text()


def a_mig_layout_that_changes(agent):
    view = agent.view()
    layout = agent.directory / "layout.yaml"
    layout.write_text(LAYOUT)
    files = ["--state-dir", agent.node.directory / "state", "--health-file", agent.node.directory / "health.json"]
    subprocess.run([agent.node.programs / "gpulet", "mig", "apply", "--driver-root", agent.node.root, "--ignore-pods", *files, "-f", layout, "-c", "cut"],
                   capture_output=True, timeout=monitored.LIMIT_S, check=True)
    view.waits("() => document.querySelectorAll('.card')[7].querySelectorAll('.slices li').length === 3")


def an_agent_that_restarts(agent):
    view = agent.view()
    view.waits("() => document.querySelectorAll('.card')[0].querySelector('path.area')?.getAttribute('d').length > 0", LIMIT_MS)
    rings = view.page.evaluate("fetch('/api/trends').then((answer) => answer.json())")["rings"]
    assert [ring["step"] for ring in rings] == [60, 180, 600] and len(rings[0]["gpus"]) == 8, rings
    first = view.page.evaluate("[...lines.values()][0][0].at")
    agent.node.stop()
    view.waits("() => document.body.classList.contains('stale')", LIMIT_MS)
    assert "Last data: " in view.page.locator("#link").inner_text()
    agent.node.start()
    view.waits("() => !document.body.classList.contains('stale') && document.querySelectorAll('.card').length === 8", 2 * LIMIT_MS)
    assert view.page.evaluate("[...lines.values()][0][0].at") == first
    view.wrong.clear()  # the browser reports refused connections


CHECKS = [load_of_a_gpu_and_who_holds_it, a_fault_and_its_end, a_mig_layout_that_changes, an_agent_that_restarts]
