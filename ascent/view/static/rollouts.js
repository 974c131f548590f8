// View 3: rollouts of a step, groups of a prompt side by side; or what a search over all steps finds.
import { formatNumber, getJson, h, segmented, state } from "/static/base.js";
import { COLORINGS, hideNumbers, legendOf, scaleOf, tokensOf } from "/static/tokens.js";

const WHICH = [["all", "All"], ["right", "Right"], ["wrong", "Wrong"], ["truncated", "Truncated"], ["unscored", "Unscored"]];
const ORDERS = [["", "As sampled"], ["longest", "Longest"], ["surprising", "Most surprising"], ["best", "Best"], ["worst", "Worst"]];
const ENDINGS = { over: "the environment" };
const FOLDED = 220; // tokens of a sample before "Show more"

export async function showRollouts(context, content, run) {
  const { query } = context, name = query.get("run");
  if (!run.samples) {
    content.replaceChildren(state("empty", "This run has no samples", "Algorithms that learn from rollouts log some of them at every step."));
    return null;
  }
  let range = run.samples, data = null, ticket = 0, following = !query.has("step");
  const list = h("div", { class: "stack" }), legend = h("div", {}), status = h("p", { class: "muted small", role: "status" });
  const slider = h("input", { type: "range", class: "steps", "aria-label": "Step", oninput: () => go(Number(slider.value)) });
  const box = h("input", { type: "number", class: "step", "aria-label": "Step number", onchange: () => go(Number(box.value)) });
  const go = (step) => { following = step >= range[1]; context.set({ step: following ? null : Math.max(step, range[0]) }); load(); };
  const move = (by) => go(Math.min(Math.max((current() ?? range[1]) + by, range[0]), range[1]));
  const current = () => (query.has("step") ? Number(query.get("step")) : range[1]);
  const select = (label, key, options) => {
    const found = h("select", { "aria-label": label, onchange: () => { context.set({ [key]: found.value }); load(); } }, options.map(([value, text]) => h("option", { value, selected: value === (query.get(key) ?? options[0][0]) }, text)));
    return found;
  };
  const text = h("input", { type: "search", placeholder: "Search prompts and completions", "aria-label": "Search text", value: query.get("text") ?? "", oninput: () => { context.set({ text: text.value }); clearTimeout(text.timer); text.timer = setTimeout(load, 250); } });
  const everywhere = h("input", { type: "checkbox", onchange: () => { context.set({ everywhere: everywhere.checked ? "true" : null }); load(); } });
  everywhere.checked = query.get("everywhere") === "true";
  const stepControls = h("div", { class: "row stepper" }, h("button", { type: "button", "aria-label": "Previous step", onclick: () => move(-1) }, "‹"), slider, h("button", { type: "button", "aria-label": "Next step", onclick: () => move(1) }, "›"), h("label", {}, h("span", { class: "muted" }, "Step"), box));
  const colors = segmented("Color tokens by", Object.entries(COLORINGS).map(([key, each]) => [key, each.label]), query.get("color") ?? "advantage", (value) => { context.set({ color: value }); draw(); });
  content.replaceChildren(h("div", { class: "card bar-card" }, stepControls, h("div", { class: "row" }, select("Filter", "which", WHICH), select("Order", "order", ORDERS), text, h("label", {}, everywhere, "all steps")), h("div", { class: "row" }, colors, legend)), status, list);

  async function load(before = 0) {
    const mine = ++ticket, all = query.get("everywhere") === "true";
    stepControls.hidden = all;
    const wanted = { run: name, which: query.get("which") ?? "all", order: query.get("order") ?? "", text: query.get("text") ?? "", ...(all ? { everywhere: "true", before } : { step: current() }) };
    let found;
    try { found = await getJson("/api/rollouts", wanted); } catch (error) { list.replaceChildren(state("error", "These samples could not be read", error.message)); return; }
    if (mine !== ticket || context.stopped()) return;
    range = found.steps ?? range;
    [slider.min, slider.max, slider.value] = [range[0], range[1], current()];
    [box.min, box.max, box.value] = [range[0], range[1], current()];
    data = before ? { ...found, groups: [...data.groups, ...found.groups], searched: [found.searched?.[0] ?? data.searched[0], data.searched[1]], unreadable: data.unreadable + found.unreadable } : found;
    draw();
  }

  function draw() {
    hideNumbers();
    const samples = data.groups.flatMap((group) => group.samples), color = query.get("color") ?? "advantage", scale = scaleOf(samples, color);
    const logged = samples.some((sample) => COLORINGS[color].of(sample, sample.tokens?.length ?? 0));
    legend.replaceChildren(samples.length && !logged ? h("span", { class: "muted small" }, COLORINGS[color].missing ?? `${COLORINGS[color].label} was not logged for these samples; the first trained ones of a step have it.`) : legendOf(color, scale));
    const all = query.get("everywhere") === "true", of = samples[0]?.of;
    status.textContent = [
      all ? `${samples.length} samples${data.searched ? ` in steps ${formatNumber(data.searched[0])} to ${formatNumber(data.searched[1])}` : ""}` : `${samples.length}${of && of !== samples.length ? ` of ${of}` : ""} samples of step ${formatNumber(current())}, ${data.groups.length} prompts`,
      data.unreadable ? `${data.unreadable} damaged lines left out` : "",
    ].filter(Boolean).join("; ");
    const more = all && data.go_on ? h("button", { type: "button", class: "more", onclick: () => load(data.go_on) }, "Search earlier steps") : "";
    list.replaceChildren(...(samples.length ? data.groups.map((group) => groupCard(group, color, scale)) : [state("empty", "No sample matches", all ? "Search earlier steps, or change the filter." : "Change the filter, or choose another step.")]), more);
  }

  function groupCard(group, color, scale) {
    const rewards = group.samples.map((sample) => sample.reward).filter((each) => typeof each === "number");
    const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
    return h("article", { class: "card rollout-group" }, h("header", {}, h("div", { class: "prompt", dir: "auto" }, group.prompt || "(empty prompt)"),
      h("div", { class: "muted small nowrap" }, query.get("everywhere") === "true" ? `step ${formatNumber(group.step)} · ` : "", `mean reward ${formatNumber(mean, 3)}`, rewards.length > 1 && new Set(rewards).size === 1 ? ", all equal" : "")),
    h("div", { class: "samples" }, group.samples.map((sample) => sampleCard(sample, color, scale))));
  }

  function sampleCard(sample, color, scale) {
    const body = h("div", {}), right = sample.correct ?? sample.reward;
    const kind = sample.reward === null || sample.reward === undefined ? "warn" : right >= 1 ? "good" : "bad";
    const facts = [
      h("span", { class: `badge ${kind}`, title: kind === "warn" ? "unscored" : kind === "good" ? "right" : "wrong" }, kind === "warn" ? "unscored" : `reward ${formatNumber(sample.reward, 3)}`),
      h("span", { class: "muted small" }, `${formatNumber(sample.cut?.tokens ?? sample.tokens?.length ?? 0)} tokens`),
      sample.stop === "length" || ["turns", "tokens", "cut"].includes(sample.ended) ? h("span", { class: "badge warn" }, "truncated") : h("span", { class: "muted small" }, `ended by ${ENDINGS[sample.ended ?? sample.stop] ?? sample.ended ?? sample.stop ?? "?"}`),
      sample.advantages === null || sample.advantages === undefined ? h("span", { class: "muted small" }, "not trained on") : "",
    ];
    const parts = Object.entries(sample.parts ?? {}).filter(([, value]) => value !== sample.reward || Object.keys(sample.parts).length > 1);
    const failures = Object.entries(sample.failures ?? {});
    fill(body, sample, color, scale, FOLDED);
    return h("section", { class: "sample", "data-sample": sample.sample }, h("div", { class: "row facts-row" }, h("span", { class: "muted small number" }, `#${sample.sample ?? "?"}`), facts),
      parts.length ? h("ul", { class: "parts" }, parts.map(([key, value]) => h("li", {}, h("span", { class: "muted" }, key), " ", h("span", { class: "number" }, formatNumber(value, 3))))) : "",
      failures.map(([key, why]) => h("p", { class: "small banner" }, `${key}: ${why}`)), body);
  }

  /** Turns with what was observed before each; a long sample is folded. */
  function fill(body, sample, color, scale, limit) {
    const count = sample.tokens?.length ?? 0, turns = Array.isArray(sample.turns) ? sample.turns : [{ tokens: count }];
    const pieces = [];
    let start = 0;
    for (const turn of turns) {
      if (turn.reply) pieces.push(h("div", { class: "observation" }, h("span", { class: "muted small" }, turn.role === "tool" ? "tool" : "environment"), h("div", { dir: "auto" }, turn.reply)));
      if (start < limit || !count) pieces.push(tokensOf(sample, color, scale, start, Math.min(start + turn.tokens, limit)));
      start += turn.tokens;
    }
    const total = sample.cut?.tokens || count, hidden = total - Math.min(limit, count);
    if (hidden > 0 && count) pieces.push(h("button", { type: "button", class: "quiet more", onclick: async () => {
      const whole = sample.cut ? await getJson("/api/rollout", { run: name, step: sample.step, id: sample.id, sample: sample.sample }) : sample;
      fill(body, whole, color, scale, Infinity);
    } }, `Show ${formatNumber(hidden)} more tokens`));
    body.replaceChildren(...pieces);
  }

  await load();
  return (fresh) => {
    if (fresh.samples && (fresh.samples[1] !== range[1] || fresh.samples[0] !== range[0])) {
      range = fresh.samples;
      if (following && query.get("everywhere") !== "true") return load();
      [slider.max, box.max] = [range[1], range[1]];
    }
  };
}
