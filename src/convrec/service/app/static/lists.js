// Shows the lists of an answer: reasons, differences between two models, and buttons for feedback.

import { button, byId, element, icon } from "./elements.js";

export const lineOf = (item) => (item.year === null ? item.title : `${item.title} (${item.year})`);

export function showLists(answer, { all, feedback, never }) {
  const models = answer.models;
  const ranks = models.map((model) => new Map(model.recommendations.map((item) => [lineOf(item), item.rank])));
  byId("lists").replaceChildren(...models.map((model, index) => element("section",
    { class: "list", "aria-labelledby": `model-${index}` },
    element("h3", { id: `model-${index}` }, model.name),
    element("ol", { class: "items" }, ...model.recommendations.map((item) => {
      const place = models.length > 1 ? difference(item, ranks[1 - index]) : null;
      const buttons = [
        ...(feedback ? feedback.buttons(answer, model, item) : []),
        button(icon("never"), () => never(answer, model, item), `Never ${lineOf(item)}`, "icon"),
      ];
      buttons.at(-1).dataset.never = "";
      return element("li", { class: place && place.isOnly ? "item only" : "item" },
        element("span", { class: "rank", "aria-hidden": "true" }, String(item.rank)),
        element("div", { class: "about" },
          element("p", { class: "title" }, lineOf(item)),
          ...(place?.text ? [element("p", { class: "badge" }, place.text)] : []),
          ...(item.facts ? [element("p", { class: "facts" }, item.facts)] : []),
          element("p", { class: "reason" }, ...item.reasons.map((reason) => element("span", {}, reason)))),
        element("div", { class: "actions" }, ...buttons));
    })))));
  showSwitch(models);
  if (models.length < 2) return `${models[0].recommendations.length} of ${all}`;
  const [one, other] = ranks;
  const both = [...one.keys()].filter((line) => other.has(line));
  const same = both.filter((line) => one.get(line) === other.get(line));
  return `In both lists: ${both.length} of ${one.size}, ${same.length || "none"} of them at the same rank.`;
}

function difference(item, others) {
  const rank = others.get(lineOf(item));
  if (rank === undefined) return { isOnly: true, text: "Only in this list" };
  return { isOnly: false, text: rank === item.rank ? "" : `Rank ${rank} in the other list` };
}

function showSwitch(models) {
  const choose = (chosen) => {
    [...byId("switch").children].forEach((other, index) => other.setAttribute("aria-pressed", String(index === chosen)));
    [...byId("lists").children].forEach((list, index) => list.classList.toggle("other", index !== chosen));
  };
  byId("switch").replaceChildren(...models.map((model, index) => button(model.name, () => choose(index))));
  byId("switch").hidden = models.length < 2;
  choose(0);
}

// Returns the mark of an item in an answer, "accepted" or "rejected", if it has one.
export const markOf = (answer, model, item) => answer.marks?.get(`${model.list} ${item.item_id}`);

// Marks items as liked or disliked. A second click withdraws; the marks of an answer are kept in it.
export class Feedback {
  constructor(report) {
    this.report = report; // shows a sentence, or an error
  }

  buttons(answer, model, item) {
    const pair = [["accepted", "up", `I like ${lineOf(item)}`], ["rejected", "down", `Not for me: ${lineOf(item)}`]]
      .map(([event, name, label]) => {
        const made = button(icon(name), () => this.choose(answer, model, item, event, pair), label, "icon");
        made.dataset.event = event;
        return made;
      });
    this.mark(answer, model, item, pair);
    return pair;
  }

  mark(answer, model, item, pair) {
    const event = markOf(answer, model, item);
    for (const made of pair) made.setAttribute("aria-pressed", String(made.dataset.event === event));
  }

  async choose(answer, model, item, event, pair) {
    const chosen = markOf(answer, model, item) === event ? "withdrawn" : event;
    const words = { accepted: `Saved: You like ${lineOf(item)}.`, rejected: `Saved: ${lineOf(item)} is not for you.`, withdrawn: `Feedback for ${lineOf(item)} removed.` };
    if (!await this.send(answer, model, item, chosen)) return;
    (answer.marks ??= new Map()).set(`${model.list} ${item.item_id}`, chosen);
    this.mark(answer, model, item, pair);
    this.report(words[chosen]);
  }

  async send(answer, model, item, event) {
    const body = JSON.stringify({ answer_id: answer.answer_id, list: model.list, item_id: item.item_id, event });
    try {
      const response = await fetch("feedback", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      if (response.ok) return true;
      const { error } = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
      this.report(`The feedback was not saved: ${error}`);
    } catch (error) {
      this.report("The feedback was not saved: the server does not answer.");
    }
    return false;
  }
}
