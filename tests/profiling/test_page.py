"""The HTML page, in a real browser."""

import json
import re

import pytest
from browser import visit
from profiles import profile, row

from actnn.profiling import page
from actnn.profiling.growth import MEASURABLE_BYTES

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{data}}\u2028$&"
FORECASTS = ({"level": "L2", "bits": 4, "kept_bytes": 100, "peak_bytes": 1000},)
# what the scripts below begin with
NAMES = "const names = () => [...document.querySelectorAll('#layers tbody tr')].map((row) => row.dataset.layer);"
CHARTS = "const charts = [...document.querySelectorAll('.chart svg')];"


@pytest.fixture(scope="module")
def html():
    return page.html(profile(forecasts=FORECASTS), 10**9)


def test_the_page_needs_nothing_from_elsewhere(html):
    assert "://" not in html
    assert "default-src 'none'" in html
    assert not re.search(r"\{\{\w+\}\}", html)


def test_it_renders_every_part_without_an_error(html, tmp_path):
    script = f"""{NAMES} {CHARTS}
    return {{
      title: document.title,
      figures: [...document.querySelectorAll(".figure .value")].map((value) => value.textContent),
      curves: charts.map((chart) => chart.querySelectorAll(".stack path").length),
      peaks: charts.map((chart) => chart.querySelector("text.peak").textContent),
      names: names(),
      sentences: document.querySelectorAll("#sentences li").length,
      forecasts: document.querySelectorAll("#forecasts tbody tr").length,
      shares: document.querySelectorAll("#peaks tbody tr").length,
    }};"""
    found = visit(html, script, tmp_path)
    assert found["title"] == "small · L3 · actnn profile"
    assert len(found["figures"]) == 4
    assert found["curves"] == [8, 8]
    assert found["peaks"] == ["peak 3.6 KiB", "peak 3.6 KiB"]
    assert found["names"] == ["head.9", "conv", "head.10", "relu", "norm"]
    assert found["sentences"] == 5
    assert found["forecasts"] == 3
    assert found["shares"] == 10


@pytest.mark.parametrize(
    ("peaks", "figure"),
    [
        ((8, 4), ["2.0×less", "figure better"]),
        ((4, 8), ["2.0×more", "figure worse"]),
        ((4, 4), ["1.0×as much", "figure"]),
        # equal as far as it is shown
        ((4, 4.1), ["1.0×as much", "figure"]),
    ],
)
def test_a_figure_says_whether_it_is_less_or_more_and_only_less_is_a_success(tmp_path, peaks, figure):
    given = profile()
    for name, peak in zip(("exact", "compressed"), peaks, strict=True):
        given[name]["true_peak"] = int(peak * MEASURABLE_BYTES)
        given[name]["peak"] |= {"bytes": int(peak * MEASURABLE_BYTES)}
    script = """
    const value = document.querySelectorAll(".figure .value")[1];
    return [value.textContent, value.parentNode.className];"""
    assert visit(page.html(given, None), script, tmp_path) == figure


def test_the_foot_of_the_table_leads_to_the_figures_above(tmp_path):
    given = profile()
    # the first layer reads the batch, which was there before the step
    given["exact"]["kept"] = {"head.9": 4000, "head.10": 4000, "": 500}
    script = """
    const total = [...document.querySelector("#layers tfoot").lastChild.cells].map((cell) => cell.textContent);
    const labels = [...document.querySelectorAll("#layers tfoot tr")].map((row) => row.cells[0].textContent);
    const text = (selector) => document.querySelector(`.figure ${selector}`).textContent;
    return { total, labels, value: text(".value"), detail: text(".detail") };"""
    found = visit(page.html(given, None), script, tmp_path)
    label, exact, kept, times, *_ = found["total"]
    assert label == "total"
    assert found["detail"] == f"{exact} → {kept}"
    assert found["value"] == f"{times}less"
    assert found["labels"][-2] == "not kept: the batch, or another layer's"


def test_a_wide_window_shows_every_column_and_usual_names_in_one_line(tmp_path):
    given = profile(layer="layer1.0.downsample.1")
    given["compressed"]["kinds"]["layer1.0.downsample.1"] = "QBatchNorm2d"
    names = ["layer2.0.downsample.0", "layer2.0.conv1"]
    rows = [row(f"layer{index}.0.bn1", kept_bytes=1005 * 1024, exact_bytes=1005 * 1024 * 9) for index in range(40)]
    given["compressed"]["rows"] += [each | {"readers": names} for each in rows]
    given["compressed"]["kinds"] |= {each["layer"]: "QBatchNorm2d" for each in rows}
    given["compressed"]["sensitivity"] |= {each["layer"]: 1.2e-5 for each in rows}
    script = """
    const scroll = document.querySelector(".scroll");
    const range = document.createRange();
    range.selectNodeContents(document.querySelector('tr[data-layer="layer1.0.downsample.1"] .name-cell'));
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
    return [scroll.scrollWidth - scroll.clientWidth, scroll.scrollHeight > scroll.clientHeight, lines];"""
    assert visit(page.html(given, None), script, tmp_path, size="1400,900") == [0, True, 1]


def test_a_click_on_a_column_sorts_and_another_one_turns_the_order_round(html, tmp_path):
    script = f"""{NAMES}
    const head = (key) => document.querySelector(`th[data-key="${{key}}"]`);
    const click = (key) => {{ head(key).querySelector("button").click(); return [names(), head(key).ariaSort]; }};
    const found = {{ name: click("name"), back: click("name"), bits: click("bits") }};
    const heads = [...document.querySelectorAll("#layers thead th")];
    return {{ ...found, sorted: heads.filter((each) => each.ariaSort !== "none").length }};"""
    found = visit(html, script, tmp_path)
    # numbers within names count as numbers
    assert found["name"] == [["conv", "head.9", "head.10", "norm", "relu"], "ascending"]
    assert found["back"] == [["relu", "norm", "head.10", "head.9", "conv"], "descending"]
    # what has no width comes last
    assert found["bits"][0][0] == "head.10"
    assert found["bits"][0][-2:] == ["relu", "norm"]
    assert found["sorted"] == 1


def test_a_search_narrows_the_table_by_name_kind_and_reader(html, tmp_path):
    script = f"""{NAMES}
    const search = document.getElementById("search");
    const type = (text) => {{
      search.value = text;
      search.dispatchEvent(new Event("input"));
      return [names(), document.getElementById("count").textContent];
    }};
    return {{ name: type("HEAD"), kind: type("qrelu"), reader: type("read by relu"), none: type("zzz"),
      text: document.querySelector("#layers tbody").textContent, all: type("")[0].length }};"""
    found = visit(html, script, tmp_path)
    assert found["name"] == [["head.9", "head.10"], "2 of 5 layers"]
    assert found["kind"][0] == ["relu"]
    assert found["reader"][0] == ["conv"]
    assert found["none"][1] == "0 of 5 layers"
    assert found["text"] == "No layer matches."
    assert found["all"] == 5


@pytest.mark.parametrize(("begins", "ends"), [("pointerenter", "pointerleave"), ("focus", "blur")])
def test_pointing_at_a_row_shows_the_layer_in_both_pictures(html, tmp_path, begins, ends):
    script = f"""{CHARTS}
    const row = document.querySelector('tr[data-layer="conv"]');
    const state = () => charts.map((chart) => [chart.querySelectorAll(".band").length,
      chart.querySelector(".own").getAttribute("d").length > 0,
      chart.querySelector(".stack").classList.contains("dimmed")]);
    const before = state();
    row.dispatchEvent(new Event("{begins}"));
    const during = state();
    row.dispatchEvent(new Event("{ends}"));
    return {{ before, during, after: state() }};"""
    found = visit(html, script, tmp_path)
    assert found["during"] == [[2, True, True]] * 2
    assert found["before"] == found["after"] == [[0, False, False]] * 2


def test_pointing_at_a_picture_tells_what_is_held_and_marks_the_layer_that_runs(html, tmp_path):
    script = f"""{CHARTS}
    const tooltip = document.getElementById("tooltip");
    const [chart] = charts;
    const box = chart.getBoundingClientRect();
    // the peak, at 157 of 210, right of an axis of 66 pixels
    const at = box.left + 66 + (box.width - 80) * 157.2 / 210;
    chart.dispatchEvent(new PointerEvent("pointermove", {{ clientX: at, clientY: box.top + 50 }}));
    const text = (selector) => tooltip.querySelector(selector).textContent;
    const shown = [tooltip.hidden, text("b"), text(".running")];
    const marked = [...document.querySelectorAll("tr.running")].map((row) => row.dataset.layer);
    const entries = tooltip.querySelectorAll(".entry").length;
    chart.dispatchEvent(new PointerEvent("pointerleave"));
    const hidden = tooltip.hidden;
    chart.dispatchEvent(new KeyboardEvent("keydown", {{ key: "ArrowRight" }}));
    return {{ shown, marked, entries, hidden, byKey: !tooltip.hidden }};"""
    found = visit(html, script, tmp_path)
    assert found["shown"] == [False, "3.6 KiB", "conv"]
    assert found["marked"] == ["conv"]
    assert found["entries"] == 5
    assert found["hidden"]
    assert found["byKey"]


def test_curves_stack_by_layer_and_scale_on_their_own(html, tmp_path):
    script = f"""{CHARTS}
    const shown = () => [...document.querySelectorAll("#legend li")].map((entry) => entry.dataset.name);
    const before = shown();
    document.querySelector('input[value="layer"]').click();
    const after = shown();
    document.querySelector('input[value="own"]').click();
    return {{ before, after, curves: charts.map((chart) => chart.querySelectorAll(".stack path").length) }};"""
    found = visit(html, script, tmp_path)
    assert "codes" in found["before"]
    assert found["after"] == ["conv", "relu"]
    assert found["curves"] == [2, 2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_light_or_dark_and_a_button_changes_that(html, tmp_path, scheme):
    script = """
    const root = document.documentElement;
    const state = () => [root.dataset.theme, getComputedStyle(document.body).backgroundColor];
    const before = state();
    document.getElementById("theme").click();
    return { before, after: state() };"""
    found = visit(html, script, tmp_path, fragment=f"#{scheme}")
    assert found["before"][0] == scheme
    assert found["after"][0] != scheme
    assert found["before"][1] != found["after"][1]


def test_a_narrow_window_scrolls_in_one_direction_only(html, tmp_path):
    script = "return [document.documentElement.scrollWidth, innerWidth];"
    width, window = visit(html, script, tmp_path, size="500,900")
    assert width <= window


def test_names_are_text_whatever_they_hold(tmp_path):
    html = page.html(profile(model=HOSTILE, layer=HOSTILE), None)
    script = f"""{NAMES}
    return {{ model: document.querySelector("h1").textContent, title: document.title, names: names(),
      images: document.images.length, bold: document.querySelectorAll("td b").length }};"""
    found = visit(html, script, tmp_path)
    assert found["model"] == HOSTILE
    assert found["title"].startswith("</script>")
    assert HOSTILE in found["names"]
    assert found["images"] == found["bold"] == 0


def test_embedded_data_is_json_that_cannot_end_its_element():
    embedded = page.embedded({"name": HOSTILE})
    assert "<" not in embedded
    assert json.loads(embedded) == {"name": HOSTILE}


def test_a_level_without_codes_has_a_page_too(tmp_path):
    given = profile()
    empty = {"rows": [], "average_bits": None, "sensitivity": {}, "variance": {}, "squared_norms": {}, "forecasts": []}
    given["compressed"] |= empty
    script = "return [...document.querySelectorAll('.caption b')].map((title) => title.textContent);"
    assert visit(page.html(given, None), script, tmp_path) == ["Exact training", "actnn L3"]
