// A table that is sorted, searched and scrolled; the document has the rows in sight.
const AROUND = 12;
const MOST_PRINTED = 500;

/**
 * @param columns name, title, cell(row) and, to sort by, value(row); number: right-aligned; wide: rarely on a phone;
 *   first: biggest first when it is first sorted.
 * @param choices what rows belong to: id, kind, label, keeps(row); chosen is called with the choice of the list, or null.
 * @param words what a row is searched by.
 */
function grid({ name, label, columns, rows, words, sorted = null, chips = [], choices = [], chosen = null, empty, height = null }) {
  const state = { rows, sort: sorted, down: false, text: "", chip: null, choice: null, first: 0, last: 0, printed: false };
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
    onclick: () => { state.chip = state.chip === chip ? null : chip; renew(); },
  }, chip.label));
  const select = choices.length > 0 && chooser();
  const texts = new Map();

  /** A list of what rows belong to: all, or one of the choices. */
  function chooser() {
    const kinds = new Map();
    choices.forEach((choice, at) => kinds.set(choice.kind, [...(kinds.get(choice.kind) ?? []), el("option", { value: at, id: `g/${choice.id}` }, choice.label)]));
    return el("select", {
      class: "chooser", "aria-label": `${label} of`, id: `choose-${name}`,
      onchange: () => { state.choice = choices[select.value] ?? null; renew(); chosen(state.choice); },
    }, el("option", { value: "" }, `All ${label.toLowerCase()}`), [...kinds].map(([kind, options]) => el("optgroup", { label: kind }, options)));
  }

  /** Keep the rows of a choice, and drop what else was searched. */
  function choose(id) {
    const at = choices.findIndex((choice) => choice.id === id);
    [state.choice, state.chip, state.text] = [choices[at] ?? null, null, ""];
    select.value = at < 0 ? "" : at;
    if (search) search.value = "";
    renew();
  }

  function wordsOf(row) {
    if (!texts.has(row)) texts.set(row, words(row).toLowerCase());
    return texts.get(row);
  }

  function kind(column) {
    return [column.number && "number", column.wide && "wide", `c-${column.name}`].filter(Boolean).join(" ");
  }

  function head(column) {
    if (!column.value) return el("th", { scope: "col", class: kind(column) }, column.title);
    const button = el("button", { type: "button", title: column.about ?? null, onclick: () => sort(column) }, column.title);
    return el("th", { scope: "col", class: kind(column), "aria-sort": "none" }, button);
  }

  function sort(column, down = null) {
    const again = state.sort === column.name;
    state.down = down ?? (again ? !state.down : Boolean(column.first));
    state.sort = column.name;
    renew();
  }

  function renew() {
    const wanted = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    let kept = state.choice ? rows.filter(state.choice.keeps) : rows;
    if (state.chip) kept = kept.filter(state.chip.keeps);
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
    const of = state.choice ? `: ${state.choice.label}` : "";
    status.textContent = state.rows.length ? part + of : rows.length ? `No row${state.text ? " has these words" : ""}${of}.` : empty;
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
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    const held = focused?.closest("tr").dataset.row, nth = focused ? stops(focused.closest("tr")).indexOf(focused) : 0;
    [state.first, state.last] = [first, last];
    const lines = state.rows.slice(first, last).map((row, index) => line(row, first + index));
    body.replaceChildren(gap(first * tall), ...lines, gap((state.rows.length - last) * tall));
    if (focused && !enter(held, nth)) pane.focus({ preventScroll: true }); // its row is out of sight
  }

  function gap(tall) {
    if (!tall) return "";
    const inSight = heads.filter((head) => head.offsetWidth).length; // a phone has less, and would make room for all
    const cell = el("td", { colspan: inSight || columns.length });
    const row = el("tr", { class: "gap", "aria-hidden": "true" }, cell);
    cell.style.height = `${tall}px`;
    return row;
  }

  function line(row, at) {
    const cells = columns.map((column) => el("td", { class: kind(column), "data-head": column.title }, column.cell(row)));
    return el("tr", { "data-row": at, "aria-rowindex": at + 2 }, cells);
  }

  /** What of a row takes the focus: its links and buttons, or the row where it has none. */
  function stops(row) {
    const inside = [...row.querySelectorAll("a[href], button")];
    return inside.length ? inside : [row];
  }

  function enter(at, nth = 0) {
    const row = body.querySelector(`tr[data-row="${at}"]`);
    if (!row) return false;
    const inside = stops(row);
    const stop = inside[Math.max(0, Math.min(nth, inside.length - 1))];
    if (stop === row) row.tabIndex = -1;
    stop.focus({ preventScroll: true });
    return true;
  }

  function focus(at, nth = 0) {
    const place = Math.max(0, Math.min(state.rows.length - 1, at));
    const tall = rowHeight();
    const top = place * tall, seen = pane.clientHeight - table.tHead.offsetHeight;
    if (top < pane.scrollTop) pane.scrollTop = top;
    if (top + tall > pane.scrollTop + seen) pane.scrollTop = top + tall - seen;
    draw();
    enter(place, nth);
  }

  /** Focus a row, wherever it is; false if the table does not show it now. */
  function reveal(row) {
    const at = state.rows.indexOf(row);
    if (at >= 0) focus(at);
    return at >= 0;
  }

  pane.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !state.rows.length) return;
    const row = event.target.closest("tr"), at = row?.dataset.row;
    if (at === undefined) { // the pane itself, or a head
      if (event.key !== "ArrowDown") return;
      event.preventDefault();
      focus(row ? 0 : Math.ceil(Math.max(0, pane.scrollTop) / rowHeight()));
      return;
    }
    if (event.key === "Enter" && event.target === row) row.click();
    const page = Math.floor(pane.clientHeight / rowHeight()) - 1;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    focus(Number(at) + step, stops(row).indexOf(event.target));
  });
  pane.addEventListener("click", (event) => {
    if (event.target.closest("a, button") || getSelection().toString()) return;
    const row = event.target.closest("tbody tr");
    (row?.querySelector("a[href]") ?? row?.querySelector("button"))?.click();
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
  const bar = (search || select || buttons.length) && el("div", { class: "bar" }, search, select, buttons, status);
  const element = el("div", { class: "gridholder", id: `grid-${name}` }, bar || null, rows.length ? [pane, printed] : el("p", { class: "empty" }, empty));
  return {
    element, sort: (column, down) => sort(columns.find((each) => each.name === column), down),
    rows: () => state.rows,
    choose, reveal,
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
