"""The page of `tulip serve` in a real Chromium: does it work, by mouse, keyboard and on a phone?

    PYTHON_WITH_PLAYWRIGHT benchmarks/serving/page.py --python .venv/bin/python --shots shots/

Writes page.json beside this file: what was tried, and whether it held. Screenshots go to `--shots`,
to be looked at. Needs playwright (this interpreter), Chromium, and tulip-ood (the interpreter given
by `--python`).
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright
from started import prepared, serving

TOKEN = "a-token-for-the-test"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
checks: dict[str, bool] = {}


def check(name: str, held: bool) -> None:
    checks[name] = bool(held)
    print(f"{'ok ' if held else 'NO '} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter with tulip-ood")
    parser.add_argument("--folder", type=Path, help="keep the network and pictures here")
    parser.add_argument("--shots", type=Path, default=Path("shots"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("page.json"))
    options = parser.parse_args()
    options.shots.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=120_000)  # the machine may be busy
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepared(options.folder or Path(temporary), options.python, steepness=2.5)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=ARGUMENTS
            )
            version = browser.version
            with serving(folder, "--admin-token", TOKEN, python=options.python) as (url, _):
                desktop(browser, url, folder, options.shots)
                phone(browser, url, folder, options.shots)
                documentation(browser, url, options.shots)
            with serving(folder, "--token", TOKEN, python=options.python) as (url, _):
                guarded(browser, url, options.shots)
            browser.close()
    held = all(checks.values())
    result = {"command": "make evidence-page", "chromium": version, "held": held, "checks": checks}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if held else 1)


def opened(browser: Browser, url: str, path: str = "", **how: object) -> tuple[Page, list[str]]:
    """A page, and a list of everything that goes wrong on it or is asked of another server."""
    page = browser.new_context(**how).new_page()
    page.set_default_timeout(120_000)
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda asked: None if asked.url.startswith((url, "blob:")) else wrong.append(asked.url),
    )
    page.goto(url + path)
    return page, wrong


def shoot(page: Page, shots: Path, name: str) -> None:
    page.wait_for_timeout(150)
    page.screenshot(path=shots / f"{name}.png", full_page=True)


def pictures(folder: Path) -> list[str]:
    images = folder / "images"
    chosen = ["digits/005.png", "digits-8-and-9/002.png", "photographs/003.jpg"]
    return [str(images / name) for name in chosen]


def desktop(browser: Browser, url: str, folder: Path, shots: Path) -> None:
    page, wrong = opened(browser, url, viewport={"width": 1280, "height": 900})
    page.wait_for_selector("#board:not([hidden])")
    shoot(page, shots, "light-empty")
    check("the heading is a question", "trusted" in page.inner_text("h1"))
    check("the promise is shown", "at most 5.0 %" in page.inner_text("#promise").lower())
    page.set_input_files("#files", pictures(folder))
    expect(page.locator(".answers .numbers")).to_have_count(3)
    check("three cards", page.locator(".answers > li").count() == 3)
    check("three pins", page.locator(".pin").count() == 3)
    check(
        "a decision at a glance", page.locator(".answers > li.yes, .answers > li.no").count() == 3
    )
    check("bars of probabilities", page.locator(".bars .bar.after").count() >= 3)
    check("before and after", page.locator(".bars .bar.before").count() >= 2)
    check("a status for screen readers", "accepted" in page.inner_text("#summary[role=status]"))
    shoot(page, shots, "light-results")
    before = page.inner_text("#summary")
    slider = page.locator("#slider")
    slider.focus()
    page.keyboard.press("End")
    check("the slider works by keyboard", "50.0 %" in page.inner_text("#rate"))
    check("half of ID is accepted there", "50" in page.inner_text("#share"))
    check("a trial is called one", "trial" in page.inner_text("#share"))
    page.keyboard.press("Home")
    check("decisions follow the slider", page.inner_text("#summary") != before)
    check("what the server says stays visible", "server itself says" in page.inner_text(".answers"))
    shoot(page, shots, "light-trial")
    page.keyboard.press("End")
    page.click("#apply")
    page.fill("#admin", "not the token")
    page.keyboard.press("Enter")
    expect(page.locator("#applied")).to_contain_text("Not applied")
    wrong[:] = [line for line in wrong if "401" not in line]  # the browser's own note on that
    page.fill("#admin", TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#applied")).to_contain_text("from now on")
    check("the server has the new threshold", target(page) == 0.5)
    page.evaluate(
        """token => fetch('v1/threshold', {method: 'PUT', body: '{"false_alarm": 0.05}',
        headers: {Authorization: `Bearer ${token}`, 'Content-Type': 'application/json'}})""",
        TOKEN,
    )
    page.reload()
    page.wait_for_selector("#board:not([hidden])")
    bad = folder / "words.jpg"
    bad.write_text("this is no image")
    drop(page, [bad.read_bytes(), Path(pictures(folder)[0]).read_bytes()])
    expect(page.locator(".answers > li:not(.waiting)")).to_have_count(2)
    check("dropped files are judged", page.locator(".answers .numbers").count() == 1)
    check("a bad file says why", "no image" in page.inner_text(".answers"))
    shoot(page, shots, "light-error")
    wrong[:] = [line for line in wrong if "422" not in line]
    page.click("#clear")
    check("clear clears", page.locator(".answers > li").count() == 0)
    page.keyboard.press("Tab")
    check("nothing went wrong, nothing came from elsewhere", wrong == [])
    if wrong:
        print("\n".join(wrong))
    page.context.close()
    names(browser, url)
    page, wrong = opened(browser, url, viewport={"width": 1280, "height": 900}, color_scheme="dark")
    page.wait_for_selector("#board:not([hidden])")
    page.set_input_files("#files", pictures(folder))
    expect(page.locator(".answers .numbers")).to_have_count(3)
    shoot(page, shots, "dark-results")
    check("in the dark, too", wrong == [])
    page.context.close()


def target(page: Page) -> float:
    return page.evaluate("fetch('v1/model').then(r => r.json()).then(m => m.threshold.target)")


def drop(page: Page, contents: list[bytes]) -> None:
    page.evaluate(
        """contents => {
          const files = new DataTransfer();
          contents.forEach((bytes, i) => files.items.add(
            new File([new Uint8Array(bytes)], `dropped-${i}.jpg`, {type: "image/jpeg"})));
          for (const kind of ["dragenter", "dragover", "drop"])
            document.getElementById("drop").dispatchEvent(
              new DragEvent(kind, {dataTransfer: files, bubbles: true, cancelable: true}));
        }""",
        [list(content) for content in contents],
    )


def names(browser: Browser, url: str) -> None:
    """Every control has a name, and can be reached by the keyboard alone."""
    page, _ = opened(browser, url)
    page.wait_for_selector("#board:not([hidden])")
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, button, a")].filter(one =>
             one.offsetParent !== null && !(one.labels?.length || one.textContent.trim())).length"""
    )
    check("every control has a name", unnamed == 0)
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    check("the keyboard reaches the files and the slider", {"files", "slider"} <= reached)
    page.context.close()


def phone(browser: Browser, url: str, folder: Path, shots: Path) -> None:
    page, wrong = opened(
        browser,
        url,
        viewport={"width": 375, "height": 760},
        device_scale_factor=2,
        is_mobile=True,
        has_touch=True,
    )
    page.wait_for_selector("#board:not([hidden])")
    page.set_input_files("#files", pictures(folder))
    expect(page.locator(".answers .numbers")).to_have_count(3)
    wide = page.evaluate("document.documentElement.scrollWidth")
    check("nothing is wider than a phone", wide <= 375)
    small = page.evaluate(
        """[...document.querySelectorAll("button, input[type=range]")].filter(one =>
             one.offsetParent !== null && one.getBoundingClientRect().height < 40).length"""
    )
    check("controls are large enough for a finger", small == 0)
    shoot(page, shots, "phone")
    check("nothing goes wrong on a phone", wrong == [])
    page.context.close()


def documentation(browser: Browser, url: str, shots: Path) -> None:
    page, wrong = opened(browser, url, "docs", viewport={"width": 1280, "height": 900})
    page.wait_for_selector(".operation")
    check("every path is documented", page.locator(".verb").count() == 5)
    shoot(page, shots, "docs")
    check("the API's page needs nothing from elsewhere", wrong == [])
    page.set_viewport_size({"width": 375, "height": 812})
    names = page.locator("th code")
    shown = [names.nth(i).is_visible() for i in range(names.count())]
    check("what is sent and answered has its names on a phone", len(shown) > 10 and all(shown))
    wide = page.evaluate("document.documentElement.scrollWidth")
    check("the API is not wider than a phone", wide <= 375)
    page.context.close()


def guarded(browser: Browser, url: str, shots: Path) -> None:
    page, _ = opened(browser, url, viewport={"width": 1280, "height": 900})
    page.wait_for_selector("#unlock:not([hidden])")
    shoot(page, shots, "light-token")
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#board:not([hidden])")
    check("a token unlocks a guarded server", page.locator("#unlock").is_hidden())
    page.context.close()


if __name__ == "__main__":
    main()
