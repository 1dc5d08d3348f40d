// A table that is sorted, searched and scrolled; of many rows those in sight are in the document.
const AROUND = 12;
const MOST_PRINTED = 500;

/**
 * @param columns name, title, cell(row) and, to sort by, value(row); number: right-aligned; wide: not on a phone;
 *   first: biggest first when it is first sorted.
 * @param words what a row is searched by.
 */
function grid({ name, label, columns, rows, words, sorted = null, rank = null, chips = [], empty, height = null }) {
  const state = { rows, sort: sorted, down: false, text: "", chip: null, first: 0, last: 0, printed: false };
  const status = el("p", { class: "status", role: "status" });
  const printed = el("p", { class: "printed" });
  const body = el("tbody");
  const heads = columns.map((column) => head(column));
  const table = el("table", { class: "grid", "aria-label": label }, el("thead", {}, el("tr", {}, heads)), body);
  const pane = el("div", { class: "pane", tabindex: "0", role: "region", "aria-label": `${label}, scrollable` }, table);
  if (height) pane.style.maxHeight = height;
  const search = words && el("input", {
    type: "search", placeholder: "Search", "aria-label": `Search ${label}`, class: "search", id: `search-${name}`,
    oninput: () => { state.text = search.value; renew(); },
    onkeydown: (event) => { if (event.key === "ArrowDown") { event.preventDefault(); focus(0); } },
  });
  const buttons = chips.map((chip) => el("button", {
    type: "button", class: "chip", "aria-pressed": "false",
    onclick: () => { state.chip = state.chip === chip ? null : chip; extra.replaceChildren(); renew(); },
  }, chip.label));
  const extra = el("span", { class: "extra" });
  const texts = new Map();

  /** Keep the rows of a chip that the table itself does not have, until it is pressed. */
  function only(chip) {
    state.chip = chip;
    const drop = () => { state.chip = null; extra.replaceChildren(); renew(); };
    extra.replaceChildren(el("button", { type: "button", class: "chip", "aria-pressed": "true", onclick: drop }, `${chip.label} ×`));
    renew();
  }

  function wordsOf(row) {
    if (!texts.has(row)) texts.set(row, words(row).toLowerCase());
    return texts.get(row);
  }

  function head(column) {
    const kind = [column.number && "number", column.wide && "wide", `c-${column.name}`].filter(Boolean).join(" ");
    if (!column.value) return el("th", { scope: "col", class: kind }, column.title);
    const button = el("button", { type: "button", title: column.about ?? null, onclick: () => sort(column) }, column.title);
    return el("th", { scope: "col", class: kind, "aria-sort": "none" }, button);
  }

  function sort(column, down = null) {
    const again = state.sort === column.name;
    state.down = down ?? (again ? !state.down : Boolean(column.first));
    state.sort = column.name;
    renew();
  }

  function renew() {
    const wanted = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    let kept = state.chip ? rows.filter(state.chip.keeps) : rows;
    if (wanted.length) kept = kept.filter((row) => wanted.every((word) => wordsOf(row).includes(word)));
    const column = columns.find((each) => each.name === state.sort);
    state.rows = column ? order(kept, column.value, state.down) : kept;
    heads.forEach((cell, index) => {
      if (!columns[index].value) return;
      const isSorted = columns[index].name === state.sort;
      cell.setAttribute("aria-sort", isSorted ? (state.down ? "descending" : "ascending") : "none");
    });
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(state.chip === chips[index])));
    const part = state.rows.length === rows.length ? counted(rows.length, "row") : `${count(state.rows.length)} of ${counted(rows.length, "row")}`;
    status.textContent = state.rows.length ? part : empty ?? "No row has these words.";
    printed.textContent = state.rows.length > MOST_PRINTED ? `The first ${MOST_PRINTED} of ${counted(state.rows.length, "row")}.` : "";
    table.setAttribute("aria-rowcount", state.rows.length + 1);
    pane.scrollTop = 0;
    draw(true);
  }

  const rowHeight = () => Number.parseFloat(getComputedStyle(pane).getPropertyValue("--row")) || 36;

  function draw(force = false) {
    const all = state.printed;
    const tall = rowHeight();
    const headTall = table.tHead.offsetHeight;
    const inSight = Math.ceil((pane.clientHeight || 600) / tall);
    const top = Math.max(0, Math.floor((pane.scrollTop - headTall) / tall));
    const first = all ? 0 : Math.max(0, top - AROUND);
    const last = all ? Math.min(state.rows.length, MOST_PRINTED) : Math.min(state.rows.length, top + inSight + AROUND);
    if (!force && !all && first === state.first && last === state.last) return;
    const held = document.activeElement?.closest?.("tr")?.dataset.row;
    [state.first, state.last] = [first, last];
    const lines = state.rows.slice(first, last).map((row, index) => line(row, first + index));
    body.replaceChildren(gap(first * tall), ...lines, gap((state.rows.length - last) * tall));
    if (held !== undefined && pane.contains(document.activeElement) === false) {
      body.querySelector(`tr[data-row="${held}"] a`)?.focus({ preventScroll: true });
    }
  }

  function gap(tall) {
    if (!tall) return "";
    const cell = el("td", { colspan: columns.length });
    const row = el("tr", { class: "gap", "aria-hidden": "true" }, cell);
    cell.style.height = `${tall}px`;
    return row;
  }

  function line(row, at) {
    const cells = columns.map((column) => el("td", {
      class: [column.number && "number", column.wide && "wide", `c-${column.name}`].filter(Boolean).join(" "),
    }, column.cell(row)));
    return el("tr", { "data-row": at, "aria-rowindex": at + 2 }, cells);
  }

  function focus(at) {
    const place = Math.max(0, Math.min(state.rows.length - 1, at));
    const tall = rowHeight();
    const top = place * tall, seen = pane.clientHeight - table.tHead.offsetHeight;
    if (top < pane.scrollTop) pane.scrollTop = top;
    if (top + tall > pane.scrollTop + seen) pane.scrollTop = top + tall - seen;
    draw();
    body.querySelector(`tr[data-row="${place}"] a`)?.focus({ preventScroll: true });
  }

  pane.addEventListener("keydown", (event) => {
    const at = event.target.closest?.("tr")?.dataset.row;
    if (at === undefined) return;
    const page = Math.floor(pane.clientHeight / rowHeight()) - 1;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    focus(Number(at) + step);
  });
  pane.addEventListener("click", (event) => {
    if (event.target.closest("a, button") || getSelection().toString()) return;
    event.target.closest("tr")?.querySelector("a")?.click();
  });
  let waiting = false;
  pane.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  });
  new ResizeObserver(() => draw(true)).observe(pane);
  addEventListener("beforeprint", () => { state.printed = true; draw(true); });
  addEventListener("afterprint", () => { state.printed = false; draw(true); });
  renew();
  const bar = (search || buttons.length) && el("div", { class: "bar" }, search, buttons, extra, status);
  const element = el("div", { class: "gridholder", id: `grid-${name}` }, bar || null, rows.length ? [pane, printed] : el("p", { class: "empty" }, empty));
  return {
    element, sort: (column, down) => sort(columns.find((each) => each.name === column), down),
    search: (words_) => { search.value = words_; state.text = words_; renew(); },
    rows: () => state.rows,
    only,
  };
}

/** Rows by a value; those without one are last, whichever way round. */
function order(rows, value, down) {
  const keyed = rows.map((row) => [value(row), row]);
  const isNone = (key) => key === null || key === undefined || key === "" || Number.isNaN(key);
  keyed.sort(([a], [b]) => {
    if (isNone(a) || isNone(b)) return isNone(a) - isNone(b);
    const difference = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return down ? -difference : difference;
  });
  return keyed.map(([, row]) => row);
}
