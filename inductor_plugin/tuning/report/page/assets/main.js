// The page: its sections in their order, its addresses and its keys.
document.getElementById("about").textContent = [
  raw.environments.length ? raw.environments.slice(0, 2).map((each) => each.name).join("; ") + (raw.environments.length > 2 ? ` and ${raw.environments.length - 2} more` : "") : null,
  raw.created && `written ${when(raw.created)}`,
].filter(Boolean).join(" · ");
document.getElementById("footer").textContent = `inductor-plugin ${raw.plugin}. Sorted by its heads; / searches, arrows move between rows, Enter opens one, Esc closes it.`;

const TITLES = {
  summary: null, problems: "Problems", compare: "Side by side", groups: "Models and graphs", gains: "Gains", roofline: "Roofline", graphs: "Graphs",
  timeline: "Timeline", warm: "Warm start", refused: "Refused", cache: "Cache", environments: "Environments",
};
const main = document.getElementById("main");
const parts = [
  summarySection(), graphsSection, compareSection(), problemsSection(), groupsSection(), gainsSection(), rooflineSection(), timelineSection(),
  warmSection(), refusedSection(), cacheSection(), ...benchSections(), environmentsSection(),
].map((part) => (typeof part === "function" ? part() : part)).filter(Boolean);
main.append(...parts);
const links = parts.map((part) => {
  const title = TITLES[part.id] === undefined ? part.querySelector("h2")?.textContent : TITLES[part.id];
  return title && el("a", { href: `#${part.id}` }, title);
}).filter(Boolean);
if (links.length > 1) document.getElementById("nav").append(...links);
else document.getElementById("nav").remove();
if (!document.getElementById("problems")) document.querySelector(".skip").remove();

function follow() {
  const id = addressed(location.hash);
  const record = id.startsWith("r/") ? byId.get(id.slice(2)) : null;
  if (record) return openDialog(record, [together, problems?.rows()].find((list) => list?.includes(record)) ?? records);
  if (dialog.open) dialog.close();
  if (id.startsWith("g/") && groupById.has(id.slice(2))) {
    problems.choose(id.slice(2));
    document.getElementById("problems").scrollIntoView();
    document.getElementById("choose-problems").focus({ preventScroll: true });
    return;
  }
  if (id && !id.startsWith("r/")) document.getElementById(id)?.scrollIntoView();
}

addEventListener("hashchange", follow);
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (/^(input|textarea|select)$/i.test(event.target.tagName)) return;
  const search = document.querySelector(".search");
  if (!search) return;
  event.preventDefault();
  search.scrollIntoView({ block: "center" });
  search.focus();
});
const watched = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const link = links.find((each) => each.getAttribute("href") === `#${entry.target.id}`);
    if (link && entry.isIntersecting) {
      for (const each of links) each.removeAttribute("aria-current");
      link.setAttribute("aria-current", "true");
    }
  }
}, { rootMargin: "-20% 0px -70% 0px" });
for (const part of parts) watched.observe(part);
document.documentElement.dataset.ready = "true";
performance.mark("ready");
follow();
