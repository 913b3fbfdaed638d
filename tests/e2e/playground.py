#!/usr/bin/python3
"""The playground (docs/playground.md) in a headless Chromium, from a disk: by mouse, keyboard, touch and address.

NETSUM_SCREENSHOTS=FOLDER playground.py BUILD_FOLDER   builds the page there if it can; also takes the screenshot of the docs
"""
import os
import pathlib
import subprocess
import sys
import unittest

import cli_support as cli
import devtools

FOLDER = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
MOST_BYTES = 3 << 20


class Playground(unittest.TestCase):
    def setUp(self):
        self.browser = devtools.Browser()
        self.browser.window(1280, 900)
        self.addCleanup(self.browser.__exit__)
        self.open()

    def open(self, run=""):
        self.browser.open("about:blank")
        self.browser.open(f"file://{FOLDER}/playground/index.html{run}")
        try:
            cli.until(lambda: self.browser.value("typeof state !== 'undefined' && !!state"), 60, "the page's first state")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.browser.complaints()}") from None

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])
        self.assertEqual([url for url in self.browser.requests() if not url.startswith(("file://", "data:", "about:"))], [], "it asks nobody")

    def click(self, name):
        self.browser.value(f"document.getElementById('{name}').click()")

    def key(self, key):
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def text(self, name):
        return self.browser.value(f"document.getElementById('{name}').innerText")

    def rows(self, name):
        return self.browser.value(f"[...document.querySelectorAll('#{name} tr')].map((row) => row.innerText.split('\\t').map((cell) => cell.trim()))")

    def actions(self):
        return self.browser.value("new URLSearchParams(location.hash.slice(1)).get('do') || ''")

    def packets(self):
        return self.browser.value("state.packets.map((packet) => packet.number)")

    def finish(self):
        for _ in range(500):
            if self.browser.value("state.complete"):
                return
            self.click("step")
        self.fail("it does not end: " + self.text("log"))

    def screenshot(self, name):
        folder = os.environ.get("NETSUM_SCREENSHOTS")
        if folder:
            self.browser.screenshot(os.path.join(folder, name))

    def test_is_small(self):
        sizes = {file.name: file.stat().st_size for file in (FOLDER / "playground").iterdir()}
        print("bytes:", sizes)
        self.assertLess(sum(sizes.values()), MOST_BYTES, sizes)

    def test_eight_steps_by_either_rule(self):
        self.browser.value("document.querySelector('[value=published]').click()")
        for step in range(8):
            self.assertNotIn("Wrong", self.text("verdict"), step)
            self.click("walk")
        self.assertEqual(self.text("verdict"), "Wrong: rank 0 took 9 for the sum of chunk 3, which is 333.")
        self.assertEqual(self.rows("slots")[1][3:], ["9", "not each once"])
        self.screenshot("playground.png")
        address = self.browser.value("location.href")
        self.open(address[address.index("#"):])  # and again from the address
        self.assertEqual(self.text("verdict"), "Wrong: rank 0 took 9 for the sum of chunk 3, which is 333.")

        self.browser.value("document.querySelector('[value=netsum]').click()")
        for step in range(8):
            self.click("walk")
        self.assertEqual(self.text("verdict"), "")
        self.finish()
        self.assertEqual(self.text("verdict"), "Every rank has every sum, and each is right.")

    def test_a_seed_and_hands_make_the_run_of_their_address(self):
        self.open("#rule=netsum&seed=7")
        for _ in range(4):
            self.click("step")
        self.click("copy")
        self.click("delay")
        self.click("drop")
        for _ in range(4):
            self.click("step")
        before, actions = self.browser.value("core.state()"), self.actions()
        for letter in "sclx":
            self.assertIn(letter, actions)
        self.open(self.browser.value("location.hash"))
        self.assertEqual(self.browser.value("core.state()"), before)
        self.finish()
        self.assertEqual(self.text("verdict"), "Every rank has every sum, and each is right.")
        self.open("#rule=published&seed=25&do=" + ".".join(["s"] * 300))  # as the same seed does outside of a browser
        self.assertIn("Wrong: ", self.text("verdict"))
        self.open("#rule=netsum&seed=8&do=d0.d0.d1")
        self.assertIn("asks for “d0”", self.text("verdict"))
        self.assertEqual(self.actions(), "d0")

    def test_keys(self):
        self.assertEqual(self.packets(), [0, 1, 2, 3, 4, 5])
        self.key("ArrowDown")
        self.key("ArrowDown")
        self.key("Enter")
        self.assertEqual(self.actions(), "d2")
        self.assertEqual(self.browser.value("document.activeElement.dataset.number"), "3", "the next one has the focus")
        for key in "dclcs":
            self.key(key)
        self.assertEqual(self.actions(), "d2.x3.c4.l4.c4.s")
        self.assertEqual(self.rows("slots")[0], ["0/0", "1", "012", "11", "gathers"])
        self.key(" ")
        self.assertEqual(self.text("play"), "Pause")
        self.browser.value("new Promise((done) => setTimeout(done, 400))")
        self.key(" ")
        self.assertEqual(self.text("play"), "Play")
        self.assertRegex(self.actions(), r"s\.w\d+$")
        self.browser.value("document.getElementById('drop').focus()")
        self.key("Enter")  # a button's own
        self.assertRegex(self.actions(), r"\.x\d+$")

    def test_touch_on_a_narrow_screen_in_the_dark(self):
        self.browser.window(320, 640, "dark")
        self.browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
        self.browser.value("document.querySelector('svg').scrollIntoView({ block: 'center' })")
        x, y = self.browser.value("(() => { const at = document.querySelector('.dot[data-number=\"4\"]').getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]; })()")
        self.browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.assertEqual(self.browser.value("chosen"), 4)
        self.click("deliver")
        self.assertEqual(self.actions(), "d4")
        self.assertIn("rank 2's chunk 1", self.text("log"))
        widths = self.browser.value("[document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(widths[0], widths[1], "nothing is wider than the window")
        small = self.browser.value("[...document.querySelectorAll('button')].filter((each) => each.getBoundingClientRect().height < 40).map((each) => each.id)")
        self.assertEqual(small, [], "large enough for a finger")


if __name__ == "__main__":
    missing = ([] if devtools.program() else ["chromium"]) + ([] if (FOLDER / "playground").is_dir() else ["emscripten"])  # as CMake found
    if missing:
        print(f"playground: skipped: there is no {' and no '.join(missing)} (apt-get install {' '.join(missing)}, then scripts/build)", file=sys.stderr)
        sys.exit(77)
    subprocess.run(["cmake", "--build", str(FOLDER), "--target", "playground"], check=True, stdout=subprocess.DEVNULL)
    unittest.main()
