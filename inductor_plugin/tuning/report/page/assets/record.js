// One record, whole, in a dialog over the page; its address names it.
const dialog = document.getElementById("record");
let opened = null;
/** The records among which the last link was: arrows lead through them. */
let together = null;
/** Width of the drawing of a candidate's samples. */
const WIDE = 340;
/** Problems of a graph that its record lists; the table has all. */
const MOST_MEMBERS = 50;

function figure(value, label, about = null) {
  return el("div", { class: "figure" }, el("dt", {}, label), el("dd", {}, value), about && el("dd", { class: "about" }, about));
}

function verdict(record) {
  const parts = [figure(duration(record.ms), "runs in")];
  if (!record.stays && record.libraryMs) parts.push(figure(duration(record.libraryMs), "library kernel"));
  if (record.gain && !record.stays) parts.push(figure(times(record.gain), "gain"));
  if (record.flops && record.ms) {
    const reached = record.flops / (record.ms / 1e3);
    const name = raw.environments[record.environment].peak?.name;
    parts.push(record.peak
      ? figure(percent(record.peak), `of the ${name}'s roof`, rate(reached))
      : figure(rate(reached), "reached", `${operations(record.flops)}, ${bytes(record.bytes)}`));
  }
  return el("dl", { class: "figures" }, parts);
}

function candidateTable(record) {
  const rows = candidatesOf(record);
  if (!rows.length) return el("p", { class: "empty" }, "No candidate was measured: there was one kernel only.");
  const known = rows.filter((row) => row.ms);
  const best = Math.min(...known.map((row) => row.ms));
  const micro = inMicro(known.map((row) => row.ms));
  const unit = micro ? "µs" : "ms";
  const values = known.flatMap((row) => row.box ?? [row.ms]).filter((value) => value > 0);
  // The scale ends behind the library kernel and the fastest six.
  const [low, high] = values.length ? room(values, 0.02) : [1, 2];
  const wanted = Math.max(record.libraryMs ?? 0, known[Math.min(5, known.length - 1)]?.ms ?? 0, best * 1.1) * 1.06;
  const scale = linear(Math.min(low, best * 0.98), Math.max(Math.min(high, wanted, best * 4), best * 1.05), 6, WIDE - 6);
  const winner = record.row[RECORD.winner], library = record.row[RECORD.library];
  const head = ["Candidate", "Spread", `Median, ${unit}`, "Of best", "Samples", "Compile, s"];
  const lines = rows.map((row, index) => {
    const marks = [index === winner && el("span", { class: "mark runs" }, "runs"), index === library && el("span", { class: "mark" }, "library"), row.noisy && el("span", { class: "mark warn" }, "noisy")];
    const failed = row.status !== MEASURED;
    const said = row.box ? { role: "img", "aria-label": spreadText(row.box) } : { "aria-hidden": "true" };
    const drawing = svg("svg", { class: `strip s-${row.family}`, viewBox: `0 0 ${WIDE} 22`, ...said });
    if (row.ms && scale.high >= row.ms) drawing.append(row.box ? spread(row.box, row.each, row.ms, scale) : svg("path", { class: "median", d: `M${scale(row.ms)} 3v16` }));
    else if (row.ms) drawing.append(svg("text", { class: "beyond", x: WIDE - 6, y: 15, "text-anchor": "end" }, "beyond →"));
    return el("tr", { class: failed ? "failed" : index === winner ? "winner" : null },
      el("th", { scope: "row" }, el("div", { class: "name" }, badge(row.family), " ", code(row.name), marks), row.description && el("div", { class: "description" }, row.description),
        failed && el("div", { class: "reason" }, el("b", {}, row.status), row.reason && `: ${row.reason}`)),
      el("td", { class: "plot" }, failed ? null : drawing),
      el("td", { class: "number" }, inUnit(row.ms, micro), row.ms !== null && el("span", { class: "unit" }, ` ${unit}`)), // a phone has no head
      el("td", { class: "number" }, row.ms && !failed ? times(row.ms / best) : missing),
      el("td", { class: "number wide" }, row.samples ? count(row.samples) : missing),
      el("td", { class: "number wide" }, row.compile === null ? missing : plain(row.compile, 2)));
  });
  const table = el("table", { class: "candidates" },
    el("thead", {}, el("tr", {}, head.map((title, index) => el("th", { scope: "col", class: index > 1 ? `number${index > 3 ? " wide" : ""}` : null }, title)))),
    el("tbody", {}, lines));
  const left = record.total - record.shown;
  const scaleNote = known.length > 1 ? `Spread: from ${duration(scale.low)} to ${duration(scale.high)}; whiskers are all samples, boxes their middle half.` : "";
  const command = commandOf("explain", record);
  const leftNote = left ? ` ${counted(left, "slower candidate")} not in this page${command ? `; see ${command}` : ""}.` : "";
  return el("div", {}, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Candidates" }, table), el("p", { class: "note" }, scaleNote, leftNote));
}

function callPart(record) {
  const call = text(record.row[RECORD.call]);
  if (!call) return null;
  const operands = text(record.row[RECORD.operands]);
  const rows = operands ? operands.split("\n").map((line) => line.split("\t")) : [];
  const table = rows.length && el("table", { class: "plain" },
    el("thead", {}, el("tr", {}, ["Operand", "Type", "Size", "Stride", "Place"].map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, index) => el(index ? "td" : "th", index ? {} : { scope: "row" }, cell))))));
  return [el("h3", {}, "The call"), el("pre", { tabindex: "0" }, code(call)), table && el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Operands" }, table)];
}

function refusedPart(record) {
  const refused = refusalsOf(record);
  if (!refused.length) return null;
  return [el("h3", {}, "Not offered, and why"), el("dl", { class: "reasons" }, refused.map(([name, why]) => [el("dt", {}, code(name)), el("dd", {}, why)]))];
}

/** A link to the problems of a group, and one to the record of the graph. */
function groupLinks(group) {
  const whole = records[group.record];
  return el("span", { class: "part" }, el("a", { href: groupAddress(group) }, group.title), ` (${groupSize(group)})`, whole && [", ", el("a", { href: `#r/${whole.id}` }, "its record")]);
}

/** The problems of a graph that has a record. */
function problemsPart(record) {
  const group = groupOfGraph.get(record.index);
  if (!group) return null;
  const own = [...group.own].map((index) => records[index]);
  const absent = group.total - group.records.length;
  const line = (each) => el("li", {}, el("a", { href: `#r/${each.id}` }, each.text), each.gain && !each.stays && ` ${times(each.gain)}`);
  return [
    el("h3", {}, "Problems whose kernel is not the library's"),
    own.length > 0 && el("ul", { class: "members" }, own.slice(0, MOST_MEMBERS).map(line)),
    el("p", { class: "note" }, own.length > 0 && el("a", { href: groupAddress(group) }, `All ${count(own.length)} in the table`), absent > 0 && ` ${counted(absent, "problem")} without a record in this cache.`),
  ];
}

/**
 * What of the command line is about a record, whichever caches and environments have its problem; null where a key is
 * none: a shell would run what somebody else wrote there.
 */
function commandOf(verb, record) {
  const key = [raw.environments[record.environment].key, record.key].map((each) => each.slice(0, 12)).join("/");
  if (!/^[0-9a-f]+\/[0-9a-f]+$/.test(key)) return null;
  return ["inductor-plugin", verb, key, text(sources[record.source].option ?? -1)].filter(Boolean).join(" ");
}

function beyondPart(record) {
  const groupsHere = groupsOf.get(record.index) ?? [];
  const environment = raw.environments[record.environment];
  const isCache = sources[record.source].kind === "cache";
  const facts = [
    ["Key", code(record.key)],
    ["Environment", el("a", { href: `#environments` }, environment.name)],
    isBeside && ["Source", sourceName(record.source)],
    ...Object.entries(KINDS).map(([kind, title]) => {
      const own = groupsHere.filter((group) => group.kind === kind);
      return own.length && [title, own.map((group) => groupLinks(group))];
    }),
    record.updated && ["Updated", when(record.updated)],
    isCache && !isGraph(record) && commandOf("explain", record) && ["On the command line", ["explain", "repro", "bench"].map((verb) => code(commandOf(verb, record), "command"))],
  ].filter(Boolean);
  return el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** Show a text whole that a table cuts, where no record has it. */
function openText(title, kind, whole) {
  opened = together = null;
  dialog.replaceChildren(
    el("div", { class: "dialoghead" }, el("p", { class: "overline" }, kind), el("div", { class: "steps" }, closer()), el("h2", { id: "record-title", tabindex: "-1" }, title)),
    el("div", { class: "dialogbody" }, el("p", { class: "why" }, whole)));
  hideTip();
  dialog.showModal();
  dialog.scrollTop = 0;
}

const closer = () => el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, "×");

/** Show a record; the one before and after it are those of the table as it is sorted. */
function openDialog(record, around) {
  const at = around.indexOf(record);
  const step = (by) => {
    const other = at >= 0 && around[at + by];
    return el("a", { class: "step", href: other ? `#r/${other.id}` : null, "aria-disabled": other ? null : "true", "aria-label": by < 0 ? "Previous problem" : "Next problem" }, by < 0 ? "‹" : "›");
  };
  opened = { record, around, at };
  dialog.replaceChildren(
    el("div", { class: "dialoghead" },
      el("p", { class: "overline" }, record.op, at >= 0 && ` · ${count(at + 1)} of ${count(around.length)}`),
      el("div", { class: "steps" }, step(-1), step(1), closer()),
      el("h2", { id: "record-title", tabindex: "-1" }, record.text)),
    el("div", { class: "dialogbody" },
      record.winner && el("p", { class: "runs" }, badge(record.family), " ", code(record.winner)),
      el("p", { class: "why" }, record.why),
      record.noisy && el("p", { class: "warning" }, "Other work on the machine has disturbed this comparison; a later compile measures again."),
      verdict(record), el("h3", {}, counted(record.total, "candidate")), candidateTable(record), problemsPart(record), refusedPart(record), callPart(record), beyondPart(record)));
  hideTip();
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  dialog.querySelector("h2").focus({ preventScroll: true });
}

dialog.addEventListener("close", () => {
  const record = opened?.record;
  opened = together = null;
  if (location.hash.startsWith("#r/")) history.replaceState(null, "", location.pathname + location.search);
  const address = `#r/${record?.id}`;
  if (!record || document.activeElement?.getAttribute("href") === address) return; // the browser has gone back to its link
  if (!problems?.reveal(record) && !location.hash) document.querySelector(`a[href="${CSS.escape(address)}"]`)?.focus({ preventScroll: true });
});
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || !opened || event.target.closest(".scroll, pre")) return;
  const other = opened.around[opened.at + by];
  if (opened.at < 0 || !other) return;
  opened = { ...opened, at: opened.at + by }; // the next key may come before the record is shown
  location.hash = `r/${other.id}`;
});
