// The charts of a page: gains, roofline, timeline, and the spread of samples.
const openRecord = (point) => { location.hash = `r/${point.record.id}`; };

function legend(names, labels) {
  return el("ul", { class: "legend" }, names.map((name) => el("li", {}, el("i", { class: `s-${name}` }), labels[name])));
}

/** Gain over the library kernel against the library kernel's time. */
function gainChart() {
  const known = calls.filter((record) => record.gain && record.libraryMs);
  if (known.length < 3) return null; // the table says as much
  const label = `Gain over the library kernel of ${counted(known.length, "problem")}, by the library kernel's time. The table of problems has the same numbers.`;
  const holder = drawn(label, (width) => {
    const height = width < 520 ? 260 : 300;
    const x = logarithmic(...room(known.map((record) => record.libraryMs)), 56, width - 16);
    const gains = known.map((record) => record.gain);
    const y = logarithmic(...room([...gains, 1, 1.5], 0.08), height - 44, 26);
    const drawing = sheet(width, height);
    drawing.append(axes(x, y, {
      xText: (value) => round(duration(value)), yText: (value) => `${round(short(value))}×`, across: width < 520 ? 4 : 7,
      xTitle: "time of the library kernel", yTitle: "times faster",
    }));
    drawing.append(svg("line", { class: "even", x1: x.from, x2: x.to, y1: y(1), y2: y(1) }));
    const points = known.map((record) => ({ record, x: x(record.libraryMs), y: y(record.gain), class: record.family }));
    drawing.append(...dots(points, known.length > 400 ? "dots many" : "dots"));
    return findable(drawing, points, { open: openRecord, lines: ({ record }) => [
      record.text, `${times(record.gain)}  ${duration(record.libraryMs)} → ${duration(record.ms)}`, record.winner,
    ] });
  });
  const used = Object.keys(FAMILIES).filter((name) => known.some((record) => record.family === name));
  return el("div", {}, legend(used, FAMILIES), holder);
}

/** Operations per second against operations per byte, under known roofs. */
function rooflineChart(environment) {
  const { peak } = raw.environments[environment];
  const known = calls.filter((record) => record.environment === environment && record.flops && record.bytes && record.ms);
  if (!known.length || !peak) return null;
  const points = known.map((record) => ({
    record, intensity: record.flops / record.bytes, reached: record.flops / (record.ms / 1e3), class: record.family,
  }));
  const rates = Object.entries(peak.rates).filter(([dtype]) => known.some((record) => rated(record.dtype, peak) === dtype));
  const shown = rates.length ? rates : Object.entries(peak.rates).slice(0, 1);
  const roofs = new Map();
  for (const [dtype, value] of shown) appended(roofs, value, dtype);
  const top = Math.max(...shown.map(([, value]) => value));
  const label = `Roofline of ${peak.name}: ${counted(known.length, "problem")}.`;
  const holder = drawn(label, (width) => {
    const height = width < 520 ? 300 : 360;
    const x = logarithmic(...room([...points.map((p) => p.intensity), top / peak.bandwidth * 4, 1]), 60, width - 16);
    const y = logarithmic(...room([...points.map((p) => p.reached), top * 1.6], 0.04), height - 44, 26);
    const drawing = sheet(width, height);
    drawing.append(axes(x, y, {
      xText: (value) => round(short(value)), yText: reachedText, xTitle: "FLOP per byte of operands and output", yTitle: "FLOP/s",
      across: width < 520 ? 4 : 7,
    }));
    for (const [value, dtypes] of roofs) {
      const ridge = value / peak.bandwidth;
      const start = Math.max(x.low, y.low / peak.bandwidth);
      const path = `M${x(start)} ${y(Math.max(y.low, start * peak.bandwidth))}L${x(Math.min(ridge, x.high))} ${y(value)}H${x.to}`;
      drawing.append(svg("path", { class: "roof", d: path }));
      drawing.append(svg("text", { class: "rooftext", x: x.to, y: y(value) - 6, "text-anchor": "end" }, `${dtypes.join(", ")} ${rate(value)}`));
    }
    for (const point of points) [point.x, point.y] = [x(point.intensity), y(point.reached)];
    drawing.append(...dots(points, known.length > 400 ? "dots many" : "dots"));
    return findable(drawing, points, { open: openRecord, lines: ({ record, intensity, reached }) => [
      record.text, `${rate(reached)}, ${short(intensity)} FLOP per byte`,
      record.peak ? `${percent(record.peak)} of what ${peak.name} allows` : record.winner,
    ] });
  });
  const used = Object.keys(FAMILIES).filter((name) => known.some((record) => record.family === name));
  return el("div", {}, legend(used, FAMILIES), holder,
    el("p", { class: "note" }, `Peaks of ${peak.name}, dense and at boost clock: ${rate(top)}, ${bytes(peak.bandwidth)}/s. Each operand counts once, epilogues are not counted.`));
}

const rated = (dtype, peak) => (dtype === "float32" && "tf32" in peak.rates ? "tf32" : dtype);

const WORK = { wait: "waiting", compile: "compiling", measure: "measuring" };

/** Lanes of spans over time. */
function timelineChart(timeline) {
  const lanes = timeline.lanes.map((lane) => ({
    name: text(lane.name),
    spans: lane.spans.map(([start, took, kind, name, problem]) => ({ start, took, kind: text(kind), name: text(name), problem: text(problem) })),
  }));
  const label = `Timeline of ${duration(timeline.span_ms)}: ${Object.entries(WORK).map(([kind, word]) => `${word} ${duration(timeline.totals[kind].open_ms)}`).join(", ")}.`;
  return drawn(label, (width) => {
    const tall = 22, left = width < 520 ? 98 : 132;
    const height = lanes.length * tall + 52;
    const x = linear(0, timeline.span_ms / 1e3 || 1, left, width - 16);
    const drawing = sheet(width, height);
    const y = linear(0, 1, height - 36, 12);
    const group = svg("g", { class: "axes", "aria-hidden": "true" });
    for (const value of ticks(x, width < 520 ? 4 : 9)) {
      group.append(svg("line", { x1: x(value), x2: x(value), y1: y.from, y2: y.to }));
      group.append(svg("text", { x: x(value), y: y.from + 16, "text-anchor": "middle" }, `${round(short(value))} s`));
    }
    drawing.append(group);
    const spans = [];
    lanes.forEach((lane, index) => {
      const top = 14 + index * tall;
      drawing.append(svg("text", { class: "lane", x: left - 10, y: top + 13, "text-anchor": "end" }, lane.name));
      const paths = new Map();
      for (const span of lane.spans) {
        const from = x(span.start / 1e3), wide = Math.max(1.5, x((span.start + span.took) / 1e3) - from - 0.5);
        spans.push({ ...span, x: from, wide, top, lane: lane.name });
        paths.set(span.kind, `${paths.get(span.kind) ?? ""}M${from.toFixed(1)} ${top}h${wide.toFixed(1)}v${tall - 6}h${(-wide).toFixed(1)}z`);
      }
      for (const [kind, path] of paths) drawing.append(svg("path", { class: `span s-${kind}`, d: path }));
    });
    drawing.addEventListener("pointermove", (event) => {
      const box = drawing.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      const span = spans.find((each) => py >= each.top && py <= each.top + tall - 6 && px >= each.x - 1 && px <= each.x + each.wide + 1);
      if (!span) return hideTip();
      showTip(event, [span.name, `${WORK[span.kind]} ${duration(span.took)}, from ${duration(span.start)}`, span.problem].filter(Boolean));
    });
    drawing.addEventListener("pointerleave", hideTip);
    return drawing;
  }, "timeline");
}

/** Medians of candidates from the fastest on: what runs is full, the library kernel a bar. */
function sparkline(record) {
  const rows = record.row[RECORD.candidates];
  const known = rows.map((row) => row[CANDIDATE.median]).filter((ms) => ms > 0);
  if (known.length < 2) return "";
  const width = 108, height = 16;
  const best = Math.min(...known);
  const x = logarithmic(1, 4, 4, width - 4);
  const at = (ms) => x(Math.min(4, ms / best)).toFixed(1);
  const drawing = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  drawing.append(svg("path", { class: "sparkline", d: `M4 8H${width - 4}` }));
  drawing.append(svg("path", { class: "tick", d: known.map((ms) => `M${at(ms)} 4v8`).join("") }));
  if (record.libraryMs) drawing.append(svg("path", { class: "dots s-library small", d: `M${at(record.libraryMs)} 8h0` }));
  if (record.ms) drawing.append(svg("path", { class: `dots s-${record.family} small`, d: `M${at(record.ms)} 8h0` }));
  return drawing;
}

/** What `spread` draws, in words, for screen readers. */
function spreadText(box) {
  const [low, q1, q3, high] = box.map(duration);
  return `from ${low} to ${high}, middle half ${q1} to ${q3}`;
}

/** Samples on a shared scale: range, box, median, each sample the page has. */
function spread(box, each, median, scale, height = 22) {
  const drawing = svg("g", {});
  const middle = height / 2;
  const [low, q1, q3, high] = box.map((value) => scale(Math.max(scale.low, Math.min(scale.high, value))));
  drawing.append(svg("path", { class: "whisker", d: `M${low} ${middle}H${high}M${low} ${middle - 3}v6M${high} ${middle - 3}v6` }));
  drawing.append(svg("rect", { class: "box", x: q1, y: middle - 6, width: Math.max(2, q3 - q1), height: 12, rx: 2 }));
  if (each.length) {
    const inside = each.filter((value) => value <= scale.high);
    drawing.append(svg("path", { class: "sample", d: inside.map((value, n) => `M${scale(value).toFixed(1)} ${(middle + ((n * 7) % 9) - 4).toFixed(1)}h0`).join("") }));
  }
  const at = scale(Math.min(scale.high, median));
  drawing.append(svg("path", { class: "median", d: `M${at} ${middle - 8}v16` }));
  return drawing;
}

/** Sets of samples of a benchmark, each arm a row. */
function samplesChart(set) {
  const rows = set.rows.map(([name, values]) => {
    const sorted = [...values].sort((a, b) => a - b);
    const at = (share) => sorted[Math.min(sorted.length - 1, Math.round(share * (sorted.length - 1)))];
    return { name, values, median: at(0.5), box: [at(0), at(0.25), at(0.75), at(1)] };
  });
  const label = `${set.name}: ${rows.map((row) => `${row.name} ${duration(row.median)}, ${spreadText(row.box)}`).join("; ")}.`;
  return drawn(label, (width) => {
    const longest = Math.max(...rows.map((row) => row.name.length));
    const left = Math.min(width / 3, longest * 7 + 26), right = 92, tall = 26, height = rows.length * tall + 26;
    const all = rows.flatMap((row) => row.values);
    const [low, high] = room(all, 0.04);
    const x = linear(low, high, left, width - right);
    const drawing = sheet(width, height);
    const y = linear(0, 1, height - 22, 0);
    const group = svg("g", { class: "axes", "aria-hidden": "true" });
    for (const value of ticks(x, width < 520 ? 3 : 6)) {
      group.append(svg("line", { x1: x(value), x2: x(value), y1: y.from, y2: y.to }));
      group.append(svg("text", { x: x(value), y: y.from + 16, "text-anchor": "middle" }, round(duration(value))));
    }
    drawing.append(group);
    rows.forEach((row, index) => {
      const marks = spread(row.box, row.values, row.median, x, tall);
      marks.setAttribute("transform", `translate(0 ${index * tall})`);
      drawing.append(svg("text", { class: "lane", x: left - 10, y: index * tall + 17, "text-anchor": "end" }, row.name), marks);
      drawing.append(svg("text", { class: "lane strong", x: width - 14, y: index * tall + 17, "text-anchor": "end" }, duration(row.median)));
    });
    return drawing;
  });
}
