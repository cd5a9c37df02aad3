const COLUMNS = [
  { key: "name", title: "Layer", text: true },
  { key: "kind", title: "Kind", text: true },
  { key: "exact_bytes", title: "Exact", help: "bytes that exact training keeps" },
  { key: "kept_bytes", title: "Kept", help: "bytes that compressed training keeps" },
  { key: "ratio", title: "Ratio" },
  { key: "bits", title: "Bits", help: "average planes of a code, signs and all" },
  { key: "code", title: "Code", text: true, help: "who else reads its code, or whose code it reads" },
  { key: "peak_bytes", title: "At the peak", help: "what it holds at the peak of compressed training" },
  { key: "sensitivity", title: "Sensitivity", help: "what noise of one squared range in its code adds to the gradient's variance" },
  { key: "variance", title: "Variance", help: "predicted for its weights' gradient, relative to the squared norm" },
];

function codeText(layer) {
  if (layer.left_exact) return `left exact: ${layer.left_exact}`;
  const parts = [];
  if (layer.readers.length) parts.push(`read by ${layer.readers.join(", ")}`);
  if (layer.reads.length) parts.push(`reads that of ${layer.reads.join(", ")}`);
  if (layer.swapped_bytes) parts.push(`${bytes(layer.swapped_bytes)} on disk`);
  return parts.join("; ");
}

function cells(layer, mostExact) {
  const meter = (held, kind) => {
    const cell = make("td", { class: "figure-cell meter" }, held ? bytes(held) : "–");
    if (held) cell.append(make("i", { class: kind, style: `width:${(100 * held / mostExact).toFixed(2)}%` }));
    return cell;
  };
  const figure = (text) => make("td", { class: "figure-cell" }, text);
  return [
    make("td", { class: "name-cell" }, ...breakable(layer.name)),
    make("td", { class: "kind" }, layer.kind),
    meter(layer.exact_bytes, "of-exact"),
    meter(layer.kept_bytes, "of-codes"),
    figure(layer.ratio === null ? "–" : `${layer.ratio.toFixed(1)}×`),
    figure(layer.bits === null ? "–" : layer.bits.toFixed(2)),
    make("td", { class: "code-cell", title: layer.code }, make("span", {}, layer.code)),
    figure(layer.peak_bytes ? bytes(layer.peak_bytes) : "–"),
    figure(scientific(layer.sensitivity)),
    figure(scientific(layer.variance)),
  ];
}

/** The table of layers: sorted by any column, narrowed by a search, and pointing at the picture. */
class LayerTable {
  constructor(table, search, count, layers, balance, onLayer) {
    Object.assign(this, { table, count, onLayer, layers, balance, sorting: { key: "kept_bytes", down: true } });
    for (const layer of layers) {
      layer.code = codeText(layer);
      layer.ratio = layer.kept_bytes && layer.exact_bytes ? layer.exact_bytes / layer.kept_bytes : null;
    }
    const mostExact = Math.max(1, ...layers.flatMap((layer) => [layer.exact_bytes, layer.kept_bytes]));
    this.rows = new Map(layers.map((layer) => [layer, this.row(layer, mostExact)]));
    this.named = new Map([...this.rows].map(([layer, row]) => [layer.name, row]));
    this.head();
    this.body = table.tBodies[0];
    search.addEventListener("input", () => { this.sought = search.value.trim().toLowerCase(); this.show(); });
    this.sought = "";
    this.show();
  }

  head() {
    const row = make("tr");
    for (const column of COLUMNS) {
      const button = make("button", { type: "button", title: column.help ?? "" }, column.title);
      const head = make("th", { scope: "col", "aria-sort": "none", "data-key": column.key, class: column.text ? "" : "figure-cell" }, button);
      button.addEventListener("click", () => this.sort(column));
      row.append(head);
    }
    this.table.tHead.append(row);
  }

  row(layer, mostExact) {
    const row = make("tr", { tabindex: "0", "data-layer": layer.name }, ...cells(layer, mostExact));
    for (const begins of ["pointerenter", "focus"]) row.addEventListener(begins, () => this.onLayer(layer.name));
    for (const ends of ["pointerleave", "blur"]) row.addEventListener(ends, () => this.onLayer(null));
    return row;
  }

  sort(column) {
    const { key, down } = this.sorting;
    this.sorting = { key: column.key, down: key === column.key ? !down : !column.text };
    this.show();
  }

  /** Compare two layers; what has no value comes last, whichever way. */
  compare(one, other) {
    const { key, down } = this.sorting;
    const [a, b] = [one[key], other[key]];
    if (a === null || b === null || a === "" || b === "") return ((a === null || a === "") - (b === null || b === ""));
    const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    return down ? -order : order;
  }

  show() {
    for (const head of this.table.tHead.rows[0].cells) {
      const sorted = head.dataset.key === this.sorting.key;
      head.setAttribute("aria-sort", sorted ? (this.sorting.down ? "descending" : "ascending") : "none");
    }
    const found = this.layers
      .filter((layer) => [layer.name, layer.kind, layer.code].some((text) => text.toLowerCase().includes(this.sought)))
      .sort((one, other) => this.compare(one, other));
    this.body.replaceChildren(...found.map((layer) => this.rows.get(layer)));
    if (!found.length) this.body.append(make("tr", {}, make("td", { class: "empty", colspan: COLUMNS.length }, "No layer matches.")));
    this.count.textContent = `${found.length} of ${this.layers.length} layers`;
    this.foot(found);
  }

  /** Sum what is shown; below all layers, lead from their sum to what the whole step keeps. */
  foot(found) {
    const sum = (key) => found.reduce((total, layer) => total + layer[key], 0);
    const [exact, kept, peak] = [sum("exact_bytes"), sum("kept_bytes"), sum("peak_bytes")];
    if (this.sought !== "") {
      this.table.tFoot.replaceChildren(this.total("those found", exact, kept, peak));
      return;
    }
    const { unlisted_exact_bytes: ofExact, unlisted_kept_bytes: ofKept, unlisted_peak_bytes: atPeak, anyway_bytes: anyway } = this.balance;
    const rows = [this.total("all layers", exact, kept, peak, "part")];
    if (ofExact || ofKept || atPeak) rows.push(this.total("the loss, and what else is not listed", ofExact, ofKept, atPeak, "part"));
    if (anyway) rows.push(this.total(anyway > 0 ? "not kept: the batch, or another layer's" : "kept beside what codes stand for", -anyway, 0, 0, "part"));
    if (rows.length === 1) rows.pop();
    this.table.tFoot.replaceChildren(...rows, this.total("total", exact + ofExact - anyway, kept + ofKept, peak + atPeak));
  }

  total(name, exact, kept, peak, kind = "") {
    const amount = (held) => (held ? `${held < 0 ? "−" : ""}${bytes(Math.abs(held))}` : "–");
    const figure = (text) => make("td", { class: "figure-cell" }, text);
    const share = kind === "" ? ratio(exact, kept) : "";
    return make("tr", { class: kind }, make("td", { colspan: 2 }, name), figure(amount(exact)), figure(amount(kept)), figure(share), make("td", { colspan: 2 }), figure(amount(peak)), make("td", { colspan: 2 }));
  }

  /** Mark the row of the layer that runs where the pointer is. */
  mark(name) {
    this.marked?.classList.remove("running");
    this.marked = name === null ? undefined : this.named.get(name);
    this.marked?.classList.add("running");
  }
}
