// Elements and numbers as text.
const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

const plain = (value, most = 1) => new Intl.NumberFormat("en", { maximumFractionDigits: most, minimumFractionDigits: most }).format(value);
const count = (value) => new Intl.NumberFormat("en").format(value);
const counted = (value, noun, several = `${noun}s`) => `${count(value)} ${value === 1 ? noun : several}`;
const missing = "–";

function duration(ms) {
  if (ms === null || ms === undefined) return missing;
  if (ms < 1) return `${short(ms * 1e3)} µs`;
  if (ms < 1e3) return `${short(ms)} ms`;
  if (ms < 120e3) return `${short(ms / 1e3)} s`;
  return ms < 7200e3 ? `${plain(ms / 60e3)} min` : `${plain(ms / 3600e3)} h`;
}

/** Three significant digits, and no more than three behind the point. */
function short(value) {
  if (value === 0) return "0";
  const digits = Math.max(0, Math.min(3, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return new Intl.NumberFormat("en", { maximumFractionDigits: digits, minimumFractionDigits: digits }).format(value);
}

const inUnit = (ms, micro) => (ms === null || ms === undefined ? missing : micro ? plain(ms * 1e3, 1) : plain(ms, 3));
const times = (gain) => (gain === null || gain === undefined ? missing : `${plain(gain, 2)}×`);
const percent = (share) => (share === null || share === undefined ? missing : share < 0.0995 ? `${plain(share * 100)} %` : `${Math.round(share * 100)} %`);

function scaled(value, units, step = 1000) {
  let place = 0;
  while (value >= step && place < units.length - 1) [value, place] = [value / step, place + 1];
  return `${place || !Number.isInteger(value) ? short(value) : value} ${units[place]}`;
}

/** A round value of an axis: without the zeros behind its point. */
const round = (label) => label.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB"]);
const reachedText = (value) => round(scaled(value, ["", "k", "M", "G", "T", "P"]));
const rate = (value) => scaled(value, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"]);
const operations = (value) => scaled(value, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]);

function when(seconds) {
  if (!seconds) return missing;
  const date = new Date(seconds * 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

const day = (seconds) => when(seconds).slice(0, 10);

/** A text in a cell that is cut where it is too long, whole in its title. */
const cut = (value, kind = "cut") => el("span", { class: kind, title: value }, value);
const badge = (name) => el("span", { class: `badge k-${name}` }, FAMILIES[name]);
const code = (value, kind = "") => el("code", { class: kind || null }, value);
