const MARGIN = { left: 66, right: 14, top: 20, bottom: 24 };
const OUTSIDE_LAYERS = "(outside layers)";
const MOST_GROUPS = 12;

/** Return the curves of a contestant: one for each category. */
function categorySeries(contestant, categories) {
  return categories.map((category, index) => ({
    name: category.name,
    color: categoryColor(category.name),
    values: contestant.categories.map((held) => held[index]),
  }));
}

/** Return what one layer holds at each moment, from the moments at which it changes. */
function layerValues(contestant, layer) {
  const values = new Float64Array(contestant.times.length);
  const changes = contestant.layers[layer] ?? [];
  changes.forEach(([from, held], index) => values.fill(held, from, changes[index + 1]?.[0] ?? values.length));
  return values;
}

/** Return how deep paths are cut so that layers fall into a handful of groups, counted over both runs. */
function groupDepth(names) {
  let depth = 1;
  for (let tried = 1; tried <= 4; tried += 1) {
    const count = new Set(names.map((name) => groupOf(name, tried))).size;
    if (count > MOST_GROUPS) break;
    depth = tried;
  }
  return depth;
}

function groupOf(name, depth) {
  return name === "" ? OUTSIDE_LAYERS : name.split(".").slice(0, depth).join(".");
}

/** Return the curves of a contestant: one for each group of layers, in the order of the model. */
function layerSeries(contestant, groups, depth) {
  const sums = new Map(groups.map((name) => [name, new Float64Array(contestant.times.length)]));
  for (const layer of Object.keys(contestant.layers)) {
    const group = groupOf(layer, depth);
    const sum = sums.get(group) ?? sums.get(groups.at(-1));
    layerValues(contestant, layer).forEach((held, index) => { sum[index] += held; });
  }
  return groups.map((name, index) => ({ name, color: groupColor(index, groups.length), values: sums.get(name) }));
}

function groupColor(index, count) {
  return `hsl(${(168 + 300 * index / count) % 360} 46% ${index % 2 ? 62 : 50}%)`;
}

/** Return round values for an axis that ends at ``most`` bytes. */
function ticks(most) {
  const rough = most / 4;
  const unit = 1024 ** Math.floor(Math.log(Math.max(1, rough)) / Math.log(1024));
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((value) => value * unit >= rough) * unit;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => index * step);
}

/** The picture of one contestant: stacked curves, phases, the peak, and what a pointer or a chosen layer lights up. */
class Chart {
  constructor(holder, title, contestant, tooltip, onLayer) {
    Object.assign(this, { contestant, tooltip, onLayer, title, series: [], most: 1, index: null });
    this.caption = make("p", { class: "caption" }, make("b", {}, title), make("span"));
    const place = make("div", { class: "chart" }, this.caption);
    place.insertAdjacentHTML("beforeend", '<svg role="img" tabindex="0"></svg>');
    this.svg = place.lastChild;
    holder.append(place);
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX, event.clientY));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  get last() { return Math.max(...Object.values(this.contestant.phases).map((phase) => phase[1]), 1e-9); }
  x(time) { return MARGIN.left + (this.width - MARGIN.left - MARGIN.right) * time / this.last; }
  y(held) { return this.height - MARGIN.bottom - (this.height - MARGIN.top - MARGIN.bottom) * held / this.most; }

  render(series, most) {
    Object.assign(this, { series, most: most * 1.1 || 1 });
    this.width = Math.max(280, this.svg.clientWidth || 800);
    this.height = this.width < 600 ? 180 : 184;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.svg.setAttribute("aria-label", `${this.title}: memory over the step, ${bytes(this.contestant.peak.bytes)} at the peak. Arrow keys move through it.`);
    this.svg.replaceChildren();
    this.axes();
    this.bands = draw(this.svg, "g");
    this.stack = draw(this.svg, "g", { class: "stack" });
    this.areas();
    this.own = draw(this.svg, "path", { class: "own", d: "", "fill-opacity": ".75" });
    this.peak();
    this.cursor = draw(this.svg, "line", { class: "cursor", y1: MARGIN.top, y2: this.height - MARGIN.bottom, visibility: "hidden" });
  }

  axes() {
    for (const held of ticks(this.most)) {
      const y = this.y(held);
      draw(this.svg, "line", { class: "grid", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: y, y2: y });
      draw(this.svg, "text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, held ? bytes(held).replace(".0 ", " ") : "0");
    }
    for (const [name, [start, end]] of Object.entries(this.contestant.phases)) {
      const [from, to] = [this.x(start), this.x(end)];
      if (start > 0) draw(this.svg, "line", { class: "divider", x1: from, x2: from, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
      if (to - from > 64) draw(this.svg, "text", { x: (from + to) / 2, y: this.height - 7, "text-anchor": "middle" }, name);
    }
  }

  areas() {
    const { times } = this.contestant;
    const floor = new Float64Array(times.length);
    for (const { name, color, values } of this.series) {
      const top = Array.from(values, (held, index) => floor[index] + held);
      if (top.every((held, index) => held === floor[index])) continue;
      draw(this.stack, "path", { d: this.area(floor, top), fill: color, "data-name": name });
      top.forEach((held, index) => { floor[index] = held; });
    }
  }

  area(floor, top) {
    const { times } = this.contestant;
    const point = (index, held) => `${this.x(times[index]).toFixed(1)},${this.y(held).toFixed(1)}`;
    const upper = Array.from(top, (held, index) => point(index, held));
    const lower = Array.from(floor, (held, index) => point(index, held)).reverse();
    return `M${upper.join("L")}L${lower.join("L")}Z`;
  }

  peak() {
    const { bytes: held, time } = this.contestant.peak;
    const [x, y] = [this.x(time), this.y(held)];
    const right = x > this.width - 150;
    draw(this.svg, "circle", { class: "peak-dot", cx: x, cy: y, r: 4.5 });
    draw(this.svg, "text", { class: "peak", x: x + (right ? -9 : 9), y: Math.max(14, y - 5), "text-anchor": right ? "end" : "start" }, `peak ${bytes(held)}`);
    const seen = this.contestant.true_peak ? `; the process grew by ${bytes(this.contestant.true_peak)}` : "";
    this.caption.lastChild.textContent = `peak ${bytes(held)} in the ${this.contestant.peak.phase}${seen}`;
  }

  /** Show when a layer runs and what it holds, or nothing. */
  highlight(layer) {
    this.bands.replaceChildren();
    this.stack.classList.toggle("dimmed", layer !== null);
    this.own.setAttribute("d", "");
    if (layer === null) return;
    for (const phase of Object.values(this.contestant.passes[layer] ?? {})) {
      for (const [start, end] of phase) {
        const from = this.x(start);
        draw(this.bands, "rect", { class: "band", x: from, width: Math.max(2, this.x(end) - from), y: MARGIN.top, height: this.height - MARGIN.top - MARGIN.bottom });
      }
    }
    this.own.setAttribute("d", this.area(new Float64Array(this.contestant.times.length), layerValues(this.contestant, layer)));
  }

  /** Light up one curve of the stack, or all. */
  light(name) {
    this.stack.classList.toggle("dimmed", name !== null);
    for (const path of this.stack.children) path.classList.toggle("lit", path.dataset.name === name);
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const index = Math.min(this.contestant.times.length - 1, Math.max(0, (this.index ?? 0) + by));
    const box = this.svg.getBoundingClientRect();
    this.show(index, box.left + this.x(this.contestant.times[index]) * box.width / this.width, box.top + box.height / 2);
  }

  point(clientX, clientY) {
    const box = this.svg.getBoundingClientRect();
    const time = ((clientX - box.left) * this.width / box.width - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right) * this.last;
    let index = this.contestant.times.findIndex((moment) => moment > time);
    index = index < 0 ? this.contestant.times.length - 1 : Math.max(0, index - 1);
    this.show(index, clientX, clientY);
  }

  show(index, clientX, clientY) {
    this.index = index;
    const time = this.contestant.times[index];
    const at = this.x(time);
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, at);
    this.cursor.setAttribute("visibility", "visible");
    const layer = this.running(time);
    const held = this.series.map((curve) => ({ ...curve, held: curve.values[index] })).filter((curve) => curve.held > 0);
    const total = held.reduce((sum, curve) => sum + curve.held, 0);
    const entries = held.sort((one, other) => other.held - one.held).slice(0, 8)
      .map((curve) => make("span", { class: "entry" }, chip(curve.color), curve.name, make("span", {}, bytes(curve.held))));
    this.tooltip.replaceChildren(make("b", {}, bytes(total)), make("span", { class: "running" }, layer ?? "between layers"), ...entries);
    this.tooltip.hidden = false;
    const { offsetWidth: wide, offsetHeight: high } = this.tooltip;
    this.tooltip.style.left = `${clientX + 18 + wide > innerWidth ? Math.max(4, clientX - wide - 18) : clientX + 18}px`;
    this.tooltip.style.top = `${Math.min(Math.max(8, clientY - high / 2), innerHeight - high - 8)}px`;
    this.onLayer(layer);
  }

  running(time) {
    for (const [layer, phases] of Object.entries(this.contestant.passes)) {
      if (Object.values(phases).some((spans) => spans.some(([start, end]) => start <= time && time <= end))) return layer;
    }
    return null;
  }

  leave() {
    this.index = null;
    this.tooltip.hidden = true;
    this.cursor.setAttribute("visibility", "hidden");
    this.onLayer(null);
  }
}
