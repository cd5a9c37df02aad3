const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Return a number of bytes for people. */
function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) { count /= 1024; unit += 1; }
  return `${unit === 0 ? count.toFixed(0) : count.toFixed(1)} ${UNITS[unit]}`;
}

function percent(part, whole) {
  return `${(100 * part / Math.max(1, whole)).toFixed(1)} %`;
}

function ratio(before, after) {
  if (!after) return "–";
  // one figure that says something of what grows by much
  return before && before < after / 2 ? `${Number((before / after).toPrecision(1))}×` : `${(before / after).toFixed(1)}×`;
}

/** Return a small number with the power of ten written out. */
function scientific(value) {
  if (value === null) return "–";
  if (value === 0) return "0";
  if (value >= 0.01 && value < 1000) return String(Number(value.toPrecision(2)));
  const [digits, power] = value.toExponential(1).split("e");
  const raised = [...String(Number(power))].map((character) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(character)]);
  return `${digits}·10${raised.join("")}`;
}

/** Make an element; text is set as text, never as markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Make an element of a drawing, in the namespace of the one that will hold it. */
function draw(parent, tag, attributes = {}, text = "") {
  const element = document.createElementNS(parent.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

/** Return a path that may break before its parts, but not before a number. */
function breakable(name) {
  return name.split(/(?<=\.)(?!\d)/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));
}

function chip(color) {
  return make("span", { class: "chip", style: `background:${color}` });
}

function categoryColor(name) {
  return `var(--${name.replaceAll(" ", "-")})`;
}
