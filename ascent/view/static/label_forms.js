// The three kinds of questions: what stands beside an answer, what stands in the bar, and what each key does.
// A form has: beside(index), bar, key(name) -> whether it was used, draft() and restore(draft).

import { h, segmented } from "/static/base.js";

const hint = (key) => h("kbd", { "aria-hidden": "true" }, key);

/** A button with its key. */
export function keyed(key, text, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, hint(key), h("span", {}, text));
}

/** Which of two is better: one key is the verdict. */
export function pairs(count, submit) {
  const words = { 1: "first", 2: "second", t: "tie" };
  const choose = (key) => submit(words[key], []);
  const labels = [["1", "Answer 1 is better"], ["t", "Tie"], ["2", "Answer 2 is better"]];
  const buttons = labels.map(([key, text]) => keyed(key.toUpperCase(), text, () => choose(key), { class: `choice ${words[key]}`, "data-verdict": words[key] }));
  return {
    keys: [["1  2", "the better answer"], ["T", "tie"]],
    bar: h("div", { class: "choices pairs", role: "group", "aria-label": "Which answer is better?" }, buttons),
    beside: () => null,
    key: (name) => name in words && (choose(name), true),
    draft: () => [],
    restore: () => {},
  };
}

/** From best to worst. Numbers are typed in that order, = ties the next one with the last. */
export function rankings(count, submit, changed) {
  let places = []; // groups of equal answers, best first
  let tying = false;
  const slots = Array.from({ length: count }, () => h("button", { type: "button", class: "rank" }));
  const order = h("output", { class: "order", "aria-live": "polite" });
  const tie = keyed("=", "Tie with the next", () => toggleTie(), { class: "quiet" });
  const back = keyed("⌫", "Back", () => takeBack(), { class: "quiet" });
  const send = keyed("↵", "Save ranking", () => finish(), { class: "primary" });
  slots.forEach((slot, index) => slot.addEventListener("click", () => place(index)));

  function place(index) {
    if (places.flat().includes(index)) places = places.map((group) => group.filter((each) => each !== index)).filter((group) => group.length);
    else if (tying && places.length) places[places.length - 1].push(index);
    else places.push([index]);
    tying = false;
    show();
  }
  function toggleTie() {
    tying = places.length > 0 && !tying;
    show();
  }
  function takeBack() {
    if (tying) tying = false;
    else if (places.length && places[places.length - 1].pop() !== undefined) places = places.filter((group) => group.length);
    show();
  }
  function finish() {
    if (places.flat().length === count) submit("ranked", ranks());
  }
  const ranks = () => slots.map((_, index) => places.findIndex((group) => group.includes(index)) + 1);

  function show(touched = true) {
    ranks().forEach((rank, index) => {
      slots[index].textContent = rank ? `Rank ${rank}` : "Not ranked";
      slots[index].setAttribute("aria-pressed", String(rank > 0));
      slots[index].setAttribute("aria-label", rank ? `Answer ${index + 1}: rank ${rank}; remove it` : `Answer ${index + 1}: rank it next`);
    });
    const text = places.map((group) => group.map((index) => index + 1).join(" = ")).join("  ›  ");
    order.textContent = text ? `${text}${tying ? "  = …" : ""}` : "Best answer first";
    order.classList.toggle("muted", !text);
    tie.setAttribute("aria-pressed", String(tying));
    tie.disabled = back.disabled = !places.length;
    send.disabled = places.flat().length !== count;
    if (touched) changed();
  }
  show(false);
  return {
    keys: [[`1 – ${count}`, "the answers, best first"], ["=", "tie the next answer with the last"], ["⌫", "take back the last one"], ["↵", "save"]],
    bar: h("div", { class: "choices ranking", role: "group", "aria-label": "The ranking" }, order, tie, back, send),
    beside: (index) => slots[index],
    key: (name) => {
      const index = Number(name) - 1;
      if (index >= 0 && index < count && Number.isInteger(index)) place(index);
      else if (name === "=") toggleTie();
      else if (name === "backspace") takeBack();
      else if (name === "enter") finish();
      else return false;
      return true;
    },
    draft: () => ranks(),
    restore: (draft) => {
      const groups = new Map();
      draft.forEach((rank, index) => rank && groups.set(rank, [...(groups.get(rank) ?? []), index]));
      places = [...groups.entries()].sort((one, other) => one[0] - other[0]).map(([, group]) => group);
      show(false);
    },
  };
}

/** A number for every answer. A number key rates the marked answer and moves on. */
export function ratings(count, submit, changed, scale) {
  let given = new Array(count).fill(0);
  let marked = 0;
  const slots = Array.from({ length: count }, () => h("div", { class: "rating" }));
  const missing = h("output", { class: "order", "aria-live": "polite" });
  const send = keyed("↵", "Save ratings", () => finish(), { class: "primary" });
  const numbers = Array.from({ length: scale }, (_, index) => [index + 1, String(index + 1)]);

  function rate(index, value) {
    given[index] = value;
    const next = [...given.keys()].map((offset) => (index + offset) % count).find((each) => !given[each]);
    mark(next ?? index);
    changed();
  }
  function mark(index) {
    marked = Math.min(Math.max(index, 0), count - 1);
    show();
  }
  function finish() {
    if (given.every(Boolean)) submit("rated", given);
  }
  function show() {
    slots.forEach((slot, index) => {
      const focused = slot.contains(document.activeElement) ? document.activeElement.dataset.value : null;
      slot.replaceChildren(segmented(`Rating of answer ${index + 1}`, numbers, given[index], (value) => rate(index, value)));
      if (focused) slot.querySelector(`[data-value="${focused}"]`).focus();
      slot.closest("article")?.classList.toggle("marked", index === marked && count > 1);
    });
    const left = given.filter((value) => !value).length;
    missing.textContent = left ? `${left} of ${count} not rated` : "All rated";
    missing.classList.toggle("muted", left > 0);
    send.disabled = left > 0;
  }
  show();
  return {
    keys: [[`1 – ${scale}`, `rates the marked answer; ${scale} is best`], ["↑  ↓", "mark another answer"], ["↵", "save"]],
    bar: h("div", { class: "choices ranking", role: "group", "aria-label": "The ratings" }, missing, send),
    beside: (index) => slots[index],
    shown: show, // once the answers are on the page: the mark is on their articles
    key: (name) => {
      const value = Number(name);
      if (Number.isInteger(value) && value >= 1 && value <= scale) rate(marked, value);
      else if (name === "arrowdown" || name === "arrowright") mark(marked + 1);
      else if (name === "arrowup" || name === "arrowleft") mark(marked - 1);
      else if (name === "enter") finish();
      else return false;
      return true;
    },
    draft: () => given,
    restore: (draft) => {
      given = draft.map((value) => value || 0);
      mark(Math.max(given.indexOf(0), 0));
    },
  };
}
