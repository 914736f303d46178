"use strict";

const byId = (id) => document.getElementById(id);
const turns = [];
const titles = { deny: [], allow: [] };
let editing = null; // index of the turn that is being edited
let asked = null; // aborts the question in progress

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function button(text, action, label, kind = "quiet") {
  const attributes = { type: "button", class: kind, onclick: action };
  return element("button", label ? { ...attributes, "aria-label": label } : attributes, text);
}

function show(text) {
  byId("error").textContent = text;
  byId("error").hidden = !text;
}

function showTurns() {
  byId("turns").replaceChildren(...turns.map((turn, index) => {
    const name = `turn ${index + 1}`;
    const who = element("span", { class: "who" }, turn.role);
    if (index === editing) {
      const words = element("textarea", { rows: 3, "aria-label": `Words of ${name}` });
      words.value = turn.content;
      const save = () => {
        if (words.value.trim()) turn.content = words.value.trim();
        stopEditing(index);
        ask();
      };
      words.addEventListener("keydown", (event) => {
        if (event.key === "Escape") stopEditing(index);
        else if (isSend(event)) { event.preventDefault(); save(); }
      });
      return element("li", { class: `turn ${turn.role}` }, who, words,
        button("Save", save, null, ""), " ", button("Cancel", () => stopEditing(index)));
    }
    const edit = button("edit", () => {
      editing = index;
      showTurns();
      byId("turns").querySelector("textarea").focus();
    }, `Edit ${name}`);
    const remove = button("remove", () => {
      turns.splice(index, 1);
      editing = null;
      showTurns();
      byId("words").focus();
      ask();
    }, `Remove ${name}`);
    return element("li", { class: `turn ${turn.role}` },
      element("div", { class: "bar" }, who, element("span", {}, edit, remove)), element("p", {}, turn.content));
  }));
}

function stopEditing(index) {
  editing = null;
  showTurns();
  byId("turns").children[index].querySelector("button").focus();
}

function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function showTitles(kind) {
  const form = document.querySelector(`form[data-titles=${kind}]`);
  form.querySelector(".chips").replaceChildren(...titles[kind].map((title) => element("li", {},
    button(`${title} ✕`, () => {
      titles[kind] = titles[kind].filter((other) => other !== title);
      showTitles(kind);
      form.querySelector("input").focus();
      ask();
    }, kind === "deny" ? `Stop denying ${title}` : `Remove ${title} from the allowed titles`, ""))));
}

function addTitle(kind, title) {
  if (title && !titles[kind].includes(title)) titles[kind].push(title);
  showTitles(kind);
  ask();
}

const lineOf = (item) => (item.year === null ? item.title : `${item.title} (${item.year})`);

function showLists(models) {
  const counts = new Map();
  for (const model of models) {
    for (const item of model.recommendations) counts.set(lineOf(item), (counts.get(lineOf(item)) || 0) + 1);
  }
  byId("lists").replaceChildren(...models.map((model, index) => element("section", { class: "list", "aria-labelledby": `model-${index}` },
    element("h3", { id: `model-${index}` }, model.name),
    element("table", {},
      element("caption", { class: "unseen" }, `Ranked list of ${model.name}`),
      element("thead", {}, element("tr", {},
        element("th", { scope: "col", class: "number" }, element("span", { class: "unseen" }, "Rank"), "#"),
        element("th", { scope: "col" }, "Item"), element("th", { scope: "col", class: "number" }, "Score"),
        element("th", { scope: "col" }, element("span", { class: "unseen" }, "Deny")))),
      element("tbody", {}, ...model.recommendations.map((item) => element("tr", { class: counts.get(lineOf(item)) > 1 ? "both" : "" },
        element("td", { class: "rank" }, String(item.rank)), element("td", { class: "item" }, lineOf(item)),
        element("td", { class: "score" }, item.score.toFixed(2).replace("-", "−")),
        element("td", {}, button("never", () => addTitle("deny", lineOf(item)), `Never ${lineOf(item)}`)))))))));
}

function setBusy(busy) {
  byId("lists").setAttribute("aria-busy", String(busy));
  byId("status").textContent = busy ? "Asking…" : "";
}

function refuse(reason) {
  byId("lists").replaceChildren();
  show(reason);
}

async function ask() {
  if (asked) asked.abort();
  asked = null;
  show("");
  if (!turns.length) {
    byId("lists").replaceChildren();
    setBusy(false);
    return;
  }
  const length = Number(byId("n").value);
  if (!Number.isInteger(length) || length < 1) {
    setBusy(false);
    refuse("Items: give a whole number from 1.");
    return;
  }
  const own = asked = new AbortController();
  setBusy(true);
  try {
    const question = { messages: turns, n: length, deny: titles.deny, allow: titles.allow.length ? titles.allow : null };
    const response = await fetch("api/recommend", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
      signal: own.signal,
    });
    const reply = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
    if (own !== asked) return;
    if (response.ok) showLists(reply.models);
    else refuse(reply.error || `the server answered ${response.status}`);
  } catch (error) {
    if (own === asked) refuse("The server does not answer. Is `convrec app` still running?");
  } finally {
    if (own === asked) setBusy(false);
  }
}

byId("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const content = byId("words").value.trim();
  if (!content) {
    byId("words").focus();
    return;
  }
  turns.push({ role: byId("role").value, content });
  byId("words").value = "";
  byId("role").value = "user";
  showTurns();
  ask();
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
  showTurns();
  ask();
  byId("words").focus();
});
byId("n").addEventListener("change", ask);
for (const form of document.querySelectorAll("form[data-titles]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = form.querySelector("input");
    const title = field.value.trim();
    field.value = "";
    if (title) addTitle(form.dataset.titles, title);
  });
}
fetch("api/models")
  .then((response) => response.json())
  .then(({ models }) => {
    byId("status").textContent = models.map((model) => `${model.name}: ${model.items} items`).join(" · ");
    byId("words").placeholder = `What ${models[0].noun} would you like? Name some that you loved…`;
  })
  .catch(() => show("The server does not answer. Is `convrec app` still running?"));
