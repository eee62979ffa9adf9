"""`make up` as its user meets it: a headless browser logs in, sees the DAGs, opens the quality report inside Airflow.

The browser is driven by its own remote debugging; nothing but ``websockets`` is needed for that.
"""

import base64
import itertools
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from websockets.sync.client import connect

from tests.dags.support import LONG, ROOT, Project, free_port
from tests.support import events

pytestmark = pytest.mark.skipif(not LONG, reason="minutes long: `make test-long`")

PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"
OUTSIDE = ("%2e%2e/%2e%2e/queries/near.yaml", "..%2f..%2fqueries/near.yaml", "%2fetc%2fpasswd", ".lock", "data_docs/")
SCREENS = ROOT / "build" / "screens"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--disable-quic",
    "--window-size=1400,900",
    "--remote-debugging-port=0",
]


class Page:
    """One tab, over the DevTools protocol."""

    def __init__(self, address):
        self.socket = connect(address, max_size=None, open_timeout=60)
        self.numbers = itertools.count(1)

    def call(self, method, **parameters):
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script):
        """Return a script's value."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    def until(self, script, seconds=90):
        """Wait until a script's value is true, and return it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = self.run(f"(() => {{ try {{ return {script} }} catch (e) {{ return null }} }})()")
            if value:
                return value
            time.sleep(0.5)
        self.picture("failed")
        raise AssertionError(f"never true: {script}\n{self.run('location.href')}\n{self.text()[:2000]}")

    def text(self):
        return self.run("document.body ? document.body.innerText : ''") or ""

    def go(self, address):
        self.call("Page.navigate", url=address)

    def type(self, selector, words):
        """Focus an element and type into it, as a person does."""
        self.until(f"document.querySelector({selector!r}) !== null")
        self.run(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=words)

    def cookie(self):
        """Return the header by which the browser proves who is logged in."""
        return "; ".join(
            f"{cookie['name']}={cookie['value']}" for cookie in self.call("Network.getCookies", urls=[URL])["cookies"]
        )

    def picture(self, name):
        SCREENS.mkdir(parents=True, exist_ok=True)
        shot = self.call("Page.captureScreenshot", format="png")
        (SCREENS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    setup = subprocess.run(["bash", "infra/browser.sh"], capture_output=True, text=True, cwd=ROOT, timeout=600)
    if setup.returncode:
        pytest.skip(setup.stderr.strip() or "no browser")
    folder = tmp_path_factory.mktemp("browser")
    command = [setup.stdout.strip().splitlines()[-1], *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with open(folder / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        port = folder / "DevToolsActivePort"
        for _ in range(240):
            if port.is_file() and port.read_text().strip():
                break
            assert process.poll() is None, (folder / "log").read_text()[-1500:]
            time.sleep(0.25)
        number = port.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/json", timeout=30) as answer:
            tab = next(target for target in json.loads(answer.read()) if target["type"] == "page")
        page = Page(tab["webSocketDebuggerUrl"])
        page.call("Page.enable")
        yield page
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    """A project with `airflow.sh up` whose landing folder holds a file."""
    project = Project(tmp_path_factory.mktemp("ui") / "project").write(("near",))
    table = events.disordered(3, rows=120).drop_columns(["seq"])
    (project.landing / "_by_stream").mkdir()
    events.write(table, project.landing / "_by_stream" / "rows.parquet")
    settings = project.folder / "settings.env"
    changed = project.settings | {"AIRFLOW__API__PORT": str(PORT), "LATECOMER_INGEST_SCHEDULE": "* * * * *"}
    settings.write_text("".join(f"{key}={value}\n" for key, value in changed.items()))
    try:
        said = project.call("bash", "infra/airflow.sh", "up", str(settings), timeout=400)
        assert URL in said and "admin" in said
        yield project
    finally:
        assert "stopped" in project.call("bash", "infra/airflow.sh", "down", str(settings))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", PORT)) != 0


def status(path, cookie=""):
    """Return the HTTP status of a path without resolving it: a browser would replace `%2e%2e` itself."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(URL + path, headers={"Cookie": cookie}), timeout=30
        ) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_from_the_landing_folder_to_the_report_in_the_browser(browser, airflow):
    assert [status(path) for path in ("/latecomer/", "/latecomer/index.html", "/latecomer/near.html")] == [401] * 3
    browser.go(URL)
    browser.type("input[name=username]", "admin")
    browser.type("input[name=password]", "admin")
    browser.until("!document.querySelector('button[type=submit]').disabled")
    browser.picture("login")
    browser.run("document.querySelector('button[type=submit]').click()")
    browser.until("!location.pathname.startsWith('/auth')")
    browser.go(f"{URL}/dags")
    for name in ("near__adapt", "near__repair", "latecomer_ingest"):
        browser.until(f"document.body.innerText.includes({name!r})")
    switches = "[...document.querySelectorAll('input[type=checkbox]')]"
    assert browser.until(f"{switches}.length >= 4") and browser.run(f"{switches}.every(each => each.checked)")
    browser.picture("dags")

    report = airflow.folder / "reports" / "near.html"
    deadline = time.monotonic() + 420
    while not report.is_file() and time.monotonic() < deadline:
        time.sleep(2)
    assert report.is_file(), "the landing folder was not ingested and answered"

    browser.go(f"{URL}/plugin/latecomer_quality")
    frame = "document.querySelector('iframe').contentDocument"
    browser.until(f"{frame}.querySelector('a[href=\"near.html\"]') !== null")
    browser.picture("report_index")
    browser.run(f"{frame}.querySelector('a[href=\"near.html\"]').click()")
    browser.until(f"{frame}.querySelectorAll('table').length >= 1 && {frame}.location.pathname.endsWith('near.html')")
    table = f"{frame}.querySelector('table')"
    assert browser.run(f"{table}.getBoundingClientRect().height") > 50
    assert browser.run(f"{frame}.defaultView.getComputedStyle({table}).visibility") == "visible"
    shown = browser.run(f"{frame}.body.innerText")
    assert "near" in shown and "expectation" in shown.lower() and "kept" in shown
    browser.picture("report")
    assert [status(f"/latecomer/{path}", browser.cookie()) for path in ("near.html", *OUTSIDE)] == [200] + [404] * len(
        OUTSIDE
    )
