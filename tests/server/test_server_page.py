"""The page in headless Chromium: type, send, read the streamed answer, press stop."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from test_server_limits import metric, slow_steps, until  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow
webdriver = pytest.importorskip("selenium.webdriver")

from selenium.webdriver.chrome.service import Service as Driver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("there is no chromium with chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
        *("--no-first-run", f"--user-data-dir={profile}", "--window-size=900,700"),
    ):
        options.add_argument(argument)
    found = webdriver.Chrome(options=options, service=Driver(driver, env={**os.environ}))
    found.set_page_load_timeout(60)
    yield found
    found.quit()


@pytest.fixture
def page(browser, client):
    browser.get(f"http://127.0.0.1:{client.port}/")
    until(lambda: browser.title == client.service.name, 30)
    browser.find_element(By.ID, "toggle").click()
    return browser


def setting(page, name, value):
    box = page.find_element(By.ID, name)
    box.clear()
    box.send_keys(str(value))


def answers(page):
    """The texts of the answers, without their notes."""
    return [box.text for box in page.find_elements(By.CSS_SELECTOR, "article.assistant > div")]


def note(page):
    return page.find_elements(By.CSS_SELECTOR, "article.assistant small")[-1].text


def button(page):
    return page.find_element(By.ID, "send").text


def test_an_answer_is_streamed_into_the_page(page, client):
    setting(page, "temperature", 0)
    setting(page, "max_tokens", 12)
    page.find_element(By.ID, "input").send_keys("hi", Keys.ENTER)
    until(lambda: "first after" in note(page), 60)
    expected = client.chat("hi", temperature=0, max_tokens=12).json["choices"][0]["message"]
    shown = page.execute_script(
        "return document.querySelector('article.assistant > div').textContent"
    )
    assert shown == expected["content"] and shown
    assert "tokens/s" in note(page) and button(page) == "Send"
    assert page.find_element(By.CSS_SELECTOR, "article.user").text == "hi"
    own = f"http://127.0.0.1:{client.port}/"
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    urls = [e["request"]["url"] for e in sent if e["documentURL"].startswith(own)]
    assert len(urls) >= 3 and all(url.startswith(own) for url in urls)
    severe = [e for e in page.get_log("browser") if e["level"] == "SEVERE"]
    assert not [e for e in severe if "favicon" not in e["message"]], severe


def test_stop_ends_the_answer_at_the_server_too(page, client, slow_steps):  # noqa: F811
    setting(page, "temperature", 1.5)
    setting(page, "max_tokens", 900)
    before = metric(client, "kinetic:requests_cancelled_total")
    page.find_element(By.ID, "input").send_keys("go on and on")
    page.find_element(By.ID, "send").click()
    until(lambda: any(answers(page)), 60)
    assert button(page) == "Stop"
    page.find_element(By.ID, "send").click()
    until(lambda: note(page) == "stopped", 30)
    until(lambda: metric(client, "kinetic:requests_cancelled_total") == before + 1, 10)
    assert button(page) == "Send"
    said = answers(page)
    time.sleep(0.3)
    assert answers(page) == said


def test_a_refusal_is_shown(page):
    page.find_element(By.ID, "input").send_keys("x" * 3000)
    page.find_element(By.ID, "send").click()
    until(lambda: page.find_elements(By.CSS_SELECTOR, "article.error"), 30)
    assert "prompt is too long" in page.find_element(By.CSS_SELECTOR, "article.error").text


def test_markup_in_messages_is_text(page):
    page.find_element(By.ID, "input").send_keys("<img src=x onerror=document.title='owned'>")
    page.find_element(By.ID, "send").click()
    until(lambda: page.find_elements(By.CSS_SELECTOR, "article.user"), 30)
    assert not page.find_elements(By.CSS_SELECTOR, "main img")
    assert page.title != "owned"
