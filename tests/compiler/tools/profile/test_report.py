"""Kernel reports as text and as a page, from made-up numbers."""

import re
from dataclasses import replace

import pytest

from regraft.compiler.tools.profile.limits import Limits
from regraft.compiler.tools.profile.report import KernelReport
from regraft.compiler.tools.profile.roofline import HEIGHT, WIDTH, roofline
from regraft.compiler.tools.profile.rows import KernelRow
from regraft.compiler.tools.profile.units import amount, percent
from regraft.rewrites.reason import Site
from regraft.rewrites.report.document import ReportError
from regraft.rewrites.report.text import plain

LIMITS = Limits("cuda:0", 4e12, {"bfloat16": 8e14, "float64": 0.0})
SITE = Site("models/bert.py", 12, "forward", "x = a < b & c")


def row(name, seconds, **given):
    return KernelRow(name, "generated", "inference", 2, seconds, "f32[8] -> f32[8]", **given).bounded_by(LIMITS)


def made(*rows):
    return KernelReport(rows, LIMITS, 2e-3, 5, "inference", {"torch": "2.13"}, "<model>")


REPORT = made(
    row("gelu_of_a_name_that_is_much_too_long_to_be_shown_in_a_terminal_1234abcd", 4e-4, read=4 << 20, written=4 << 20),
    row("mm", 1e-3, read=1 << 20, written=1 << 20, flops=2 * 10**11, dtype="bfloat16", sites=[SITE, SITE]),
    row("nothing", 1e-6),
)


def test_what_bounds_a_kernel():
    gelu, product, nothing = REPORT.rows
    assert (gelu.bound, product.bound, nothing.bound) == ("memory", "matrix", "")
    assert gelu.bound_seconds == pytest.approx(2 * (8 << 20) / 4e12)
    assert product.part(product.bound_seconds) == pytest.approx(2 * 2e11 / 8e14 / 1e-3)
    assert REPORT.gap_seconds == pytest.approx(2e-3 - 1.401e-3)


def test_a_dtype_without_a_rate_is_bounded_by_memory():
    assert row("mm", 1e-3, read=100, flops=10**9, dtype="float64").bound == "memory"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_keeps_to_the_terminal(width):
    text = plain(REPORT.view(), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "50% matrix" in text and "memory" in text


def test_text_at_80_columns():
    lines = str(REPORT).splitlines()
    (product,) = (line for line in lines if line.startswith("mm "))
    assert re.search(r"2\s+1 ms\s+71%\s+400 TF/s\s+50% matrix$", product)
    assert "  bert.py:12 x = a < b & c +1" in lines
    assert any(line.startswith("gaps") and "599 µs, 30% of the call" in line for line in lines)


def test_top_kernels_only():
    text = plain(REPORT.view(top=1))
    assert "and 2 more: 1 ms, 71%" in text and "mm  " not in text


def test_page_is_self_contained_and_escaped(tmp_path):
    page = REPORT.write(tmp_path / "kernels.html").read_text()
    assert "&lt;model&gt;" in page and "<model>" not in page and "a &lt; b &amp; c" in page
    assert not re.search(r"""(src|href)=["'](?!#)|https?://|@import|url\(""", page)
    assert page.count('<circle class="generated"') == 2 and "prefers-color-scheme: dark" in page
    assert "50% of matrix limit" in page and "4 TB/s (copy)" in page and "800 TFLOP/s in bfloat16" in page


def test_bars_are_split_at_the_limit(tmp_path):
    page = REPORT.write(tmp_path / "kernels.html").read_text()
    product = page.split('<b title="mm">')[1].split("</svg>")[0]
    assert 'class="least" width="500.0"' in product and 'x="500.0" width="500.0"' in product


def test_names_in_the_roofline_do_not_overlap():
    rows = [replace(REPORT.rows[0], name=f"kernel_{i}.default", seconds=1e-3 * (20 - i)) for i in range(12)]
    near = Limits("cuda:0", 4e12, {"float16": 1.00e14, "bfloat16": 1.01e14, "float32": 1.02e14})
    drawn = roofline(replace(REPORT, rows=rows, limits=near))
    assert len({roof.y for roof in drawn.roofs}) == 4, "limits that are nearly equal have names in rows of their own"
    boxes = [name.box for name in drawn.names]
    assert boxes and drawn.names[0].text == "kernel_0"
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0 and right <= WIDTH
        assert not any(left < dot.x < right and top < dot.y < bottom for dot in drawn.dots), "it covers a dot"
        assert not any(left < r and x < right and top < b and y < bottom for x, y, r, b in boxes[:i])


def test_crowded_dots_have_names_too():
    rows = [replace(REPORT.rows[0], name=f"kernel_{i}.default", seconds=1e-3 * (1 + 0.02 * i)) for i in range(6)]
    drawn = roofline(replace(REPORT, rows=rows))
    assert len(drawn.names) == 6 and {name.end is None for name in drawn.names} == {True, False}
    for name in drawn.names:
        left, top, right, bottom = name.box
        for dot in drawn.dots:
            across, down = max(left - dot.x, dot.x - right, 0), max(top - dot.y, dot.y - bottom, 0)
            assert across**2 + down**2 >= dot.radius**2, "a name covers a dot"


def test_roofline_lies_inside_its_frame():
    drawn = roofline(REPORT)
    points = [tuple(map(float, p.split(","))) for roof in drawn.roofs for p in roof.points.split()]
    points += [(dot.x, dot.y) for dot in drawn.dots]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    slope, flat = drawn.roofs
    assert slope.points.split()[-1] == flat.points.split()[0]  # they meet at the ridge


def test_reports_of_nothing(tmp_path):
    empty = made()
    assert roofline(empty) is None and "0 s" not in str(empty)
    assert "Where the time goes" in empty.write(tmp_path / "empty.html").read_text()
    assert "Roofline</h2>" not in empty.write(tmp_path / "empty.html").read_text()


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ReportError, match="is written as"):
        REPORT.write(tmp_path / "kernels.txt")


def test_units():
    assert [amount(n, "B/s") for n in (0, 12, 3.2e9, 4e15)] == ["0 B/s", "12 B/s", "3.2 GB/s", "4 PB/s"]
    assert [percent(1, 8), percent(1, 80), percent(1, 0)] == ["12%", "1.2%", "0.0%"]
