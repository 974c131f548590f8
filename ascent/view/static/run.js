// View 2: one run. The head and the tabs, each of which is a file of its own.
import { formatDuration, getJson, h } from "/static/base.js";
import { showCurves } from "/static/curves.js";
import { showLog, showSettings } from "/static/details.js";
import { showDiagnosis } from "/static/diagnosis.js";
import { showHeldout } from "/static/heldout.js";
import { showRollouts } from "/static/rollouts.js";
import { ago, badge, progress, score } from "/static/runs.js";

const TABS = [["curves", "Curves"], ["rollouts", "Rollouts"], ["heldout", "Held-out"], ["settings", "Settings"], ["diagnosis", "Diagnosis"], ["log", "Log"]];

export async function showRun(context) {
  const { main, query } = context, name = query.get("run");
  context.locate(h("a", { href: "#/" }, "Runs"), h("span", { class: "muted" }, " / "), h("span", {}, name));
  const tab = query.get("tab") ?? "curves";
  const first = await getJson("/api/run", { run: name });
  if (context.stopped()) return;
  const head = h("div", { class: "run-head" }), content = h("div", { class: "stack" });
  const count = h("span", { class: "count" });
  const tabs = h("nav", { class: "tabs", "aria-label": "Views of the run" }, TABS.map(([key, label]) => h("a", {
    href: `#/run?run=${encodeURIComponent(name)}&tab=${key}`, "aria-current": key === tab ? "page" : null,
  }, label, key === "diagnosis" && count)));
  main.replaceChildren(h("div", { class: "stack" }, head, tabs, content));
  tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone they scroll
  document.title = `${name} · Ascent`;
  const show = { curves: showCurves, rollouts: showRollouts, heldout: showHeldout, settings: showSettings, diagnosis: showDiagnosis, log: showLog }[tab] ?? showCurves;
  const update = await show(context, content, first);
  let drawn = "";
  return context.repeat(async () => {
    const run = drawn ? await getJson("/api/run", { run: name }) : first;
    if (context.stopped()) return;
    fillHead(head, run);
    count.textContent = troubles(run) || "";
    const version = JSON.stringify([run.revision, run.line.state, run.diagnosis, run.warnings.length, run.checkpoints.length, run.output]);
    if (update && (drawn !== version || run.line.state === "running")) await update(run);
    drawn = version;
    return run.line.state === "running" ? 1000 : 3000;
  });
}

/** Findings and warnings: the number on the tab. */
const troubles = (run) => run.warnings.length + (run.diagnosis?.findings.filter((each) => !each.note).length ?? 0);

function fillHead(head, run) {
  const { line, outcome } = run;
  const facts = [
    ["Recipe", line.recipe || line.algorithm || "–"],
    ["Model", line.model.split("/").slice(-2).join("/") || "–"],
    ["Seed", line.seed ?? "–"],
    ["Updated", ago(line.updated) || "–"],
    line.state === "running" && ["Left", formatDuration(line.time_left)],
    run.scores?.last && ["Held-out", score(run.scores.last)],
  ].filter(Boolean);
  head.replaceChildren(
    h("div", { class: "row" }, h("h1", {}, line.id), badge(line.state), progress(line)),
    h("dl", { class: "facts" }, facts.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value)))),
    outcome?.message ? h("p", { class: line.state === "failed" ? "banner error" : "muted small" }, outcome.message) : "",
    run.unreadable ? h("p", { class: "banner" }, `${run.unreadable} damaged lines of metrics.jsonl are left out.`) : "");
}
