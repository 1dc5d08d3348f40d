// The content of the page, and rows as objects. No text becomes markup.
const raw = JSON.parse(document.getElementById("data").textContent);
const text = (place) => (place < 0 ? "" : raw.texts[place]);
const places = (names) => Object.fromEntries(names.map((name, place) => [name, place]));
const RECORD = places(raw.columns.record);
const CANDIDATE = places(raw.columns.candidate);
const PINNED = 1, NOISY = 2, STAYS = 4;
const MEASURED = "ok";

/** The family of a kernel: what its colour says. Whole words decide: a package's `mla_latent` is not ATen's. */
function family(kind, name) {
  if (kind === "extern") return "library";
  const words = `${kind} ${name}`.toLowerCase().split(/[^a-z]+/);
  return ["cutlass", "triton", "cpp"].find((word) => words.includes(word)) ?? "other";
}

/** The family of a kernel without rivals: its template, or the library. */
function familyOfOnly(name) {
  const named = family("", name);
  return named === "other" ? "library" : named;
}

const FAMILIES = {
  library: "Library",
  cpp: "C++",
  triton: "Triton",
  cutlass: "CUTLASS",
  other: "Template",
};

function candidateOf(row) {
  const [identity, name, kind, description] = raw.forms[row[CANDIDATE.form]].map(text);
  const [status, reason, noisy] = raw.outcomes[row[CANDIDATE.outcome]];
  const ms = row[CANDIDATE.median];
  const away = (column) => ms * (1 + row[CANDIDATE[column]] / 1000);
  const samples = row[CANDIDATE.samples];
  return {
    identity, name, kind, description,
    family: family(kind, name),
    status: text(status),
    reason: text(reason),
    noisy: Boolean(noisy),
    ms,
    samples,
    box: ms !== null && samples ? ["low", "q1", "q3", "high"].map(away) : null,
    each: row[CANDIDATE.each] ? row[CANDIDATE.each].map((share) => ms * (1 + share / 1000)) : [],
    compile: row[CANDIDATE.compile],
  };
}

/** A record as the tables need it; its candidates are read when it is opened. */
function recordOf(row, index) {
  const candidates = row[RECORD.candidates];
  const at = (column) => candidates[row[RECORD[column]]];
  const winner = at("winner"), library = at("library");
  const flags = row[RECORD.flags];
  const form = winner && raw.forms[winner[CANDIDATE.form]].map(text);
  const ms = winner ? winner[CANDIDATE.median] : null;
  const stays = Boolean(flags & STAYS);
  const bound = row[RECORD.bound];
  const only = text(row[RECORD.only]);
  return {
    index,
    key: row[RECORD.key],
    id: `${row[RECORD.source]}.${row[RECORD.environment]}.${row[RECORD.key]}`,
    op: text(row[RECORD.op]),
    text: text(row[RECORD.text]),
    environment: row[RECORD.environment],
    source: row[RECORD.source],
    identity: form ? form[0] : only,
    winner: form ? form[1] : only.replace(/-[0-9a-f]{12}$/, ""),
    described: form ? form[3] : "",
    family: stays ? "library" : form ? family(form[2], form[1]) : only && familyOfOnly(only),
    ms,
    libraryMs: library ? library[CANDIDATE.median] : null,
    gain: row[RECORD.gain],
    why: text(row[RECORD.why]),
    updated: row[RECORD.updated],
    pinned: Boolean(flags & PINNED),
    noisy: Boolean(flags & NOISY),
    stays,
    flops: row[RECORD.flops],
    bytes: row[RECORD.bytes],
    dtype: text(row[RECORD.dtype]),
    bound,
    peak: bound && ms ? bound / ms : null,
    refused: row[RECORD.refused],
    total: row[RECORD.total],
    shown: candidates.length,
    row,
  };
}

const records = raw.records.map(recordOf);
const byId = new Map();
for (const record of records) {
  // Digests that begin alike, and texts that are no digests: their addresses are their places.
  if (byId.has(record.id) || !/^[\w.]+$/.test(record.id)) record.id = `row.${record.index}`;
  byId.set(record.id, record);
}
/** What an address names behind its #; as it is where it is no escaped text. */
function addressed(hash) {
  const name = hash.slice(1);
  try { return decodeURIComponent(name); } catch { return name; }
}
/**
 * Whether another kernel was chosen. Within an environment identities say so; in another one every identity is another,
 * so that names and configurations have to.
 */
function differs(a, b) {
  if (a.environment === b.environment) return a.identity !== b.identity;
  return a.winner !== b.winner || Boolean(a.described && b.described && a.described !== b.described);
}
const isGraph = (record) => record.op === "graph";
const calls = records.filter((record) => !isGraph(record));
const sources = raw.sources;
const isBeside = sources.length > 1;
/** Names of which no two are alike: those that were have a mark each. */
const distinct = (names, marks) => names.map((name, at) => (names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} (${marks[at]})`));
const sourceName = (index) => text(sources[index].name);
/** The names of several sources without the folders that they share; no two are alike. */
const shortNames = (() => {
  const parts = sources.map((source) => text(source.name).split("/"));
  if (parts.length < 2) return parts.map((each) => each[each.length - 1]);
  let same = 0;
  while (same < Math.min(...parts.map((each) => each.length)) - 1 && parts.every((each) => each[same] === parts[0][same])) same += 1;
  return distinct(parts.map((each) => each.slice(same).join("/")), parts.map((_, index) => index + 1));
})();
const candidatesOf = (record) => record.row[RECORD.candidates].map(candidateOf);
const refusalsOf = (record) => record.refused.map((place) => raw.refusals[place].map(text));
/** Append to a key's list; copying it took 18 s for 10,000 records. */
const appended = (lists, key, value) => (lists.get(key) ?? lists.set(key, []).get(key)).push(value);
const commonest = (numbers) => {
  const sorted = numbers.filter((n) => n !== null && n > 0).sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? null;
};
/** Times are shown in one unit in a table, so that their points are below each other. */
const inMicro = (values) => (commonest(values) ?? 1) < 0.3;
/** What problems belong to: models, graphs, a process. */
const KINDS = { model: "Models", graph: "Graphs", process: "Last process with misses", own: "Graphs of this process" };
const KIND = { model: "Model", graph: "Graph", process: "Last misses" };
const groups = sources.flatMap((source, index) => [
  ...(source.graphs ?? []).map((graph) => ({ ...graph, kind: "own", key: text(graph.name), record: -1, total: graph.records.length })),
  ...(source.groups ?? []),
].map((group) => ({ ...group, source: index, own: new Set(group.records), id: `${index}.${group.kind}.${group.key}`, title: text(group.name) })));
const groupById = new Map(groups.map((group) => [group.id, group]));
const groupsOf = new Map();
for (const group of groups) {
  for (const index of group.own) appended(groupsOf, index, group);
}
const modelsOf = (record) => (groupsOf.get(record.index) ?? []).filter((group) => group.kind === "model");
const groupOfGraph = new Map(groups.filter((group) => group.record >= 0).map((group) => [group.record, group]));
const groupAddress = (group) => `#g/${encodeURIComponent(group.id)}`;
/** The entry of a group in the list: of several sources, with its source. */
const groupLabels = () => distinct(
  groups.map((group) => `${group.title} (${groupSize(group)})${isBeside ? `, ${shortNames[group.source]}` : ""}`),
  groups.map((group) => group.key),
);
const groupSize = (group) => counted(group.own.size, "problem") + (group.total > group.records.length ? ` of ${count(group.total)}` : "");
