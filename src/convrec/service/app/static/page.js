// The conversation, its answers and the filters.

import { button, byId, element } from "./elements.js";
import { Feedback, lineOf, markOf, showLists } from "./lists.js";
import { conversationIn, linkTo } from "./share.js";
import { TitleField } from "./titles.js";
import { Wishes } from "./wishes.js";

const LENGTH = "10"; // items of a list, unless the user changes it
const TOAST = 6000; // milliseconds that a notice about feedback stays
const NO_SERVER = "The server does not answer. Is `convrec app` still running?";
const narrow = matchMedia("(max-width: 60rem)");
const turns = []; // each with the user's content, the wishes switched after it, the answer where there is one, whether it was `opened` from a link, and what was `listed` there
const start = { choices: {} }; // in place of a turn, before the first message
let editing = null; // index of the turn that is being edited
let asked = null; // aborts the question in progress
let shown = null; // the turn whose answer is shown
let noun = "items", total = 0; // what the catalog has
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

const wishes = new Wishes((wish, isOn) => {
  if (wish.is_chosen) for (const turn of turns) delete turn.choices[wish.text]; // it is again as it was read
  else turns.at(-1).choices[wish.text] = !isOn;
  ask();
});

function filtersChanged(showNext) {
  showNumFilters();
  ask(showNext);
}

function showNumFilters() {
  const num = deny.titles.length + allow.titles.length;
  byId("num-filters").textContent = num ? `(${num})` : "";
}

function messages(last) {
  if (last === start) return [{ role: "user", content: `Some ${noun}, please` }];
  return turns.slice(0, turns.indexOf(last) + 1).flatMap((turn) => [
    { role: "user", content: turn.content },
    // Its words are without titles: the model would copy them, and the next list would leave them out.
    ...((turn.answer || turn.opened) && turn !== last ? [{ role: "assistant", content: `Here are some ${noun}.`, ...shownIn(turn) }] : []),
  ]);
}

// The list of a turn, to which the next message may refer, and what the user thinks of its items.
function shownIn({ answer, listed }) {
  if (!answer) return listed || {};
  const rows = answer.models.flatMap((model) => model.recommendations.map((item) => [lineOf(item), markOf(answer, model, item)]));
  const marked = (event) => [...new Set(rows.filter(([, mark]) => mark === event).map(([line]) => line))];
  return { items: answer.models[0].recommendations.map(lineOf), liked: marked("accepted"), disliked: marked("rejected") };
}

function showTurns() {
  byId("examples").hidden = turns.length > 0;
  byId("share").hidden = byId("reset").hidden = !turns.length;
  byId("turns").replaceChildren(...turns.flatMap((turn, index) => [
    index === editing ? editedTurn(turn, index) : userTurn(turn, index),
    ...(turn.answer || turn.opened ? [assistantTurn(turn, index)] : []),
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
      Object.assign(turn, { content, choices: {} });
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

// The list of an opened link's message is asked when it is to be shown.
function assistantTurn(turn, index) {
  const [first] = turn.answer ? turn.answer.models : [];
  const lines = first ? first.recommendations.map(lineOf) : [];
  const more = lines.length > 3 ? ` and ${lines.length - 3} more` : "";
  const show = button(turn === shown ? "Shown" : "Show list", () => {
    if (!first) return ask(goToAnswer, turn);
    showAnswer(turn);
    goToAnswer();
  }, `Show the list for message ${index + 1}`, "quiet");
  show.disabled = turn === shown;
  return element("li", { class: "turn assistant" },
    element("div", { class: "bar" }, element("span", { class: "who" }, first ? first.name : "List"), show),
    ...(first ? [element("p", {}, lines.length ? `${lines.slice(0, 3).join(", ")}${more}` : `No ${noun}`)] : []));
}

function forgetAnswers(first) {
  editing = null;
  for (const turn of turns.slice(first)) Object.assign(turn, { answer: null, opened: false, listed: null });
  showTurns();
}

function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function showAnswer(turn) {
  shown = turn;
  const all = `${total} ${noun}`;
  const text = showLists(turn.answer, {
    all,
    feedback: turn.answer.answer_id ? feedback : null,
    never: (answer, model, item) => {
      if (feedback && answer.answer_id) feedback.send(answer, model, item, "hidden");
      // The item that moves up to its place gets the focus.
      const name = `.list:nth-child(${turn.answer.models.indexOf(model) + 1}) .item:nth-child(${item.rank}) [data-never]`;
      deny.add(lineOf(item), () => (byId("lists").querySelector(name) || byId("answer-heading")).focus({ preventScroll: true }));
    },
  });
  const isLast = turn === (turns.at(-1) || start);
  wishes.show(turn.answer.models, isLast ? null : turns.indexOf(turn) + 1);
  const [shortest] = [...turn.answer.models].sort((one, other) => one.recommendations.length - other.recommendations.length);
  const num = shortest.recommendations.length, both = turn.answer.models.length > 1 ? ` ${text}` : "";
  const when = turn === start ? "Before your first message: " : "";
  const isShort = num < turn.length;
  say(isShort ? `${num ? `Only ${num}` : "None"} of ${all} ${num > 1 ? "fit" : "fits"}.${both}` : when + text);
  showDrops(isShort && isLast ? shortest.drops : []);
  byId("note").hidden = !turn.answer.models.some((model) => model.recommendations.some((item) => item.reasons.length));
  byId("saved").hidden = byId("reply").hidden = false;
  showTurns();
  if (isLast) byId("turns").scrollTop = byId("turns").scrollHeight;
}

// Buttons that drop a wish or a filter, where too few items are left.
function showDrops(drops) {
  const acts = {
    wish: ({ text }) => [`“${text}”`, () => { turns.at(-1).choices[text] = false; }],
    deny: () => ["“Never these”", () => deny.set([])],
    allow: () => ["“Only these”", () => allow.set([])],
  };
  byId("drops").replaceChildren(...drops.map((drop) => {
    const [name, act] = acts[drop.kind](drop);
    return button(`Drop ${name} to see ${drop.items}`, () => {
      act();
      byId("answer-heading").focus({ preventScroll: true });
      filtersChanged();
    });
  }));
}

function clearAnswer() {
  shown = null;
  byId("lists").replaceChildren();
  wishes.show([]);
  showDrops([]);
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

// Asks for the list of the last message, or of one of an opened link.
async function ask(showNext = () => {}, opened = null) {
  const turn = opened || turns.at(-1) || start, length = listLength();
  if (length === null) {
    byId("filters").open = true;
    return;
  }
  if (asked) asked.abort();
  asked = null;
  if (!opened) leaveLink();
  showError("");
  const own = asked = new AbortController();
  byId("lists").setAttribute("aria-busy", "true");
  say(`Finding ${noun}…`);
  let problem = "";
  try {
    const question = {
      messages: messages(turn), choices: turns.map(({ choices }) => choices),
      n: length, deny: deny.titles, allow: allow.titles.length ? allow.titles : null, or_fewer: true,
      is_start: turn === start,
    };
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

async function share() {
  let link;
  try {
    link = linkTo({ turns: turns.map((turn) => ({ content: turn.content, choices: turn.choices, listed: shownIn(turn) })), n: byId("n").value, deny: deny.titles, allow: allow.titles });
  } catch (error) {
    toast("This conversation is too long for a link.");
    return;
  }
  try {
    await navigator.clipboard.writeText(link);
    toast("Link copied. It contains your messages: whoever has it can read them.");
  } catch (error) { // browsers allow it only over HTTPS and on this machine
    history.replaceState(null, "", link);
    toast("Copy the address of this page. It contains your messages: whoever has it can read them.");
  }
}

// The address has the conversation of a link until it changes.
function leaveLink() {
  byId("opened").hidden = true;
  history.replaceState(null, "", location.pathname);
}

// Opens the conversation of a link, and asks for the list of its last message anew.
function openShared() {
  if (location.hash.length < 2) return ask();
  let opened;
  try {
    opened = conversationIn(location.hash);
  } catch (error) {
    say("This link is damaged. Ask for a new one.");
    return;
  }
  turns.splice(0, turns.length, ...opened.turns);
  byId("n").value = opened.n;
  deny.set(opened.deny);
  allow.set(opened.allow);
  editing = null;
  clearAnswer();
  showTurns();
  showNumFilters();
  byId("opened").hidden = false;
  return ask(undefined, turns.at(-1));
}

// The message stays in its field while the number of items is invalid.
function send(content) {
  if (listLength() === null) {
    byId("filters").open = true;
    byId("n").focus();
    toast("Your message was not sent: correct “How many” first.");
    return false;
  }
  toast("");
  const answered = wishes.answer(content);
  if (answered) Object.assign(turns.at(-1).choices, answered);
  else turns.push({ content, choices: {}, answer: null });
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
  deny.set([]);
  allow.set([]);
  filtersChanged();
  showTurns();
  byId("words").focus();
});
byId("share").addEventListener("click", share);
addEventListener("hashchange", openShared);
byId("reply").addEventListener("click", () => byId("words").focus());
byId("n").addEventListener("change", () => ask());
byId("filters").open = !narrow.matches;

const SAVED = {
  answers: "Lists and feedback are saved on the server. Your messages are not saved.",
  conversations: "Lists, feedback and your messages are saved on the server.",
};
fetch("api/models")
  .then((response) => response.json())
  .then(({ models, examples, reads, saved }) => {
    noun = models[0].noun;
    total = models[0].items;
    if (saved !== "nothing") feedback = new Feedback(toast);
    byId("saved").textContent = SAVED[saved] || "";
    byId("models").textContent = `${total.toLocaleString("en")} ${noun} · ${models.map((model) => model.name).join(" and ")}`;
    byId("n").max = Math.max(...models.map((model) => model.items));
    byId("words").placeholder = `What ${noun} would you like? Name some that you loved.`;
    byId("examples").querySelector("ul").replaceChildren(...examples.map((text) => element("li", {}, button(text, () => send(text)))));
    byId("reads").textContent = reads;
    showTurns();
    return openShared();
  })
  .catch(() => say(NO_SERVER));
