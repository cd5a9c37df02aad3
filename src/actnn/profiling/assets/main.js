const data = JSON.parse(document.getElementById("data").textContent);
const { exact, compressed } = data.contestants;
const { settings } = data;
const find = (id) => document.getElementById(id);
const LEVEL = data.average_bits === null ? settings.level : `${settings.level}, ${settings.bits} bits`;
const TITLES = { exact: "Exact training", compressed: `actnn ${LEVEL}` };
const MOST_SHARES = 8;

function masthead() {
  find("model").textContent = settings.model;
  const versions = data.machine.versions ?? {};
  const torch = versions.torch ? ` · torch ${versions.torch}` : "";
  find("settings").textContent = `batch ${settings.batch} · input ${settings.input.join("×")} · level ${LEVEL}${torch} · ${data.machine.date}`;
}

function figure(name, value, unit, detail, tone = "") {
  const big = make("p", { class: "value" }, value, make("small", {}, unit));
  return make("div", { class: `figure ${tone}`.trim() }, make("p", { class: "name" }, name), big, make("p", { class: "detail" }, detail));
}

/** Compare two amounts; only less is coloured as a success, and what rounds to no change is none. */
function comparison(name, before, after, first = false) {
  const [more, less] = [Math.max(before, after), Math.min(before, after)];
  const same = more === less || ratio(more, less) === ratio(1, 1);
  const detail = `${bytes(before)} → ${bytes(after)}`;
  if (same) return figure(name, ratio(1, 1), "as much", detail);
  if (after > before) return figure(name, ratio(more, less), "more", detail, "worse");
  return figure(name, ratio(more, less), "less", detail, first ? "better" : "");
}

const always = Object.values(compressed.always_there).reduce((sum, held) => sum + held, 0);

function figures() {
  const [before, after] = [exact.peak_bytes, compressed.peak_bytes];
  find("figures").append(
    comparison("Kept for backward", exact.kept_bytes, compressed.kept_bytes, true),
    comparison(data.replayed ? "Peak of a step, as allocated" : "Peak of a step", before, after, true),
    comparison("With weights, gradients, optimizer", before + always, after + always),
    data.average_bits === null
      ? figure("Codes", "–", "", "this level keeps none")
      : figure("Codes", data.average_bits.toFixed(2), "bits a value", data.variance === null ? "" : `noise ${scientific(data.variance)} of |gradient|²`),
  );
}

function timeline(onLayer) {
  find("timeline-note").textContent = `All that the step takes, above what is always there: weights, gradients and the optimizer's state, ${bytes(always)}. Point at it to see what is held.`;
  const charts = Object.entries(data.contestants).map(([name, contestant]) => new Chart(find("charts"), TITLES[name], contestant, find("tooltip"), onLayer));
  const order = [...new Set([...Object.keys(exact.passes), ...Object.keys(exact.layers), ...Object.keys(compressed.layers)])].filter((name) => name !== "");
  const depth = groupDepth(order);
  const all = [...new Set(order.map((name) => groupOf(name, depth)))];
  const groups = [...(all.length > 2 * MOST_GROUPS ? all.slice(0, 2 * MOST_GROUPS) : all), OUTSIDE_LAYERS];
  const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
  const render = () => {
    const most = Math.max(...charts.map((chart) => chart.contestant.peak.bytes));
    const seriesOf = (contestant) => (chosen("stack") === "category" ? categorySeries(contestant, data.categories) : layerSeries(contestant, groups, depth));
    const drawn = charts.map((chart) => {
      const series = seriesOf(chart.contestant);
      chart.render(series, chosen("scale") === "same" ? most : chart.contestant.peak.bytes);
      return series;
    });
    legend(drawn, charts);
  };
  for (const input of document.querySelectorAll(".switch input")) input.addEventListener("change", render);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
  addEventListener("beforeprint", render);
  render();
  return charts;
}

function legend(drawn, charts) {
  const meanings = new Map(data.categories.map((category) => [category.name, category.meaning]));
  // a curve too thin to be seen needs no name
  const least = Math.max(...charts.map((chart) => chart.contestant.peak.bytes)) * 1e-3;
  const used = drawn[0].filter((_, index) => drawn.some((series) => series[index].values.some((held) => held > least)));
  find("legend").replaceChildren(...used.map(({ name, color }) => {
    const entry = make("li", { title: meanings.get(name) ?? "", "data-name": name }, chip(color), name);
    entry.addEventListener("pointerenter", () => charts.forEach((chart) => chart.light(name)));
    entry.addEventListener("pointerleave", () => charts.forEach((chart) => chart.light(null)));
    return entry;
  }));
}

function words() {
  find("sentences").append(...data.sentences.map((text) => make("li", text.startsWith("Advice") ? { class: "advice" } : {}, text)));
  if (!data.forecasts.length) return;
  const head = ["Setting", "Kept", "Peak", "Below exact"];
  const line = (texts, tag) => make("tr", {}, ...texts.map((text, index) => make(tag, { class: index ? "figure-cell" : "" }, text)));
  const rows = [
    line(["exact (replayed)", bytes(exact.kept_bytes), bytes(exact.peak.bytes), ""], "td"),
    line([`${LEVEL} (measured)`, bytes(compressed.kept_bytes), bytes(compressed.peak.bytes), ratio(exact.peak.bytes, compressed.peak.bytes)], "td"),
    ...data.forecasts.filter((found) => found.level !== settings.level || found.bits !== settings.bits).map((found) => line([`${found.level}, ${found.bits} bits`, bytes(found.kept_bytes), bytes(found.peak_bytes), ratio(exact.peak.bytes, found.peak_bytes)], "td")),
  ];
  find("forecasts").append(
    make("h3", {}, "What other settings would take"),
    make("table", { class: "small" }, make("thead", {}, line(head, "th")), make("tbody", {}, ...rows)),
    make("p", { class: "note" }, "Computed, not measured: the measured codes scaled to another width, everything else as it was. At L4 codes are on disk; what of them may be in memory counts in full, so both figures are upper bounds."),
  );
}

function peaks() {
  const widest = Math.max(exact.peak.bytes, compressed.peak.bytes, 1);
  for (const [name, { peak }] of Object.entries(data.contestants)) {
    const sums = data.categories.map((category) => peak.shares.filter((share) => share.category === category.name).reduce((sum, share) => sum + share.nbytes, 0));
    const bar = make("div", { class: "bar", role: "img", "aria-label": `${TITLES[name]} by category`, style: `width:${(100 * peak.bytes / widest).toFixed(2)}%` });
    sums.forEach((held, index) => {
      const category = data.categories[index].name;
      if (held) bar.append(make("div", { style: `width:${(100 * held / Math.max(1, peak.bytes)).toFixed(2)}%;background:${categoryColor(category)}`, title: `${category}: ${bytes(held)}, ${percent(held, peak.bytes)}` }));
    });
    const rows = peak.shares.slice(0, MOST_SHARES).map((share) => make("tr", { title: `taken by ${share.makers.join(", ")}${share.holders.length ? `; held by ${share.holders.join(", ")}` : ""}` },
      make("td", { class: "name-cell" }, share.layer || OUTSIDE_LAYERS),
      make("td", {}, chip(categoryColor(share.category)), share.category),
      make("td", { class: "figure-cell" }, bytes(share.nbytes)),
      make("td", { class: "figure-cell" }, percent(share.nbytes, peak.bytes))));
    const rest = peak.shares.slice(MOST_SHARES);
    if (rest.length) {
      const held = rest.reduce((sum, share) => sum + share.nbytes, 0);
      rows.push(make("tr", { class: "dim" }, make("td", {}, `${rest.length} smaller parts`), make("td"), make("td", { class: "figure-cell" }, bytes(held)), make("td", { class: "figure-cell" }, percent(held, peak.bytes))));
    }
    const title = make("h3", {}, `${TITLES[name]} `, make("span", { class: "total" }, bytes(peak.bytes)));
    find("peaks").append(make("div", {}, title, bar, make("table", { class: "small" }, make("tbody", {}, ...rows))));
  }
}

function footer() {
  const agreement = ({ peak, true_peak: seen }) => (seen ? `${bytes(peak.bytes)} replayed, ${bytes(seen)} resident` : `${bytes(peak.bytes)} replayed`);
  const { machine } = data;
  const versions = Object.entries(machine.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
  find("footer").append(
    make("p", {}, `Each kind of training ran in a process of its own: some steps to settle, one measured as the system sees it, one recorded with torch's profiler. Peaks: exact ${agreement(exact)}; compressed ${agreement(compressed)}. Replayed is what was allocated; pages that nobody has written yet are not resident. Random inputs, fresh weights; times are those of the recording and no benchmark.`),
    make("p", {}, `${machine.processor}, ${machine.cores} cores, ${machine.memory_gib} GiB; Python ${machine.python}${versions ? `, ${versions}` : ""}.`),
  );
}

function theme() {
  const button = find("theme");
  const root = document.documentElement;
  const set = (name) => { root.dataset.theme = name; button.textContent = name === "dark" ? "Light" : "Dark"; };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const initial = { "#dark": "dark", "#light": "light" }[location.hash] ?? (system.matches ? "dark" : "light");
  set(initial);
  button.addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
  let before = initial;
  addEventListener("beforeprint", () => { before = root.dataset.theme; set("light"); });
  addEventListener("afterprint", () => set(before));
}

theme();
masthead();
figures();
const charts = timeline((name) => table.mark(name));
const table = new LayerTable(find("layers"), find("search"), find("count"), data.table, data.balance, (name) => charts.forEach((chart) => chart.highlight(name)));
words();
peaks();
footer();
