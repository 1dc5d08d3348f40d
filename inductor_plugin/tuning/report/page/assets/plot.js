// Scales, axes, and many marks as few elements: 10,000 points are one path for each colour.
const logarithmic = (low, high, from, to) => {
  const [a, b] = [Math.log(low), Math.log(high)];
  const scale = (value) => from + ((Math.log(value) - a) / (b - a || 1)) * (to - from);
  return Object.assign(scale, { low, high, from, to, isLog: true });
};
const linear = (low, high, from, to) => {
  const scale = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  return Object.assign(scale, { low, high, from, to, isLog: false });
};

/** Round values within a scale's range, about as many as asked for. */
function ticks(scale, most) {
  const { low, high } = scale;
  if (!Number.isFinite(low) || !Number.isFinite(high) || (scale.isLog && !(low > 0))) return [];
  if (!scale.isLog || high / low < 4) {
    const rough = (high - low) / most || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const first = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, n) => (first + n) * step);
  }
  const decades = Math.log10(high) - Math.log10(low);
  const multiples = decades > most ? [1] : decades > 1.6 ? [1, 3] : decades > 0.8 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 3, 4, 5, 6, 8];
  const every = decades > most ? Math.ceil(decades / most) : 1;
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % every) continue;
    values.push(...multiples.map((n) => n * 10 ** power));
  }
  return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

/** The grid lines and labels of both axes, and their titles. */
function axes(x, y, { xText, yText, xTitle, yTitle, across = 6, up = 5 }) {
  const group = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const value of ticks(x, across)) {
    const at = x(value);
    group.append(svg("line", { x1: at, x2: at, y1: y.from, y2: y.to }));
    group.append(svg("text", { x: at, y: y.from + 16, "text-anchor": "middle" }, xText(value)));
  }
  for (const value of ticks(y, up)) {
    const at = y(value);
    group.append(svg("line", { x1: x.from, x2: x.to, y1: at, y2: at }));
    group.append(svg("text", { x: x.from - 8, y: at + 4, "text-anchor": "end" }, yText(value)));
  }
  group.append(svg("text", { class: "title", x: x.to, y: y.from + 34, "text-anchor": "end" }, xTitle));
  group.append(svg("text", { class: "title", x: x.from, y: y.to - 10 }, yTitle));
  return group;
}

/** Points as one path for each class: a line of no length, whose round ends are the dot. */
function dots(points, kind = "dots") {
  const paths = new Map();
  for (const point of points) {
    const path = paths.get(point.class) ?? [];
    path.push(`M${point.x.toFixed(1)} ${point.y.toFixed(1)}h0`);
    paths.set(point.class, path);
  }
  return [...paths].map(([name, path]) => svg("path", { class: `${kind} s-${name}`, d: path.join("") }));
}

const tip = document.getElementById("tip");

function showTip(event, lines) {
  tip.replaceChildren(...lines.map((line, index) => el(index ? "span" : "strong", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - width - 8);
  const top = event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${top}px`;
}

const hideTip = () => { tip.hidden = true; };

/** Show the point nearest to the pointer; a click opens it. */
function findable(drawing, points, { lines, open }) {
  const ring = svg("circle", { class: "ring", r: 7, visibility: "hidden" });
  drawing.append(ring);
  let nearest = null;
  const find = (event) => {
    const box = drawing.getBoundingClientRect();
    const view = drawing.viewBox.baseVal;
    const px = ((event.clientX - box.left) / box.width) * view.width;
    const py = ((event.clientY - box.top) / box.height) * view.height;
    let least = 24 ** 2;
    nearest = null;
    for (const point of points) {
      const distance = (point.x - px) ** 2 + (point.y - py) ** 2;
      if (distance < least) [least, nearest] = [distance, point];
    }
    ring.setAttribute("visibility", nearest ? "visible" : "hidden");
    drawing.style.cursor = nearest && open ? "pointer" : "";
    if (!nearest) return hideTip();
    ring.setAttribute("cx", nearest.x);
    ring.setAttribute("cy", nearest.y);
    showTip(event, lines(nearest));
  };
  drawing.addEventListener("pointermove", find);
  drawing.addEventListener("pointerleave", () => { ring.setAttribute("visibility", "hidden"); hideTip(); });
  drawing.addEventListener("click", (event) => { find(event); if (nearest && open) { hideTip(); open(nearest); } });
  return drawing;
}

/** A drawing that takes the width it is given: it is drawn again when that changes. */
function drawn(label, draw, kind = "") {
  const holder = el("div", { class: `drawing ${kind}` });
  let width = 0;
  const again = () => {
    const now = Math.floor(holder.clientWidth);
    if (!now || now === width) return;
    width = now;
    const drawing = draw(now);
    drawing.setAttribute("role", "img");
    drawing.setAttribute("aria-label", label);
    holder.replaceChildren(drawing);
  };
  new ResizeObserver(again).observe(holder);
  return holder;
}

const sheet = (width, height) => svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });

/** The range that is drawn: a record may hold any numbers. */
const LEAST = 1e-300, MOST = 1e300;
const drawable = (value) => Math.min(MOST, Math.max(LEAST, value));

/** A range of positive numbers with room on both sides, finite and not zero. */
function room(values, share = 0.06) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, drawable(value)); high = Math.max(high, drawable(value)); }
  if (low > high) return [1, 2];
  const pad = low < high ? Math.exp((Math.log(high) - Math.log(low)) * share) : 2;
  return [drawable(low / pad), drawable(high * pad)];
}
