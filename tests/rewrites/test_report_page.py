"""The page in a real browser: it loads without an error of its script, and what can be clicked works."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.records import SOFTMAX, attention, escape, graph
from support.thorough import thorough

from regraft.rewrites.reason import Site
from regraft.rewrites.record import GraphRecord
from regraft.rewrites.report.document import Report
from regraft.rewrites.report.entry import Entry, Outcome
from regraft.rewrites.report.html import SOURCES, render

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed: none of {', '.join(NAMES)}")

ENVIRONMENT = {"torch": "2.13", "cpu": "some <cpu>"}
RIGHT = Outcome(error=2e-7, tolerance=1e-4, compile_seconds=3.0, eager_seconds=0.2, compiled_seconds=0.1, rounds=9)
WRONG = Outcome(error=2e-7, tolerance=1e-4, compile_seconds=3.0, gradient_error=float("nan"))
HOSTILE = "</script><script>throw 1</script><img src=x onerror='throw 2'>"


def many(*outcomes: Outcome | None) -> Report:
    return Report([Entry(f"hf:m{i}", [graph(i + 1)], {"mask": ""}, o) for i, o in enumerate(outcomes)], ENVIRONMENT)


def page_of(report: Report) -> str:
    return render(report.entries, report.environment)


def hostile() -> Report:
    """Every text that a user's program can bring in holds markup."""
    site = Site(f"/a/{HOSTILE}", 1, HOSTILE, HOSTILE)
    miss = dataclasses.replace(escape(), message=HOSTILE, expected=HOSTILE, found=HOSTILE, site=site)
    match = dataclasses.replace(attention(), rule=HOSTILE, tags=(HOSTILE,), site=site)
    record = graph(1, applied=[match], near_misses=[miss], details={"source:inference": HOSTILE})
    (before, *rest) = record.snapshots
    nodes = tuple(dataclasses.replace(node, op=HOSTILE, rule=HOSTILE) for node in before.nodes)
    record.snapshots = [dataclasses.replace(before, nodes=nodes, sites=(site,), modules=(HOSTILE,)), *rest]
    return Report([Entry(HOSTILE, [record], {HOSTILE: "'"}, RIGHT)], {"cpu": HOSTILE})


def loaded(page: str, folder: Path, script: str = "", address: str = "", width: int = 1280) -> dict[str, str]:
    """What the page says about itself in a browser (`data-` attributes of its root), after `script` ran in it."""
    told = "document.documentElement.dataset"
    probe = f"<script>setTimeout(() => {{ {script}; {told}.probed = 'true' }}, 50)</script></body>"
    file = folder / "page.html"
    file.write_text(page.replace("</body>", probe.replace("TOLD", told)), encoding="utf-8")
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom",
        "--virtual-time-budget=3000", f"--window-size={width},900", f"--user-data-dir={tempfile.mkdtemp(dir=folder)}",
        f"file://{file}#{address}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    root = re.search(r"<html[^>]*>", done.stdout)
    assert root, done.stderr
    found = {name: html.unescape(value) for name, value in re.findall(r'data-([\w-]+)="([^"]*)"', root[0])}
    assert "errors" not in found, found["errors"]
    assert found["ready"] == found["probed"] == "true"
    return found


def test_the_page_needs_nothing_from_elsewhere():
    page = page_of(many(RIGHT, WRONG, None))
    assert not re.findall(r"""\ssrc=|href="(?!#)|https?://|@import|url\(""", page)
    assert "some &lt;cpu&gt;" in page and "output[1] &lt;b&gt;" in page and "prefers-color-scheme: dark" in page


def test_the_page_tells_everything_without_its_script():
    page = re.sub(r"<script.*?</script>", "", page_of(many(RIGHT, WRONG, None)), flags=re.DOTALL)
    assert page.count('class="target"') == 3 and "1 of 2" in page and "2.00×" in page and "not timed" in page
    assert "def call(x):" in page, "the generated code is shown"
    for part in ("softmax is used elsewhere", "no other user", "saves 0% and not 3%", "bert.py:128"):
        assert part in page
    assert "2.7%</b> of the time of regraft" in page and "nonzero has a size that depends on data" in page


def test_a_single_target_has_no_overview():
    page = page_of(many(RIGHT))
    assert 'id="matrix"' not in page and "all models" not in page and "1 of 2" in page


def test_pages_of_nothing():
    assert "Nothing was compiled" in page_of(Report([], {}))
    page = page_of(Report([Entry("t", [GraphRecord("g")])], {}))
    assert "No rule matched" in page and "The record holds no snapshots" in page
    assert "No graph was compiled" in page_of(Report([Entry("t", [])], {}))
    recalled = graph(1, snapshots=[], seconds={"recall": 0.1})
    assert "came from the cache" in page_of(Report([Entry("t", [recalled])], {}))


def test_pages_stay_small():
    long = "x = 1\n" * (SOURCES // 100)
    record = graph(48, details={"source:inference": long})
    page = page_of(Report([Entry(f"m{i}", [record]) for i in range(60)], {}))
    assert len(page) < 4_000_000 and "1 wrapper left out" in page
    assert len(page_of(Report([Entry("m", [graph(48)])], {}))) < 150_000


def test_markup_in_names_stays_text():
    page = page_of(hostile())
    assert "<img" not in page and page.count("</script>") == 3
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data and HOSTILE in json.loads(data[1])["strings"]


@needs_browser
@pytest.mark.parametrize("width", [thorough(1280), 400])
def test_every_page_loads(tmp_path, width, monkeypatch):
    monkeypatch.setattr("sys.argv", ["regraft", "report", "a/long/path/" * 20])
    script = """
      const clips = e => getComputedStyle(e).overflowX !== "visible";
      const clipped = e => e.parentElement !== document.body && (clips(e.parentElement) || clipped(e.parentElement));
      const wide = [...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > innerWidth);
      const told = wide.filter(e => !clipped(e)).map(e => `${e.tagName} ${e.getAttribute("class")}`).join();
      const width = document.documentElement.scrollWidth;
      TOLD.wide = width > innerWidth ? `${width} of ${innerWidth}: ${told}` : "" """
    small = (many(None), Report([], {}), Report([Entry("t", [])], {}))  # which have room enough on a wide screen
    for report in (many(RIGHT, WRONG, None), hostile(), *(small if width == 400 else ())):
        told = loaded(page_of(report), tmp_path, script, width=width)
        assert not told["wide"], "the page scrolls sideways"


@needs_browser
def test_a_cell_leads_to_the_model(tmp_path):
    script = """
      const shown = () => [...document.querySelectorAll(".target")].filter(t => !t.hidden).map(t => t.id).join();
      TOLD.first = shown() + !document.getElementById("overview").hidden;
      document.querySelector("tbody tr:nth-child(2) .cell").click();
      setTimeout(() => { TOLD.then = shown() + !document.getElementById("overview").hidden; }, 200)"""
    told = loaded(page_of(many(RIGHT, WRONG, None)), tmp_path, script)
    assert told["first"] == "true" and told["then"] == "m1false"


@needs_browser
def test_the_matrix_filters_and_sorts(tmp_path):
    script = """
      const all = selector => [...document.querySelectorAll(`#matrix ${selector}`)];
      const rows = () => all("tbody tr").filter(r => !r.hidden).map(r => r.dataset.name.slice(3, 5)).join();
      const column = name => all("thead button").find(b => b.textContent === name);
      column("sdpa").click(); TOLD.down = rows();
      column("sdpa").click(); TOLD.up = rows();
      document.querySelector("[data-only=wrong]").click(); TOLD.wrong = rows();
      document.querySelector("[data-only=wrong]").click();
      const box = document.getElementById("filter");
      box.value = "m2"; box.dispatchEvent(new Event("input")); TOLD.named = rows();
      box.value = "linear"; box.dispatchEvent(new Event("input")); TOLD.byrule = rows()"""
    told = loaded(page_of(many(RIGHT, WRONG, None)), tmp_path, script)
    assert (told["down"], told["up"]) == ("m2,m1,m0", "m0,m1,m2")
    assert (told["wrong"], told["named"], told["byrule"]) == ("m1", "m2", "m0,m1,m2")


@needs_browser
def test_columns_out_of_sight_are_counted(tmp_path):
    matches = [dataclasses.replace(attention(), rule=f"rule_{i}", family="f") for i in range(30)]
    report = Report([Entry(f"m{i}", [graph(1, applied=matches)], {}, RIGHT) for i in range(2)], ENVIRONMENT)
    script = """
      const further = document.getElementById("further"), matrix = document.querySelector(".matrix");
      TOLD.before = further.textContent;
      matrix.scrollLeft = 1e5;
      matrix.dispatchEvent(new Event("scroll"));
      TOLD.after = further.textContent"""
    told = loaded(page_of(report), tmp_path, script)
    assert re.fullmatch(r"\d+ more columns →", told["before"]) and told["after"] == ""
    assert loaded(page_of(many(RIGHT, RIGHT)), tmp_path, script)["before"] == ""


def test_options_of_most_models_are_told_once():
    choices = [{"mask": "", "tiny": ""}] * 3 + [{"tiny": ""}]
    page = page_of(Report([Entry(f"hf:m{i}", [graph(1)], own, RIGHT) for i, own in enumerate(choices)], {}))
    rows = re.findall(r'<th scope="row".*?</th>', page)
    assert "With <code>--mask --tiny</code> where a row says nothing else" in page
    assert [("<small>" in row) for row in rows] == [False, False, False, True] and "--tiny" in rows[3].split("<small>")[
        1
    ]


def test_rewrites_are_counted_apart_from_simplifications():
    small = dataclasses.replace(attention(), rule="identity", family="algebra", stage="simplify")
    page = page_of(
        Report([Entry(f"m{i}", [graph(1, applied=[attention(), *[small] * 9])], {}, RIGHT) for i in (0, 1)], {})
    )
    assert "2 models, 2 rewrites" in page and "besides, 18 simplifications" in page
    assert "attention 1 applied" in page and "9 simplifications" in page
    columns = re.findall(r'class="upright([^"]*)" aria-sort="none" data-rule="(\w+)"', page)
    assert columns[-1] == (" simplifies", "identity"), "those columns come last"


@needs_browser
def test_drawings_open_and_answer(tmp_path):
    script = """
      const panes = document.querySelectorAll(".pane svg");
      TOLD.boxes = [...panes].map(p => p.querySelectorAll(".box").length).join();
      TOLD.regions = panes[0].querySelectorAll(".region.applied").length;
      TOLD.made = [...panes[1].querySelectorAll(".box.made .label")].map(t => t.textContent).join();
      TOLD.count = panes[0].querySelector(".count").textContent;
      const key = name => panes[0].dispatchEvent(new KeyboardEvent("keydown", { key: name }));
      key("ArrowDown"); key("ArrowDown"); key("ArrowDown"); key("ArrowDown");
      TOLD.inspector = document.querySelector(".inspector").textContent;
      document.querySelector(".legend button").click();
      TOLD.dimmed = document.querySelectorAll("svg.dimmed").length"""
    told = loaded(page_of(Report([Entry("hf:bert", [graph(12)])], ENVIRONMENT)), tmp_path, script)
    assert (told["boxes"], told["regions"], told["made"], told["count"]) == ("9,7", "1", "sdpa", "× 12")
    assert "aten.softmax" in told["inspector"] and SOFTMAX.code in told["inspector"]
    assert told["dimmed"] == "2"


@needs_browser
def test_both_sides_of_a_graph_start_at_the_first_rewrite_and_scroll_together(tmp_path):
    script = """
      const [before, after] = document.querySelectorAll(".canvas");
      const top = (canvas, name) => {
        const named = box => box.querySelector(".label").textContent === name;
        const found = [...canvas.querySelectorAll(".box")].filter(named).at(-1);
        return Math.round(found.getBoundingClientRect().top - canvas.getBoundingClientRect().top);
      };
      const moved = (canvas, to) => { canvas.scrollTop = to; canvas.dispatchEvent(new Event("scroll")); };
      before.style.height = after.style.height = "150px";
      moved(before, 260);
      TOLD.down = [top(before, "add"), top(after, "add")].join();
      moved(after, after.scrollTop);  // its own event, which moves nothing
      moved(after, 0);
      TOLD.up = before.scrollTop"""
    told = loaded(page_of(Report([Entry("hf:bert", [graph(12)])], ENVIRONMENT)), tmp_path, script)
    down = [int(y) for y in told["down"].split(",")]
    assert abs(down[0] - down[1]) < 40 and int(told["up"]) < 40


@needs_browser
def test_names_of_rewrites_do_not_overlap(tmp_path):
    record = graph(1)
    before, after = record.snapshots
    nodes, names = before.regions[0].nodes, ("sdpa", "a_rule_with_a_long_name", "another_rule")
    record.applied = [dataclasses.replace(attention(), rule=name) for name in names]
    regions = tuple(dataclasses.replace(before.regions[0], index=i, nodes=nodes[:1]) for i in range(3))
    record.snapshots = [dataclasses.replace(before, regions=regions), after]
    script = """
      const tags = [...document.querySelectorAll(".tag rect")].map(r => r.getBoundingClientRect());
      TOLD.names = [...document.querySelectorAll(".tag")].map(t => t.textContent).join();
      const apart = (a, b) => a === b || a.right <= b.left || b.right <= a.left || a.top !== b.top;
      TOLD.apart = tags.every(a => tags.every(b => apart(a, b)));
      const drawn = document.querySelector("svg[role]").getBoundingClientRect();
      TOLD.inside = tags.every(t => t.right <= drawn.right && t.top >= drawn.top)"""
    told = loaded(page_of(Report([Entry("m", [record])], ENVIRONMENT)), tmp_path, script)
    assert sorted(told["names"].split(",")) == sorted(names) and told["apart"] == told["inside"] == "true"


@needs_browser
def test_an_address_opens_a_part_of_a_model(tmp_path):
    script = """
      TOLD.shown = [...document.querySelectorAll(".target")].filter(t => !t.hidden).map(t => t.id).join();
      TOLD.top = Math.round(document.getElementById("m2-gains").getBoundingClientRect().top)"""
    told = loaded(page_of(many(RIGHT, WRONG, None)), tmp_path, script, address="m2-gains")
    assert told["shown"] == "m2" and 0 <= int(told["top"]) < 400


@needs_browser
def test_a_broken_script_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="undefinedThing"):
        loaded(page_of(many(None)).replace('"use strict";\n(() =>', '"use strict";undefinedThing;\n(() =>'), tmp_path)


def test_the_foot_says_what_made_the_page_and_when(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/regraft", "report", "hf:<b>", "--config", "{}"])
    (foot,) = re.findall(r"<footer>(.*?)</footer>", page_of(many(RIGHT)))
    made, _, machine = html.unescape(foot).partition(" on ")
    assert re.fullmatch(r"Made by regraft report 'hf:<b>' --config '\{\}', \d{4}-\d\d-\d\d", made)
    assert machine == "torch 2.13 · cpu some <cpu>."


def test_compile_time_says_what_the_stages_do_not_count():
    record = graph(1, seconds={"capture": 1.0, "passes": 0.25, "masks": 0.25})
    timed = dataclasses.replace(RIGHT, dynamo_seconds=1.2)
    page = page_of(Report([Entry("m", [record], {}, timed)], ENVIRONMENT))
    assert "The first call took 3 s: 1.2 s in Dynamo, 1.5 s in the stages of regraft." in page
    assert "passes over whole graphs" in page and "which entries attention masks keep" in page
    stages = dict(re.findall(r"<b>([^<]*)</b><span>([^<]*)</span><small>", page))
    assert stages["dynamo"] == "1.2 s · 40%" and stages["the rest"] == "300 ms · 10%" and list(stages)[-1] == "the rest"
    page = page_of(Report([Entry("m", [record], {}, RIGHT)], ENVIRONMENT))
    assert "Dynamo's time was not recorded" in page and "<b>dynamo</b>" not in page
    page = page_of(Report([Entry("m", [record])], ENVIRONMENT))
    assert "The first call" not in page and "Dynamo, which runs before them, is not among them" in page


def test_every_mark_is_explained_in_place():
    page = page_of(Report([Entry("m", [graph(1, near_misses=[escape()])], {}, RIGHT)], ENVIRONMENT))
    drawn = ("applied", "declined", "miss", "made", "end", "group", "frame", "kernel")
    assert tuple(re.findall(r'<i class="mark (\w+)">', page)) == drawn
    for mark in ("error", "rounding of f32", "tolerance", "near misses", "applied"):
        assert re.search(rf'class="marks.*?</i>[^<]*{mark}</span>', page), mark
    told = ("A near miss is a match that failed", "Each square is an operator", "A bar is the time of one candidate")
    assert all(
        text in page for text in (*told, "±: half of the calls are that near" if RIGHT.eager_spread else "Gain:")
    )


def test_near_misses_are_counted_alike():
    page = page_of(Report([Entry("m", [graph(1, near_misses=[escape(), escape()])], {}, RIGHT)], ENVIRONMENT))
    assert "2 near misses" in page and "Near misses<b>2</b>" in page
