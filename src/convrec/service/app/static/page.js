// The conversation, its answers and the filters.

import { button, byId, element } from "./elements.js";
import { Feedback, lineOf, showLists } from "./lists.js";
import { TitleField } from "./titles.js";
import { Wishes } from "./wishes.js";

const LENGTH = "10"; // items of a list, unless the user changes it
const TOAST = 6000; // milliseconds that a notice about feedback stays
const NO_SERVER = "The server does not answer. Is `convrec app` still running?";
const narrow = matchMedia("(max-width: 60rem)");
const turns = []; // each with the user's content, and the answer where there is one
let editing = null; // index of the turn that is being edited
let asked = null; // aborts the question in progress
let shown = null; // the turn whose answer is shown
let noun = "items";
let feedback = null; // where the server records it

function say(text) {
  byId("status").textContent = text;
}

function toast(text) {
  byId("toast").textContent = text;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { byId("toast").textContent = ""; }, TOAST);
}

function filter(kind, words) {
  return new TitleField(document.querySelector(`form[data-titles=${kind}]`), { ...words, onChange: filtersChanged });
}

const deny = filter("deny", { label: "Never these", placeholder: "Title (Year)", removeLabel: "Allow again:" });
const allow = filter("allow", { label: "Only these", placeholder: "All titles", removeLabel: "Remove" });

const wishes = new Wishes(() => ask());

function filtersChanged(showNext) {
  const num = deny.titles.length + allow.titles.length;
  byId("num-filters").textContent = num ? `(${num})` : "";
  ask(showNext);
}

function messages() {
  return turns.flatMap((turn, index) => [
    { role: "user", content: turn.content },
    // Without titles: the model would copy them, and the next list would leave them out.
    ...(turn.answer && index < turns.length - 1 ? [{ role: "assistant", content: `Here are some ${noun}.` }] : []),
  ]);
}

function showTurns() {
  byId("examples").hidden = turns.length > 0 || !byId("examples").querySelector("button");
  byId("turns").replaceChildren(...turns.flatMap((turn, index) => [
    index === editing ? editedTurn(turn, index) : userTurn(turn, index),
    ...(turn.answer ? [assistantTurn(turn, index)] : []),
  ]));
}

function userTurn(turn, index) {
  const edit = button("Edit", () => {
    editing = index;
    showTurns();
    byId("turns").querySelector("textarea").focus();
  }, `Edit message ${index + 1}`, "quiet");
  const remove = button("Remove", () => {
    turns.splice(index, 1);
    forgetAnswers(index);
    byId("words").focus();
    ask();
  }, `Remove message ${index + 1}`, "quiet");
  return element("li", { class: "turn user" },
    element("div", { class: "bar" }, element("span", { class: "who" }, "You"), element("span", {}, edit, remove)),
    element("p", {}, turn.content));
}

function editedTurn(turn, index) {
  const words = element("textarea", { rows: 3, "aria-label": `Text of message ${index + 1}` });
  words.value = turn.content;
  const stop = () => {
    editing = null;
    showTurns();
    byId("turns").querySelector(`[aria-label="Edit message ${index + 1}"]`).focus();
  };
  const save = () => {
    const content = words.value.trim();
    if (content && content !== turn.content) {
      turn.content = content;
      forgetAnswers(index);
      ask();
    }
    stop();
  };
  words.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
    else if (isSend(event)) { event.preventDefault(); save(); }
  });
  return element("li", { class: "turn user" }, element("span", { class: "who" }, "You"), words,
    button("Save", save), " ", button("Cancel", stop));
}

function assistantTurn(turn, index) {
  const lines = turn.answer.models[0].recommendations.map(lineOf);
  const more = lines.length > 3 ? ` and ${lines.length - 3} more` : "";
  const show = button(turn === shown ? "Shown" : "Show list", () => {
    showAnswer(turn);
    goToAnswer();
  }, `Show the list for message ${index + 1}`, "quiet");
  show.disabled = turn === shown;
  return element("li", { class: "turn assistant" },
    element("div", { class: "bar" }, element("span", { class: "who" }, turn.answer.models[0].name), show),
    element("p", {}, `${lines.slice(0, 3).join(", ")}${more}`));
}

function forgetAnswers(first) {
  editing = null;
  for (const turn of turns.slice(first)) turn.answer = null;
  showTurns();
}

function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function showAnswer(turn) {
  shown = turn;
  const text = showLists(turn.answer, {
    noun,
    feedback: turn.answer.answer_id ? feedback : null,
    never: (answer, model, item) => {
      if (feedback && answer.answer_id) feedback.send(answer, model, item, "hidden");
      // The item that moves up to its place gets the focus.
      const name = `.list:nth-child(${turn.answer.models.indexOf(model) + 1}) .item:nth-child(${item.rank}) [data-never]`;
      deny.add(lineOf(item), () => (byId("lists").querySelector(name) || byId("answer-heading")).focus({ preventScroll: true }));
    },
  });
  wishes.show(turn.answer.models[0].wishes);
  const num = Math.min(...turn.answer.models.map((model) => model.recommendations.length));
  const both = turn.answer.models.length > 1 ? ` ${text}` : "";
  say(num < turn.length ? `Only ${num} ${noun} are left with your filters and wishes.${both}` : text);
  byId("note").hidden = !turn.answer.models.some((model) => model.recommendations.some((item) => item.reasons.length));
  byId("saved").hidden = byId("reply").hidden = false;
  showTurns();
  if (turn === turns.at(-1)) byId("turns").scrollTop = byId("turns").scrollHeight;
}

function clearAnswer() {
  shown = null;
  byId("lists").replaceChildren();
  wishes.show([]);
  for (const name of ["switch", "note", "saved", "reply"]) byId(name).hidden = true;
}

function showError(text) {
  byId("error").replaceChildren(...(text ? [element("p", {}, text), button("Try again", () => ask())] : []));
}

function goToAnswer() {
  if (!narrow.matches) return;
  byId("answer-heading").focus({ preventScroll: true });
  byId("answer").scrollIntoView();
}

function listLength() {
  const length = Number(byId("n").value);
  const most = Number(byId("n").max) || Infinity;
  const isValid = Number.isInteger(length) && length >= 1 && length <= most;
  byId("n-problem").textContent = isValid ? "" : `Enter a whole number from 1${most < Infinity ? ` to ${most}` : ""}.`;
  byId("n").setAttribute("aria-invalid", String(!isValid));
  return isValid ? length : null;
}

async function ask(showNext = () => {}) {
  const turn = turns.at(-1), length = listLength();
  if (length === null) {
    byId("filters").open = true;
    return;
  }
  if (asked) asked.abort();
  asked = null;
  showError("");
  byId("lists").setAttribute("aria-busy", "false");
  if (!turn) {
    clearAnswer();
    say("");
    return;
  }
  const own = asked = new AbortController();
  byId("lists").setAttribute("aria-busy", "true");
  say(`Finding ${noun}…`);
  let problem = "";
  try {
    const question = { messages: messages(), n: length, deny: deny.titles, allow: allow.titles.length ? allow.titles : null, or_fewer: true, wishes: wishes.choices };
    const response = await fetch("api/recommend", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
      signal: own.signal,
    });
    const reply = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
    if (own !== asked) return;
    if (response.ok) Object.assign(turn, { answer: reply, length });
    else problem = `There is no answer: ${reply.error}`;
  } catch (error) {
    problem = NO_SERVER;
  }
  if (own !== asked) return;
  asked = null;
  byId("lists").setAttribute("aria-busy", "false");
  if (!problem) {
    showAnswer(turn);
    showNext();
    return;
  }
  turn.answer = null;
  showTurns();
  clearAnswer();
  say("");
  showError(problem);
}

// The message stays in its field while the number of items is invalid.
function send(content) {
  if (listLength() === null) {
    byId("filters").open = true;
    byId("n").focus();
    return false;
  }
  turns.push({ content, answer: null });
  showTurns();
  if (narrow.matches) byId("filters").open = false;
  goToAnswer();
  ask(goToAnswer);
  return true;
}

byId("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const content = byId("words").value.trim();
  if (!content) {
    byId("words").focus();
    return;
  }
  if (send(content)) byId("words").value = "";
});
byId("words").addEventListener("keydown", (event) => {
  if (isSend(event)) {
    event.preventDefault();
    byId("say").requestSubmit();
  }
});
byId("reset").addEventListener("click", () => {
  turns.length = 0;
  editing = null;
  byId("words").value = "";
  byId("n").value = LENGTH;
  toast("");
  wishes.clear();
  deny.clear();
  allow.clear();
  filtersChanged();
  showTurns();
  byId("words").focus();
});
byId("reply").addEventListener("click", () => byId("words").focus());
byId("n").addEventListener("change", () => ask());
byId("filters").open = !narrow.matches;

const SAVED = {
  answers: "Lists and feedback are saved on the server. Your messages are not saved.",
  conversations: "Lists, feedback and your messages are saved on the server.",
};
fetch("api/models")
  .then((response) => response.json())
  .then(({ models, examples, saved }) => {
    noun = models[0].noun;
    if (saved !== "nothing") feedback = new Feedback(toast);
    byId("saved").textContent = SAVED[saved] || "";
    byId("models").textContent = `${models[0].items.toLocaleString("en")} ${noun} · ${models.map((model) => model.name).join(" and ")}`;
    byId("n").max = Math.max(...models.map((model) => model.items));
    byId("words").placeholder = `What ${noun} would you like? Name some that you loved.`;
    byId("examples").querySelector("ul").replaceChildren(...examples.map((text) => element("li", {}, button(text, () => send(text)))));
    showTurns();
  })
  .catch(() => say(NO_SERVER));
