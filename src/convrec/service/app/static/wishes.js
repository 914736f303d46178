// The wishes that were read from a conversation: buttons switch them on and off, and a doubtful one is asked back.

import { byId, element } from "./elements.js";

const ROWS = [ // what introduces the wishes of some states
  { intro: "I understood:", states: ["kept", "preferred", "named", "removed"] },
  { intro: "Did you mean:", states: ["unsure"], kind: "asked", mark: "?", hint: "It is not applied unless you choose it." },
  { intro: "Not applied, because nothing would be left:", states: ["dropped"], kind: "asked" },
  { intro: "Understood, but without weight in this model:", states: ["unweighted"], isPlain: true },
  { intro: "Tried by the words of items:", states: ["tried"], isPlain: true },
  { intro: "Not used:", states: ["unknown"], isPlain: true },
];
const ORDER = ROWS.flatMap((row) => row.states);
const WORDS = { kept: "kept", preferred: "preferred", named: "liked", removed: "off", unsure: "not sure", dropped: "not applied", unweighted: "without weight", tried: "tried", unknown: "not used" };
const ON = ["kept", "preferred"];
const YES = /^(y|yes|yeah|yep|right|exactly)\W*$/i, NO = /^(n|no|nope)\W*$/i; // as in `convrec chat`

export class Wishes {
  constructor(choose) {
    this.choose = choose; // called with a wish, and whether it is on
    this.asked = []; // the texts of the wishes that the shown answer asks about
  }

  // Returns the choices by which words answer the question, if they do.
  answer(words) {
    if (!this.asked.length || !(YES.test(words) || NO.test(words))) return null;
    return Object.fromEntries(this.asked.map((text) => [text, YES.test(words)]));
  }

  // Shows the wishes of an answer. Only those of the last message can be switched.
  show(models, message = null) {
    const focused = document.activeElement?.dataset.wish;
    const wishes = merged(models);
    this.asked = message ? [] : wishes.filter((wish) => wish.state === "unsure").map((wish) => wish.text);
    byId("wishes").replaceChildren(...ROWS.flatMap(({ intro, states, kind, mark, hint, isPlain }) => {
      const own = wishes.filter((wish) => states.includes(wish.state));
      if (!own.length) return [];
      const words = message ? intro.replace(":", ` (after message ${message}):`) : intro;
      if (isPlain) return [element("p", { class: "hint" }, `${words} ${own.map((wish) => wish.text + wish.note).join(" · ")}`)];
      return [element("div", { class: `row ${kind || ""}` }, element("span", {}, words),
        element("ul", { class: "chips", "aria-label": words.slice(0, -1) }, ...own.map((wish) => element("li", {}, this.chip(wish, !message, mark || "")))),
        ...(hint && !message ? [element("span", { class: "hint" }, hint)] : []))];
    }));
    byId("wishes").hidden = !wishes.length;
    if (focused && !byId("wishes").contains(document.activeElement)) {
      const chips = [...byId("wishes").querySelectorAll("button")];
      (chips.find((chip) => chip.dataset.wish === focused) || byId("answer-heading")).focus({ preventScroll: true });
    }
  }

  chip(wish, canSwitch, mark) {
    const isOn = ON.includes(wish.state);
    const text = `${wish.state === "named" ? "like " : ""}${wish.text}${wish.state === "preferred" ? " (preferred)" : ""}${mark}${wish.note}`;
    if (!canSwitch || wish.state === "named") return element("span", { class: "chip" }, text);
    return element("button", {
      type: "button", "data-wish": wish.text, "data-state": wish.state, "aria-pressed": String(isOn),
      title: isOn ? "Switch off" : "Switch on", onclick: () => this.choose(wish, isOn),
    }, element("span", { class: "text" }, text), element("span", { "aria-hidden": "true" }, isOn ? " ✕" : " +"));
  }
}

// Each wish once, in the state that says most; its note has the models in which it is another one.
function merged(models) {
  const texts = new Set(models.flatMap((model) => model.wishes.map((wish) => wish.text)));
  return [...texts].map((text) => {
    const found = models.map((model) => model.wishes.find((wish) => wish.text === text));
    const [wish] = found.filter(Boolean).sort((one, other) => ORDER.indexOf(one.state) - ORDER.indexOf(other.state));
    const others = models.filter((model, index) => found[index]?.state !== wish.state)
      .map((model) => `${model.name}: ${WORDS[found[models.indexOf(model)]?.state] || "not read"}`);
    return { ...wish, note: others.length ? ` (${others.join("; ")})` : "" };
  });
}
