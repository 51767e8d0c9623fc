"""The virtual arm's page for people: its cameras, its episode, and a hand on each joint."""

from __future__ import annotations

import html
from collections.abc import Sequence

from edge_runtime.motors.calibration import JointCalibration
from edge_runtime.virtual_arm.calibration import CALIBRATION


def human_page(cameras: Sequence[str]) -> str:
    """The page's HTML. A slider is a hand that turns its joint; the buttons give orders of `faults`."""
    figures = "".join(
        f'<figure><img src="/cameras/{html.escape(name)}"><figcaption>{html.escape(name)}</figcaption></figure>'
        for name in cameras
    )
    rows = "".join(map(_row, CALIBRATION.items()))
    return _PAGE.replace("FIGURES", figures or _NO_CAMERAS).replace("ROWS", rows)


def _row(item: tuple[str, JointCalibration]) -> str:
    joint, entry = item
    return f"""<tr data-joint="{entry.id}"><th>{joint}</th>
<td><input type="range" min="{entry.range_min}" max="{entry.range_max}" oninput="hand({entry.id}, this)"></td>
<td><button onclick="letGo({entry.id})">let go</button>
<button onclick="plug({entry.id}, this)">unplug</button>
<button onclick="order({{fault: 'factory', ids: [{entry.id}]}})">as new</button></td>
<td class="told"></td></tr>
"""


_NO_CAMERAS = "<p>No cameras: install libegl1 or libosmesa6.</p>"
_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>virtual arm</title>
<link rel="icon" href="data:,">
<style>
body { font: 16px system-ui; margin: 2rem; }
figure { display: inline-block; margin: 0 1rem 1rem 0; }
img { width: 384px; image-rendering: pixelated; background: #ddd; }
th { text-align: left; font-weight: normal; padding-right: 1rem; }
input { width: 20rem; }
.told { font-variant-numeric: tabular-nums; padding-left: 1rem; }
#refused { color: #b00; min-height: 1.5em; }
</style>
<h1>Virtual SO-101</h1>
FIGURES
<h2>Joints</h2>
<p>A slider is your hand on the joint: it turns what is without torque, and holds it there until you let go.</p>
<table>
ROWS</table>
<p>
<button onclick="allJoints('detach')">unplug all</button>
<button onclick="allJoints('attach')">plug in all</button>
<button onclick="allJoints('factory')">all as new from the box</button>
<button onclick="order({fault: 'clear'})">end all faults</button>
</p>
<p id="refused"></p>
<h2>Episode</h2>
<button onclick="place()">place the next scene</button>
<pre id="episode"></pre>
<script>
let seed = 0, last = Promise.resolve();
const ids = [1, 2, 3, 4, 5, 6];
const send = async (path, what) => {
  const refused = document.getElementById("refused");
  try {
    const answer = await fetch(path, {method: "POST", body: JSON.stringify(what)});
    refused.textContent = answer.ok ? "" : (await answer.json()).error;
  } catch (error) { refused.textContent = `${error}`; }  // the next order is given all the same
};
const post = (path, what) => last = last.then(() => send(path, what));  // in the order in which they were given
const order = what => post("/fault", what);
const allJoints = fault =>  // not `all`: in a handler that is document.all
  order({fault, ids});
const hand = (joint, slider) => order({fault: "hand", ids: [joint], position: slider.valueAsNumber});
const letGo = joint => order({fault: "hand", ids: [joint], on: false});
const plug = (joint, button) => order({fault: button.textContent == "unplug" ? "detach" : "attach", ids: [joint]});
const place = () => post("/episode", {seed: seed + 1});
const tell = joint => {
  const row = document.querySelector(`[data-joint="${joint.joint}"]`);
  const slider = row.querySelector("input");
  if (!slider.matches(":active")) slider.value = joint.shaft;
  slider.disabled = joint.torque;
  row.querySelectorAll("button")[1].textContent = joint.attached ? "unplug" : "plug in";
  const how = joint.torque ? `torque on, goal ${joint.goal}, load ${joint.load / 10} %` : joint.held ? "held" : "limp";
  row.querySelector(".told").textContent = joint.attached
    ? `id ${joint.id} reports ${joint.reported}: ${how}` : "not on the cable";
};
const show = async () => {
  const paths = ["/episode", "/state", "/joints"];
  const [episode, state, joints] = await Promise.all(paths.map(async path => (await fetch(path)).json()));
  seed = episode.seed;
  document.getElementById("episode").textContent = JSON.stringify({...episode, ...state}, null, 1);
  joints.forEach(tell);
};
show();
setInterval(show, 500);
</script>
"""
