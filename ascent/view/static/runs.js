// View 1: all runs, searched, sorted, grouped by recipe, and chosen for a comparison.
import { formatDuration, formatNumber, getJson, h, segmented, state } from "/static/base.js";
import { sparkline } from "/static/charts.js";

const STATES = { running: "live", finished: "good", stopped: "warn", failed: "bad", killed: "bad", damaged: "bad" };
const COLUMNS = [
  { key: "id", label: "Run", value: (run) => run.id },
  { key: "state", label: "State", value: (run) => Object.keys(STATES).indexOf(run.state) },
  { key: "progress", label: "Progress", value: (run) => (run.steps ? run.step / run.steps : run.step) },
  { key: "left", label: "Left", value: (run) => run.time_left ?? Infinity, class: "number" },
  { key: "last", label: "Held-out, last", value: (run) => run.last?.value ?? -Infinity, class: "number" },
  { key: "best", label: "Best", value: (run) => run.best?.value ?? -Infinity, class: "number" },
  { key: "spark", label: "Curve" },
  { key: "warnings", label: "Warnings", value: (run) => run.warnings, class: "number" },
  { key: "updated", label: "Updated", value: (run) => run.updated ?? 0, class: "number" },
];

const GROUPS = {
  recipe: (run) => (run.recipe || run.algorithm || "other").split("/").pop(),
  folder: (run) => run.id.split("/").slice(0, -1).join("/") || ".",
};
const byName = new Intl.Collator(undefined, { numeric: true }).compare;
const MOST_COMPARED = 64;
const compareLink = (names) => `#/compare?${new URLSearchParams(names.map((name) => ["run", name]))}`;

export const badge = (name) => h("span", { class: `badge ${STATES[name] ?? ""}` }, name);
export const runLink = (name, text = name) => h("a", { href: `#/run?run=${encodeURIComponent(name)}` }, text);

/** A value with its interval, as one reads it. */
export function score(found) {
  if (!found) return h("span", { class: "muted" }, "–");
  const half = found.low === null ? null : Math.max(found.high - found.value, found.value - found.low);
  const title = found.low === null ? "no interval: single answers were not logged" : `95% interval ${formatNumber(found.low, 3)} to ${formatNumber(found.high, 3)}, step ${found.step}`;
  return h("span", { title, class: "nowrap" }, formatNumber(found.value, 3), half !== null && h("span", { class: "muted small" }, ` ±${formatNumber(half, 2)}`));
}

export function progress(run) {
  const share = run.steps ? Math.min(run.step / run.steps, 1) : 0;
  const bar = h("span", { class: "bar" }), text = run.steps ? `${formatNumber(run.step)} / ${formatNumber(run.steps)}` : `step ${formatNumber(run.step)}`;
  const fill = h("span", {});
  fill.style.width = `${share * 100}%`;
  bar.append(fill);
  return h("span", { class: `meter ${run.state}` }, bar, h("span", { class: "number small muted" }, text));
}

export async function showRuns(context) {
  const { main, query } = context;
  context.locate(h("span", { class: "muted" }, "Runs"));
  let runs = [], revision = "", laidOut = "";
  const rows = new Map();
  const chosen = new Set(query.getAll("choose"));
  const body = h("div", { class: "stack" }, state("loading"));
  const counts = h("span", { class: "muted", role: "status" });
  const compare = h("button", { type: "button", class: "primary", hidden: true, onclick: () => {
    location.hash = compareLink([...chosen]);
  } });
  const search = h("input", { type: "search", placeholder: "Search runs", title: "In name, recipe, algorithm, model and state", "aria-label": "Search runs", value: query.get("text") ?? "",
    oninput: () => { context.set({ text: search.value }); render(); } });
  const group = segmented("Group", [["recipe", "By recipe"], ["folder", "By folder"], ["none", "One list"]], query.get("group") ?? "recipe", (value) => { context.set({ group: value }); render(); });
  main.replaceChildren(h("div", { class: "stack" }, h("div", { class: "row spread" }, h("div", { class: "row" }, h("h1", {}, "Runs"), counts),
    h("div", { class: "row" }, compare, search, group)), body));

  const sortBy = (key) => {
    const [old, down] = (query.get("sort") ?? "id").split(",");
    context.set({ sort: old === key && !down ? `${key},down` : key });
    render();
  };

  function header() {
    const [key, down] = (query.get("sort") ?? "id").split(",");
    return h("tr", {}, h("th", { class: "choose" }, h("span", { class: "visually-hidden" }, "Compare")), COLUMNS.map((column) => h("th", {
      class: `${column.key} ${column.class ?? ""}`, scope: "col", "aria-sort": column.key === key ? (down ? "descending" : "ascending") : null,
    }, column.value ? h("button", { type: "button", class: "sort", onclick: () => sortBy(column.key) }, column.label, h("span", { "aria-hidden": "true" }, column.key === key ? (down ? " ↓" : " ↑") : "")) : column.label)));
  }

  function row(run) {
    const words = JSON.stringify(run), old = rows.get(run.id);
    if (old?.words === words) return old.element;
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.id}`, onchange: () => { box.checked ? chosen.add(run.id) : chosen.delete(run.id); showChosen(); } });
    box.checked = chosen.has(run.id);
    const about = [run.algorithm, run.model.split("/").slice(-2).join("/"), run.seed !== null && run.seed !== undefined && `seed ${run.seed}`].filter(Boolean).join(" · ");
    const element = h("tr", { "data-run": run.id },
      h("td", { class: "choose" }, box),
      h("td", { class: "id" }, runLink(run.id), h("div", { class: "muted small about" }, about)),
      h("td", { class: "state" }, badge(run.state)),
      h("td", { class: "progress" }, progress(run)),
      h("td", { class: "left number" }, run.state === "running" ? formatDuration(run.time_left) : ""),
      h("td", { class: "last number" }, score(run.last), run.metric && h("div", { class: "muted small" }, run.metric.replace("eval/", ""))),
      h("td", { class: "best number" }, score(run.best), run.best && h("div", { class: "muted small" }, `step ${formatNumber(run.best.step)}`)),
      h("td", { class: "spark" }, run.spark?.length > 1 ? sparkline(run.spark, `${run.spark_metric} over the run`) : "", run.spark_metric && h("div", { class: "muted small" }, run.spark_metric)),
      h("td", { class: "warnings number" }, run.warnings ? h("a", { class: "badge warn", href: `#/run?run=${encodeURIComponent(run.id)}&tab=diagnosis` }, String(run.warnings)) : ""),
      h("td", { class: "updated number muted nowrap", "data-updated": run.updated }, ago(run.updated)));
    old?.element.replaceWith(element);
    rows.set(run.id, { words, element });
    return element;
  }

  function table(list) {
    return h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Table of runs" }, h("table", { class: "runs" }, h("thead", {}, header()), h("tbody", {}, list.map(row))));
  }

  function showChosen() {
    compare.hidden = chosen.size < 2;
    compare.textContent = `Compare ${chosen.size} runs`;
  }

  function render() {
    const text = search.value.toLowerCase(), [key, down] = (query.get("sort") ?? "id").split(",");
    const value = COLUMNS.find((column) => column.key === key)?.value ?? COLUMNS[0].value;
    const shown = runs.filter((run) => [run.id, run.recipe, run.algorithm, run.model, run.state].join(" ").toLowerCase().includes(text));
    shown.sort((a, b) => { const [x, y] = [value(a), value(b)]; const order = typeof x === "string" ? byName(x, y) : x - y; return down ? -order : order; });
    const live = runs.filter((run) => run.state === "running").length;
    counts.textContent = `${shown.length === runs.length ? runs.length : `${shown.length} of ${runs.length}`}${live ? `, ${live} running` : ""}`;
    showChosen();
    laidOut = shown.length ? laidOut : "";
    if (!runs.length) return body.replaceChildren(state("empty", "No runs here yet", "A run appears as soon as its first step is logged.", "ascent train sort --run runs/sort"));
    if (!shown.length) return body.replaceChildren(state("empty", "No run matches", `Nothing in ${runs.length} runs has “${search.value}”.`));
    const keyOf = GROUPS[query.get("group") ?? "recipe"];
    const layout = JSON.stringify([query.get("group"), query.get("sort"), shown.map((run) => [run.id, keyOf?.(run)])]);
    if (layout === laidOut) return shown.forEach(row); // the same rows in the same places: only those that changed
    laidOut = layout;
    if (!keyOf) return body.replaceChildren(table(shown));
    const groups = [...Map.groupBy(shown, keyOf)].sort(([a], [b]) => byName(a, b));
    body.replaceChildren(...groups.map(([name, list]) => h("section", { class: "group" }, h("div", { class: "row" }, h("h2", {}, name, " ", h("span", { class: "muted" }, String(list.length))),
      list.length > 1 && list.length <= MOST_COMPARED && h("a", { class: "small", href: compareLink(list.map((run) => run.id)), "aria-label": `Compare the runs of ${name}` }, "Compare")), table(list))));
  }

  return context.repeat(async () => {
    const found = await getJson("/api/runs", { since: revision });
    if (context.stopped()) return;
    const focused = document.activeElement?.closest?.("tr")?.dataset.run;
    revision = found.revision;
    if (found.runs) {
      runs = found.runs;
      render();
      if (focused) rows.get(focused)?.element.querySelector("a, input")?.focus();
    }
    for (const cell of body.querySelectorAll("[data-updated]")) cell.textContent = ago(Number(cell.dataset.updated));
    return found.pending ? 30 : runs.some((run) => run.state === "running") ? 1000 : 2000;
  });
}

export function ago(seconds) {
  if (!seconds) return "";
  const passed = Date.now() / 1000 - seconds;
  return passed < 5 ? "now" : `${formatDuration(passed)} ago`;
}
