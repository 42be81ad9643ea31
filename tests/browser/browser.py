"""A real browser for the tests of the dashboard: Debian's chromium through selenium and its own chromium-driver.
Without a browser the test ends with 77 (skipped) and the reason.
"""
import importlib.util
import json
import pathlib
import shutil
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PHONE, DESK = (360, 740), (1280, 900)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


sys.path.insert(0, str(ROOT / "tests/support"))
from venv_of_tests import enter_venv  # noqa: E402

enter_venv("selenium", "axe_selenium_python")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402


def axe_source():
    for package in ("axe_selenium_python", "axe_core_python"):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in pathlib.Path(folder).rglob("axe.min.js"):
                return file.read_text(encoding="utf-8")
    return None


def wait_for(condition, what, seconds=60):
    """The watchdog only ends a test that hangs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")


class Browser:
    def __init__(self, base):
        chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if not chromium or not driver:
            skip("no browser; install chromium and chromium-driver")
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run",
                         "--disable-background-networking", "--disable-component-update", "--force-device-scale-factor=1"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.base = base
        self.driver = webdriver.Chrome(service=Service(driver), options=options)
        self.axe = axe_source()
        self.driver.execute_cdp_cmd("Network.enable", {})

    def close(self):
        self.driver.quit()

    def open(self, path="/", size=DESK, dark=False):
        self.look(size, dark)
        self.driver.get(self.base + path)

    def look(self, size=DESK, dark=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.one(selector).text

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def requested(self):
        """URLs asked for since the last call."""
        urls = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        return urls

    def complaints(self):
        """What the console says since the last call that no page should."""
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]

    def scrolls_sideways(self):
        """Elements that stick out of the page, or scroll sideways inside."""
        return self.run("""
            const page = document.scrollingElement;
            const out = page.scrollWidth > page.clientWidth ? [`page: ${page.scrollWidth} > ${page.clientWidth}`] : [];
            for (const e of document.body.querySelectorAll("*")) {
              const box = e.getBoundingClientRect();
              const hidden = box.width <= 1 || e.closest(".skip, .hidden, thead, [hidden]") ||
                             getComputedStyle(e).visibility === "hidden";
              if (!hidden && (box.right > page.clientWidth + 1 || box.left < -1)) {
                out.push(`${e.tagName} ${e.id} ${e.className}: ${box.left} to ${box.right}`);
              }
              const flow = getComputedStyle(e).overflowX;
              if (!hidden && (flow === "auto" || flow === "scroll") && e.scrollWidth > e.clientWidth + 1) {
                out.push(`${e.tagName} ${e.id} scrolls: ${e.scrollWidth} > ${e.clientWidth}`);
              }
            }
            return out;""")

    def barriers(self):
        """axe-core's findings that are serious or worse: rule, element, why."""
        if self.axe is None:
            skip("no axe-core; install tests/browser/requirements.txt")
        if not self.run("return !!window.axe"):
            self.run(self.axe)
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done, e => done({error: String(e)}))")
        assert "violations" in found, found
        return [(v["id"], n["target"], n["failureSummary"]) for v in found["violations"] if v["impact"] in ("serious", "critical")
                for n in v["nodes"]]

    def press(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self):
        return self.run("const e = document.activeElement; return e === document.body ? '' : e.id || (e.name ? e.name + ':' + e.value : e.className)")


def main(checks, *arguments):
    """Runs the checks in order; exit code 1 if any fails."""
    failed = 0
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            check(*arguments)
            print(f"ok   {name}", flush=True)
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


KEYS = Keys
