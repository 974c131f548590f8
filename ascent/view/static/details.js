// The quieter tabs of a run: settings with their origin, environment, checkpoints, what happened when.
import { formatNumber, formatValue as show, h, state } from "/static/base.js";

const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "");
const ORIGINS = { "command line": "live", recipe: "good", row: "", default: "" };

export function showSettings(context, content, run) {
  const search = h("input", { type: "search", placeholder: "Find a setting", "aria-label": "Find a setting", oninput: () => fill() });
  const body = h("tbody", {}), changed = new Map(run.changes.filter((each) => each.key && !each.input).map((each) => [each.key, each]));
  const fill = () => body.replaceChildren(...run.recipe.filter((row) => row.key.includes(search.value)).map((row) => h("tr", {},
    h("th", { scope: "row", class: "mono" }, row.key), h("td", { class: "mono value" }, show(row.value)),
    h("td", {}, changed.has(row.key) ? h("span", { class: "badge warn" }, `changed from step ${changed.get(row.key).step}`) : row.origin ? h("span", { class: `badge ${ORIGINS[row.origin] ?? ""}` }, row.origin) : h("span", { class: "muted" }, "not recorded")))));
  fill();
  const table = h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Settings" }, h("table", { class: "settings single" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), h("th", { scope: "col" }, "Value"), h("th", { scope: "col" }, "From"))), body));
  const text = h("details", { class: "section" }, h("summary", {}, h("h2", {}, "config.yaml")), h("pre", { class: "card text", tabindex: "0" }, run.config));
  content.replaceChildren(run.recipe.length ? h("div", { class: "stack" }, search, table) : state("empty", "No recorded settings", "This run was made by a version that recorded no inputs; its config.yaml is below."), environment(run), text);
}

function environment(run) {
  const starts = Array.isArray(run.environment) ? run.environment : [];
  return h("section", { class: "stack" }, h("h2", {}, "Environment"), starts.length ? starts.map((start, index) => h("details", { class: "section", open: index === starts.length - 1 },
    h("summary", {}, h("h3", {}, `Start ${index + 1}`), h("span", { class: "muted small mono" }, command(start))),
    h("dl", { class: "pairs card" }, Object.entries(start).map(([key, value]) => h("div", {}, h("dt", {}, key === "timestamp" ? "started" : key), h("dd", { class: "mono" }, typeof value === "object" && value !== null && !Array.isArray(value) ? Object.entries(value).map(([name, each]) => h("div", {}, `${name} ${show(each)}`)) : key === "timestamp" ? when(value) : show(key === "command" ? command(start) : value))))))) : h("p", { class: "muted" }, "No start is recorded."));
}

const command = (start) => (Array.isArray(start.command) ? start.command.map((word) => /(^|\/)ascent(\/__main__\.py)?$/.test(word) ? "ascent" : word).join(" ") : "");

/** Printed text as one would see it: of a line that was overwritten (a progress bar), the last state. */
const asLines = (text) => text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "").split("\n").map((line) => line.replace(/\r+$/, "").split("\r").pop()).join("\n");

export function showLog(context, content, run) {
  return (fresh) => {
    const starts = (Array.isArray(fresh.environment) ? fresh.environment : []).map((each, index) => [each.timestamp, "start", `Start ${index + 1}: ${command(each)}`]);
    const events = [
      ...starts.map(([time, kind, text]) => ({ time, kind, text })),
      ...fresh.changes.map((each) => ({ time: each.timestamp, step: each.step, kind: "change", text: each.input ? `${each.key}: another content` : `${each.key}: ${show(each.was)} → ${show(each.now)}` })),
      ...fresh.warnings.map((each) => ({ step: each.step, kind: "warning", text: `${each.name}: ${each.why ?? ""}` })),
      ...fresh.checkpoints.map((each) => ({ time: each.time, step: each.step, kind: "checkpoint", text: `Checkpoint of step ${each.step}` })),
      fresh.outcome && { time: fresh.outcome.timestamp, step: fresh.outcome.step, kind: fresh.outcome.ending, text: `${fresh.outcome.ending} at step ${fresh.outcome.step}${fresh.outcome.message ? `: ${fresh.outcome.message}` : ""}` },
    ].filter(Boolean);
    events.sort((a, b) => (a.step ?? -1) - (b.step ?? -1) || (a.time ?? 0) - (b.time ?? 0));
    const output = fresh.output && h("details", { class: "section", open: true }, h("summary", {}, h("h2", {}, "Output"), h("span", { class: "muted small" }, "the end of what the run printed")), h("pre", { class: "card text output", tabindex: "0" }, asLines(fresh.output)));
    content.replaceChildren(output || "", events.length ? h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Log" }, h("table", { class: "log" }, h("thead", {}, h("tr", {}, ["Step", "What", "", "When"].map((word) => h("th", { scope: "col" }, word || h("span", { class: "visually-hidden" }, "Text"))))),
      h("tbody", {}, events.map((each) => h("tr", {}, h("td", { class: "number" }, each.step === undefined ? "" : formatNumber(each.step)), h("td", {}, h("span", { class: `badge ${{ warning: "warn", failed: "bad", finished: "good", start: "live" }[each.kind] ?? ""}` }, each.kind)), h("td", { class: "what" }, each.text), h("td", { class: "muted nowrap" }, when(each.time))))))) : state("empty", "Nothing happened yet"));
  };
}
