// Tokens of one sample, colored by a number of each; the numbers appear on hover, on touch, and with the arrow keys.
import { announce, formatNumber, h } from "/static/base.js";

const number = (value) => (value === null || value === undefined ? null : Number(value));
const listOf = (sample, name, count) => {
  const found = sample[name];
  if (Array.isArray(found)) return found.map(number);
  return found === null || found === undefined ? null : Array(count).fill(number(found));
};

/** Numbers of every token, by name; null where the run did not log them. sign: below and above zero differ. */
export const COLORINGS = {
  advantage: { label: "Advantage", sign: true, of: (sample, count) => listOf(sample, "advantages", count), meaning: "blue: made likelier, orange: made less likely", missing: "None of these samples was trained on." },
  logprob: { label: "Log-prob", of: (sample, count) => listOf(sample, "logprobs", count), amount: (value) => -value, meaning: "darker: less likely when sampled" },
  entropy: { label: "Entropy", of: (sample, count) => listOf(sample, "entropy", count), amount: (value) => value, meaning: "darker: more choices before the update" },
  ratio: { label: "Ratio", sign: true, of: (sample, count) => listOf(sample, "ratio", count), amount: (value) => Math.log(value), meaning: "blue: likelier after the step's updates, orange: less likely" },
  difference: { label: "Sampler − trainer", sign: true, of: (sample) => difference(sample), meaning: "log-prob when sampled minus the trainer's; 0 everywhere is exact" },
};

function difference(sample) {
  const { logprobs, trainer_logprobs: trainer } = sample;
  return Array.isArray(logprobs) && Array.isArray(trainer) ? trainer.map((value, index) => number(logprobs[index]) - number(value)) : null;
}

/** The largest amount of a coloring among samples, so that all share one scale. */
export function scaleOf(samples, name) {
  const coloring = COLORINGS[name], amount = coloring.amount ?? ((value) => value);
  let largest = 0;
  for (const sample of samples) for (const value of coloring.of(sample, sample.tokens?.length ?? 0) ?? []) {
    const size = Math.abs(amount(value));
    if (Number.isFinite(size) && size > largest) largest = size;
  }
  return largest;
}

const CHUNK = 2000;
// Control characters as symbols. Direction marks stay: they are isolated by the element around them.
const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (each) => (each === "\u007f" ? "␡" : String.fromCharCode(0x2400 + each.charCodeAt(0))));

/** The tokens of a sample from index `start` to `end`, or its text where a run logged no tokens. */
export function tokensOf(sample, name, scale, start = 0, end = Infinity) {
  const box = h("div", { class: "tokens", dir: "auto", tabindex: "0", role: "group", "aria-label": "Tokens; arrow keys read their numbers" });
  if (!Array.isArray(sample.tokens)) { box.textContent = visible(String(sample.completion ?? "")); return box; }
  const count = sample.tokens.length, coloring = COLORINGS[name], values = coloring.of(sample, count), amount = coloring.amount ?? ((value) => value);
  const last = Math.min(end, count);
  const add = (from) => {
    const piece = document.createDocumentFragment();
    for (let index = from; index < Math.min(from + CHUNK, last); index++) {
      const token = h("span", { class: "token", "data-index": index }), text = visible(String(sample.tokens[index]));
      token.textContent = text.replaceAll("\n", "␊\n") || "∅";
      const value = values?.[index], size = value === null || value === undefined ? NaN : amount(value);
      if (Number.isFinite(size) && scale > 0 && size !== 0) {
        const share = Math.round(Math.min(Math.abs(size) / scale, 1) * 62 + 4);
        token.style.background = `color-mix(in srgb, var(${coloring.sign ? (size > 0 ? "--above" : "--below") : "--amount"}) ${share}%, transparent)`;
      } else if (size === undefined || Number.isNaN(size)) token.classList.add("plain");
      piece.append(token);
    }
    box.append(piece);
    if (from + CHUNK < last) requestAnimationFrame(() => add(from + CHUNK));
  };
  add(start);
  const tell = (token) => showNumbers(sample, Number(token.dataset.index), token);
  box.addEventListener("mouseover", (event) => { const token = event.target.closest(".token"); if (token) tell(token); });
  box.addEventListener("mouseleave", hideNumbers);
  box.addEventListener("blur", () => { box.querySelector(".token.current")?.classList.remove("current"); hideNumbers(); });
  box.addEventListener("click", (event) => { const token = event.target.closest(".token"); if (token) tell(token); });
  box.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const current = box.querySelector(".token.current"), next = current ? (move > 0 ? current.nextElementSibling : current.previousElementSibling) : box.querySelector(".token");
    if (!next?.classList.contains("token")) return;
    current?.classList.remove("current");
    next.classList.add("current");
    announce(tell(next).textContent);
  });
  return box;
}

const tip = h("div", { class: "tip card", hidden: true });
document.body.append(tip);

function showNumbers(sample, index, token) {
  const rows = Object.values(COLORINGS).map((coloring) => [coloring.label, coloring.of(sample, sample.tokens.length)?.[index]]).filter(([, value]) => value !== undefined && value !== null);
  const logprob = number(sample.logprobs?.[index]);
  if (logprob !== null && !Number.isNaN(logprob)) rows.splice(2, 0, ["Probability", Math.exp(logprob)]);
  tip.replaceChildren(h("div", { class: "mono word" }, JSON.stringify(String(sample.tokens[index]))), h("dl", {}, rows.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", { class: "number" }, formatNumber(value, 4))))),
    h("div", { class: "muted small" }, `token ${index + 1} of ${sample.cut?.tokens ?? sample.tokens.length}`));
  tip.hidden = false;
  const place = token.getClientRects()[0] ?? token.getBoundingClientRect(), size = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - size.width - 8))}px`;
  tip.style.top = `${place.bottom + size.height + 8 > innerHeight ? place.top - size.height - 6 : place.bottom + 6}px`;
  return tip;
}

export function hideNumbers() {
  tip.hidden = true;
}

window.addEventListener("scroll", hideNumbers, { passive: true });
window.addEventListener("hashchange", hideNumbers);

/** What the colors mean, with the ends of the scale. */
export function legendOf(name, scale) {
  const coloring = COLORINGS[name], ends = name === "ratio" ? [Math.exp(-scale), Math.exp(scale)] : name === "logprob" ? [0, -scale] : coloring.sign ? [-scale, scale] : [0, scale];
  return h("div", { class: "row small muted" }, h("span", { class: "number" }, formatNumber(ends[0], 3)), h("span", { class: `ramp ${coloring.sign ? "sign" : ""}`, "aria-hidden": "true" }), h("span", { class: "number" }, formatNumber(ends[1], 3)), h("span", {}, coloring.meaning));
}
