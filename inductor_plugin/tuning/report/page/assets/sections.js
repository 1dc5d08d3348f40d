// The sections of a page, each an element, or null where it has no content.
let problems = null;

function section(id, title, ...children) {
  const inside = children.flat().filter(Boolean);
  if (!inside.length) return null;
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), inside);
}

const summaries = sources.map((source) => source.summary).filter(Boolean);

/** How all candidates went, so that the numbers add up to theirs. */
const candidatesByStatus = (all) => [["measured", all.measured], ...all.others].filter(([, number]) => number).map(([status, number]) => `${count(number)} ${status.replaceAll("_", " ")}`).join(", ");

function summarySection() {
  if (!summaries.length) return null;
  const blocks = sources.map((source, index) => {
    const all = source.summary;
    if (!all) return null;
    const rivals = all.library_ms ? 1 - all.chosen_ms / all.library_ms : null;
    const parts = [
      figure(count(all.problems), all.problems === 1 ? "problem" : "problems", all.decided < all.problems ? `${count(all.problems - all.decided)} not decided yet` : null),
      figure(count(all.faster), "run a faster kernel", all.stays ? `the library kernel stays in ${count(all.stays)}` : null),
      all.gain && figure(times(all.gain), "faster where replaced", "geometric mean"),
      all.library_ms > 0 && figure(percent(rivals), "less time in these kernels", `${duration(all.library_ms)} → ${duration(all.chosen_ms)}, each called once`),
      all.candidates > 0 && figure(count(all.candidates), all.candidates === 1 ? "candidate" : "candidates", candidatesByStatus(all)),
      all.noisy > 0 && figure(count(all.noisy), "noisy", "measured beside other work"),
    ];
    return el("div", {}, isBeside && el("h2", { class: "sourcename" }, shortNames[index]), el("dl", { class: "figures" }, parts));
  });
  return el("section", { id: "summary", "aria-label": "Summary" }, blocks.filter(Boolean));
}

function problemsSection() {
  const caches = sources.some((source) => source.kind !== "bench");
  if (!caches) return null;
  const empty = "This cache has no records yet: run `inductor-plugin demo`, or compile a model with backend=\"inductor_plugin\".";
  const micro = inMicro(calls.map((record) => record.ms));
  const unit = micro ? "µs" : "ms";
  const severalSources = new Set(records.map((record) => record.source)).size > 1;
  const known = Object.keys(FAMILIES).filter((name) => records.some((record) => record.family === name));
  const chips = [
    ...known.map((name) => ({ label: `${FAMILIES[name]} ${count(records.filter((r) => r.family === name).length)}`, keeps: (r) => r.family === name })),
    records.some((r) => r.noisy) && { label: `Noisy ${count(records.filter((r) => r.noisy).length)}`, keeps: (r) => r.noisy },
    ...(severalSources ? shortNames.map((name, index) => ({ label: name, keeps: (r) => r.source === index })) : []),
  ].filter(Boolean);
  const severalPlaces = raw.environments.length > 1;
  // A problem's text needs room, so that not every column has a place.
  const models = groups.some((group) => group.kind === "model") && !(severalPlaces && severalSources);
  const crowded = [severalPlaces, severalSources, models].filter(Boolean).length > 1;
  const labels = groupLabels();
  const columns = [
    { name: "problem", title: "Problem", value: (r) => r.text, cell: (r) => el("a", { href: `#r/${r.id}`, title: r.text }, r.text) },
    severalSources && { name: "source", title: "Source", wide: true, value: (r) => shortNames[r.source], cell: (r) => el("span", { class: "cut", title: sourceName(r.source) }, shortNames[r.source]) },
    models && { name: "model", title: "Model", wide: true, value: (r) => modelsOf(r)[0]?.title, cell: (r) => modelCell(modelsOf(r)) },
    { name: "kernel", title: "Runs", value: (r) => (r.family === "library" ? " " : r.family) + r.winner, cell: (r) => (r.winner ? [badge(r.family), " ", cut(r.winner)] : el("span", { class: "none", title: r.why }, "nothing decided")) },
    { name: "ms", title: `Time, ${unit}`, number: true, first: true, value: (r) => r.ms, cell: (r) => inUnit(r.ms, micro) },
    { name: "gain", title: "Gain", about: "Time of the library kernel over that of what runs", number: true, first: true, value: (r) => r.gain, cell: (r) => gainCell(r) },
    { name: "spread", title: "Candidates", about: "Each candidate's median, from the fastest to four times as long; sorted by their number", wide: true, first: true, value: (r) => r.total, cell: (r) => [sparkline(r), el("span", { class: "count" }, count(r.total))] },
    calls.some((r) => r.peak) && { name: "peak", title: "Of roof", about: "Share of what the device's memory bandwidth and tensor cores allow", number: true, wide: true, first: true, value: (r) => r.peak, cell: (r) => percent(r.peak) },
    severalPlaces && { name: "environment", title: "Environment", wide: true, value: (r) => raw.environments[r.environment].name, cell: (r) => cut(raw.environments[r.environment].name) },
    !crowded && records.some((r) => r.updated) && { name: "updated", title: "Updated", wide: true, first: true, number: true, value: (r) => r.updated, cell: (r) => el("span", { title: when(r.updated) }, day(r.updated)) },
  ].filter(Boolean);
  problems = grid({
    name: "problems", label: "Problems", columns, rows: records, chips: chips.length > 1 ? chips : [], empty, height: "min(70vh, 44rem)",
    choices: groups.map((group, at) => ({
      id: group.id, kind: KINDS[group.kind], label: labels[at], keeps: (r) => group.own.has(r.index), address: groupAddress(group),
    })),
    chosen: (choice) => history.replaceState(null, "", choice?.address ?? location.pathname + location.search),
    words: (r) => [r.text, r.op, r.winner, r.family, FAMILIES[r.family], r.key, r.noisy && "noisy", r.pinned && "pinned", raw.environments[r.environment].name, severalSources && shortNames[r.source], ...modelsOf(r).map((group) => group.title)].filter(Boolean).join(" "),
  });
  if (records.length) problems.sort("ms", true);
  return section("problems", "Problems", problems.element);
}

/** The first model of a problem, and how many more it is of. */
function modelCell(models) {
  if (!models.length) return missing;
  const [first, ...others] = models;
  const link = el("a", { class: "cut", href: groupAddress(first), title: models.map((group) => group.title).join("\n") }, first.title);
  return others.length ? [link, " ", el("span", { class: "count" }, `+${count(others.length)}`)] : link;
}

function gainCell(record) {
  if (record.stays) return el("span", { class: "none", title: "the library kernel runs" }, "library");
  return record.noisy ? [el("span", { class: "mark warn" }, "noisy"), " ", times(record.gain)] : times(record.gain);
}

function compareSection() {
  if (raw.compared) {
    const rows = raw.compared;
    const table = grid({
      name: "compare", label: "Comparison", rows, height: "min(70vh, 40rem)", words: (r) => r[0], empty: "The two have no number in common.",
      columns: [
        { name: "path", title: "Figure", value: (r) => r[0], cell: (r) => cut(r[0]) },
        ...shortNames.map((name, index) => ({ name: `side${index}`, title: name, number: true, first: true, value: (r) => r[index + 1], cell: (r) => short(r[index + 1]) })),
        { name: "ratio", title: "Ratio", number: true, first: true, about: "The second over the first", value: (r) => r[3], cell: (r) => times(r[3]) },
      ],
    });
    return section("compare", "Side by side", table.element, leftOut(raw.compared_left_out, "more figure"));
  }
  if (!raw.pairs) return null;
  const rows = raw.pairs.map(([left, right]) => {
    const [a, b] = [records[left] ?? null, records[right] ?? null];
    return { a, b, any: a ?? b, ratio: a?.ms && b?.ms ? a.ms / b.ms : null, differs: Boolean(a && b && differs(a, b)) };
  });
  const differing = rows.filter((row) => row.differs).length;
  const alone = rows.filter((row) => !row.a || !row.b).length;
  const micro = inMicro(rows.map((row) => row.any.ms));
  const columns = [
    { name: "problem", title: "Problem", value: (r) => r.any.text, cell: (r) => el("a", { href: `#r/${r.any.id}`, title: r.any.text }, r.any.text) },
    ...["a", "b"].flatMap((name, index) => [
      { name: `kernel${name}`, title: shortNames[index], wide: true, value: (r) => r[name]?.winner, cell: (r) => sideCell(r[name]) },
      { name: `ms${name}`, title: `${micro ? "µs" : "ms"}, ${shortNames[index]}`, about: shortNames[index], number: true, first: true, value: (r) => r[name]?.ms, cell: (r) => inUnit(r[name]?.ms, micro) },
    ]),
    { name: "ratio", title: "Faster", about: `Time of ${shortNames[0]} over that of ${shortNames[1]}`, number: true, first: true, value: (r) => r.ratio, cell: (r) => times(r.ratio) },
  ];
  const table = grid({
    name: "compare", label: "Comparison", columns, rows, height: "min(70vh, 40rem)", empty: "The two have no problem in common.",
    words: (r) => [r.any.text, r.a?.winner, r.b?.winner].filter(Boolean).join(" "),
    chips: [
      { label: `Decided differently ${count(differing)}`, keeps: (r) => r.differs },
      { label: `In one only ${count(alone)}`, keeps: (r) => !r.a || !r.b },
    ],
  });
  return section("compare", "Side by side", el("p", { class: "lead" }, `${counted(rows.length, "problem")}; ${count(differing)} decided differently, ${count(alone)} in one of the two only.`), table.element);
}

const sideCell = (record) => (record ? (record.winner ? [badge(record.family), " ", cut(record.winner)] : el("span", { class: "none" }, "nothing decided")) : el("span", { class: "none" }, "no record"));

function gainsSection() {
  const chart = gainChart();
  return chart && section("gains", "Gain over the library kernel", chart);
}

function rooflineSection() {
  const places = [...new Set(calls.map((record) => record.environment))];
  const charts = places.map((place) => rooflineChart(place)).filter(Boolean);
  if (charts.length) return section("roofline", "Roofline", charts);
  const why = rooflineLack();
  return why && section("roofline", "Roofline", el("p", { class: "empty" }, why));
}

/** Why there is no roof with points below it; null without problems. */
function rooflineLack() {
  if (!calls.length) return null;
  const known = calls.filter((record) => record.flops && record.bytes && record.ms);
  const roofless = (known.length ? known : calls).filter((record) => !raw.environments[record.environment].peak);
  if (!roofless.length) return "Of no problem here are both the work and the time known, so there is no point to draw below the roof.";
  const names = [...new Set(roofless.map((record) => raw.environments[record.environment].device))].join(" and ");
  return `The peak rates of ${names} are not known to the plugin, so there is no roof to draw.${known.length ? " Open a problem to see the rate that it reached." : ""}`;
}

function graphsSection() {
  const graphs = groups.filter((group) => group.kind === "own");
  if (!graphs.length) return null;
  const seconds = (graph, name) => graph.spent[name] ?? 0;
  const table = grid({
    name: "graphs", label: "Graphs", rows: graphs, height: "24rem", words: null, empty: "",
    columns: [
      { name: "graph", title: "Graph", value: (g) => g.title, cell: (g) => el("a", { href: groupAddress(g) }, g.title) },
      { name: "calls", title: "Problems", number: true, first: true, value: (g) => g.records.length, cell: (g) => count(g.records.length) },
      { name: "known", title: "Known", number: true, first: true, value: (g) => g.known, cell: (g) => count(g.known) },
      { name: "measured", title: "Measured", number: true, first: true, value: (g) => seconds(g, "benchmarked"), cell: (g) => count(seconds(g, "benchmarked")) },
      { name: "compile", title: "Compiling, s", number: true, wide: true, first: true, value: (g) => seconds(g, "compile_s"), cell: (g) => plain(seconds(g, "compile_s"), 2) },
      { name: "bench", title: "Measuring, s", number: true, wide: true, first: true, value: (g) => seconds(g, "benchmark_s"), cell: (g) => plain(seconds(g, "benchmark_s"), 2) },
      { name: "wall", title: "Waited, s", number: true, first: true, value: (g) => seconds(g, "wall_s"), cell: (g) => plain(seconds(g, "wall_s"), 2) },
    ],
  });
  return section("graphs", "Graphs of this process", table.element);
}

/** Models, graphs and the last process; a problem may be in many. */
function groupsSection() {
  const known = groups.filter((group) => group.kind !== "own");
  if (!known.length) return null;
  const without = calls.filter((record) => !groupsOf.has(record.index)).length;
  const table = grid({
    name: "groups", label: "Models and graphs", rows: known, height: "24rem", words: known.length > 8 ? (g) => `${g.title} ${KIND[g.kind]}` : null, empty: "",
    columns: [
      { name: "group", title: "Name", value: (g) => g.title, cell: (g) => el("a", { href: groupAddress(g), title: g.title }, g.title) },
      { name: "of", title: "What", wide: true, value: (g) => KIND[g.kind], cell: (g) => KIND[g.kind] },
      isBeside && { name: "side", title: "Source", wide: true, value: (g) => shortNames[g.source], cell: (g) => cut(shortNames[g.source]) },
      { name: "calls", title: "Problems", number: true, first: true, value: (g) => g.own.size, cell: (g) => count(g.own.size) },
      { name: "whole", title: "Whole graph", number: true, first: true, about: "Time with library kernels over that of the tuned graph", value: (g) => records[g.record]?.gain, cell: (g) => wholeCell(records[g.record]) },
      { name: "updated", title: "Updated", wide: true, first: true, number: true, value: (g) => g.at, cell: (g) => el("span", { title: when(g.at) }, day(g.at)) },
    ].filter(Boolean),
  });
  const rest = without > 0 && ` ${counted(without, "problem")} ${without === 1 ? "is" : "are"} in none of them.`;
  return section("groups", "Models and graphs", el("p", { class: "lead" }, "A record does not name its model. What is here was said by the graphs that were compiled, by packs, by the records of graphs (verify_graph) and by the last process that had misses.", rest), table.element);
}

const wholeCell = (record) => (record ? el("a", { href: `#r/${record.id}`, title: record.text }, record.stays ? "library" : times(record.gain)) : missing);

function timelineSection() {
  const spans = raw.timeline;
  if (!spans) return null;
  if (!spans.lanes.length) return section("timeline", "Timeline", el("p", { class: "empty" }, "Nothing was compiled or measured while this trace was written."));
  const total = (kind) => spans.totals[kind];
  const parts = [
    figure(duration(spans.span_ms), "from the first to the last"),
    figure(duration(total("wait").open_ms), "waited by the compile"),
    figure(duration(total("compile").sum_ms), "compiling", `${counted(total("compile").count, "job")} within ${duration(total("compile").open_ms)}`),
    figure(duration(total("measure").sum_ms), "measuring", counted(total("measure").count, "run")),
  ];
  return section("timeline", "Timeline", el("dl", { class: "figures small" }, parts), legend(["wait", "compile", "measure"], WORK), timelineChart(spans),
    spanTable(spans), spans.left_out > 0 && el("p", { class: "note" }, `${counted(spans.left_out, "shorter span")} not drawn.`));
}

/** The spans of the timeline in words: for keys, and for who cannot see the drawing. */
function spanTable(spans) {
  const rows = spans.lanes.flatMap((lane) => lane.spans.map(([start, took, kind, name, problem]) => ({ lane: text(lane.name), start, took, what: WORK[text(kind)], name: text(name), problem: text(problem) })));
  const table = grid({
    name: "spans", label: "Spans of the timeline", rows, sorted: "start", height: "min(60vh, 32rem)", empty: "", words: (r) => `${r.lane} ${r.what} ${r.name} ${r.problem}`,
    columns: [
      { name: "start", title: "From, s", number: true, value: (r) => r.start, cell: (r) => plain(r.start / 1e3, 3) },
      { name: "took", title: "Took, s", number: true, first: true, value: (r) => r.took, cell: (r) => plain(r.took / 1e3, 3) },
      { name: "what", title: "What", value: (r) => r.what, cell: (r) => r.what },
      { name: "lane", title: "Where", wide: true, value: (r) => r.lane, cell: (r) => r.lane },
      { name: "span", title: "Kernel", value: (r) => r.name, cell: (r) => cut(r.name, "cut mono") },
      { name: "of", title: "Problem", wide: true, value: (r) => r.problem, cell: (r) => cut(r.problem) },
    ],
  });
  return el("details", {}, el("summary", {}, "All spans in a table"), table.element);
}

function warmSection() {
  const waited = raw.timeline?.totals.wait.open_ms;
  const blocks = sources.map(({ summary: all }, index) => all?.candidates && el("div", {}, isBeside && el("h3", { class: "sourcename" }, shortNames[index]),
    el("dl", { class: "figures small" },
      figure(duration(all.compile_s * 1e3), "compiling", "summed over workers"),
      figure(duration(all.samples_s * 1e3), "samples", "warming up and checking numbers come on top"),
      figure(count(all.measured), "candidates measured"),
      waited > 0 && figure(duration(waited), "waited", "in the trace of this page"))));
  if (!blocks.some(Boolean)) return null;
  return section("warm", "What a warm start saves",
    el("p", { class: "lead" }, "A process that finds these records measures nothing, and loads the kernels that it needs from the cache. What it does not do again:"),
    blocks.filter(Boolean));
}

function refusedSection() {
  if (!records.length || !sources.some((source) => source.kind === "cache")) return null; // pins do not say who refused
  const refused = new Map();
  for (const record of records) for (const place of record.refused) appended(refused, place, record);
  const failures = new Map();
  for (const record of records) {
    for (const row of record.row[RECORD.candidates]) {
      const [status, reason] = raw.outcomes[row[CANDIDATE.outcome]].map((place) => (typeof place === "number" ? text(place) : place));
      if (status === MEASURED) continue;
      const name = text(raw.forms[row[CANDIDATE.form]][1]);
      const key = `${status}\n${reason}\n${family(text(raw.forms[row[CANDIDATE.form]][2]), name)}`;
      const entry = failures.get(key) ?? { names: new Set(), what: status, why: reason, records: [] };
      entry.names.add(name);
      if (entry.records.at(-1) !== record) entry.records.push(record); // several of its candidates may have failed so
      failures.set(key, entry);
    }
  }
  const rows = [
    ...[...refused].map(([place, list]) => ({ name: text(raw.refusals[place][0]), what: "not offered", why: text(raw.refusals[place][1]), records: list })),
    ...[...failures.values()].map((entry) => ({ ...entry, name: named([...entry.names]) })),
  ];
  for (const source of sources) for (const [name, status, why] of source.quarantined ?? []) rows.push({ name: text(name), what: "quarantine", why: [text(status), text(why)].filter(Boolean).join(": "), records: [] });
  const table = grid({
    name: "refused", label: "Refused and failed", rows, height: "min(60vh, 32rem)", empty: "Every template took every problem, and every candidate ran.",
    words: (r) => `${r.name} ${r.what} ${r.why}`,
    columns: [
      { name: "template", title: "Template or candidate", value: (r) => r.name, cell: (r) => cut(r.name, "cut mono") },
      { name: "what", title: "What", wide: true, value: (r) => r.what, cell: (r) => r.what },
      { name: "reason", title: "Why", value: (r) => r.why, cell: (r) => (r.records.length || !r.why ? cut(r.why || missing) : el("button", { type: "button", class: "whole", title: r.why, onclick: () => openText(r.name, r.what, r.why) }, r.why)) },
      { name: "count", title: "Problems", number: true, first: true, value: (r) => r.records.length, cell: (r) => (r.records.length ? el("a", { href: `#r/${r.records[0].id}`, title: r.records[0].text, onclick: (event) => { together = event.ctrlKey || event.metaKey || event.shiftKey ? null : r.records; } }, count(r.records.length)) : missing) },
    ],
  });
  if (rows.length) table.sort("count", true);
  return section("refused", "Refused and failed", table.element);
}

const named = (names) => (names.length === 1 ? names[0] : `${names[0]} and ${count(names.length - 1)} others`);

function cacheSection() {
  const blocks = sources.map((source, index) => {
    if (!source.holdings?.length) return null;
    const most = Math.max(...source.holdings.map(([, , size]) => size), 1);
    const rows = source.holdings.map(([name, number, size]) => {
      const bar = svg("svg", { class: "meter", viewBox: "0 0 100 8", width: 100, height: 8, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: Math.max(0.5, (100 * size) / most), height: 8, rx: 1 }));
      return el("tr", {}, el("th", { scope: "row" }, text(name)), el("td", { class: "number" }, count(number)), el("td", { class: "number" }, size ? bytes(size) : missing), el("td", { class: "wide" }, size ? bar : null));
    });
    const { hits = 0, misses = 0 } = source.counters;
    const rateText = hits + misses ? `${count(hits)} hits, ${count(misses)} misses since the counters were zero: ${percent(hits / (hits + misses))} known.` : "No process has looked a problem up yet.";
    return el("div", {}, isBeside && el("h3", { class: "sourcename" }, shortNames[index]),
      el("p", { class: "lead" }, rateText),
      el("table", { class: "plain holdings" }, el("thead", {}, el("tr", {}, ["Kind", "Entries", "Size", ""].map((title, at) => el(title ? "th" : "td", title ? { scope: "col", class: at === 1 || at === 2 ? "number" : null } : { class: "wide" }, title)))), el("tbody", {}, rows)));
  });
  return section("cache", "The cache", blocks.filter(Boolean));
}

function environmentsSection() {
  if (!raw.environments.length) return null;
  const all = raw.environments;
  const paths = [...new Set(all.flatMap((each) => each.fields.map(([path]) => path)))];
  const values = all.map((each) => new Map(each.fields));
  const several = all.length > 1;
  const lines = paths.map((path) => {
    const cells = values.map((fields) => fields.get(path) ?? missing);
    const differs = several && new Set(cells).size > 1;
    return el("tr", { class: differs ? "differs" : null }, el("th", { scope: "row" }, path), cells.map((value) => el("td", {}, value)));
  });
  const counts = all.map((_, index) => records.filter((record) => record.environment === index).length);
  const head = el("tr", {}, el("th", { scope: "col" }, "Field"), all.map((each, index) => el("th", { scope: "col" }, each.name, el("span", { class: "about" }, ` ${each.key.slice(0, 8)}, ${counted(counts[index], "record")}`))));
  return section("environments", several ? "Environments" : "Environment",
    several && el("p", { class: "lead" }, "A record is used where every field is the same. Fields that differ are marked."),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Environments, scrollable" }, el("table", { class: "plain environments" }, el("thead", {}, head), el("tbody", {}, lines))));
}

function benchSections() {
  return sources.flatMap((source, index) => {
    if (source.kind !== "bench") return [];
    const title = isBeside ? `: ${shortNames[index]}` : "";
    const samples = source.samples.map((set) => [el("h3", {}, set.name.replace(/ > arms$/, "")), samplesChart(set)]);
    const tables = source.tables.map((each, at) => [el("h3", {}, each.name), benchTable(each, `bench${index}-${at}`, `${each.name}${title}`)]);
    const figures = source.figures.length && grid({
      name: `figures${index}`, label: `Figures${title}`, rows: source.figures, height: "min(60vh, 30rem)", words: (r) => `${r[0]} ${r[1]}`, empty: "",
      columns: [
        { name: "path", title: "Figure", value: (r) => r[0], cell: (r) => cut(r[0]) },
        { name: "value", title: "Value", number: true, first: true, value: (r) => r[1], cell: (r) => cellText(r[1]) },
      ],
    }).element;
    return [
      section(`samples${index}`, `Samples${title}`, samples),
      section(`tables${index}`, `Results${title}`, tables),
      section(`figures${index}`, `Figures${title}`, figures, leftOut(source.left_out, "more value")),
    ];
  });
}

const leftOut = (number, noun) => number > 0 && el("p", { class: "note" }, `${counted(number, noun)} not in this page.`);

const cellText = (value) => (value === null ? missing : typeof value === "number" ? short(value) : typeof value === "boolean" ? (value ? "yes" : "no") : cut(String(value)));

/** A table with more columns is printed as one paragraph for each row. */
const PAPER_COLUMNS = 7;

function benchTable(each, name, label) {
  const columns = each.columns.map((title, at) => {
    const isNumber = each.rows.some((row) => typeof row[at] === "number") && each.rows.every((row) => row[at] === null || typeof row[at] === "number");
    return { name: `column${at}`, title, number: isNumber, first: isNumber, value: (row) => row[at], cell: (row) => cellText(row[at]) };
  });
  const table = grid({ name, label, columns, rows: each.rows, words: (row) => row.join(" "), height: "min(60vh, 32rem)", empty: "This table has no rows." });
  return el("div", { class: columns.length > PAPER_COLUMNS ? "many cards" : "many" }, table.element, leftOut(each.left_out, "more row"), leftOut(each.columns_left_out, "more column"));
}
