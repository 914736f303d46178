// A field for titles of the catalog: suggests while the user types, and refuses what the catalog does not have.
// The pattern is WAI-ARIA's editable combobox with a listbox.

import { button, element } from "./elements.js";

const PAUSE = 120; // milliseconds without a key before suggestions are fetched

export async function findTitles(text) {
  const response = await fetch(`api/titles?text=${encodeURIComponent(text)}`);
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return response.json();
}

export class TitleField {
  constructor(form, { label, placeholder, removeLabel, onChange }) {
    const kind = form.dataset.titles;
    this.titles = [];
    this.options = [];
    this.active = -1;
    this.removeLabel = removeLabel;
    this.onChange = onChange;
    this.input = element("input", {
      id: kind, placeholder, autocomplete: "off", role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false",
      "aria-controls": `${kind}-options`, "aria-describedby": `${kind}-problem`,
      oninput: () => this.typed(), onkeydown: (event) => this.pressed(event), onblur: () => this.close(),
    });
    this.list = element("ul", { id: `${kind}-options`, role: "listbox", "aria-label": `Titles for ${label}`, hidden: "" });
    this.problem = element("div", { id: `${kind}-problem`, class: "problem", role: "alert" });
    this.chips = element("ul", { class: "chips", "aria-label": `Chosen titles: ${label}` });
    form.append(element("label", { for: kind }, label),
      element("div", { class: "bar" }, element("div", { class: "combobox" }, this.input, this.list), element("button", {}, "Add")),
      this.problem, this.chips);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.check();
    });
  }

  add(title, showNext) {
    this.input.value = "";
    this.refuse();
    this.close();
    if (this.titles.includes(title)) return;
    this.titles.push(title);
    this.show();
    this.onChange(showNext);
  }

  set(titles) {
    this.input.value = "";
    this.titles = titles;
    this.refuse();
    this.close();
    this.show();
  }

  show() {
    this.chips.replaceChildren(...this.titles.map((title) => element("li", {}, button(`${title} ✕`, () => {
      this.titles = this.titles.filter((other) => other !== title);
      this.show();
      this.input.focus();
      this.onChange();
    }, `${this.removeLabel} ${title}`))));
  }

  refuse(reason = "", suggestions = []) {
    this.input.toggleAttribute("aria-invalid", Boolean(reason));
    if (reason) this.input.setAttribute("aria-invalid", "true");
    this.problem.replaceChildren(reason, ...suggestions.map((title) => button(`Use ${title}`, () => {
      this.add(title);
      this.input.focus();
    })));
  }

  async check() {
    const text = this.input.value.trim();
    clearTimeout(this.timer);
    this.close();
    if (!text) return;
    try {
      const found = await findTitles(text);
      if (text !== this.input.value.trim()) return;
      if (found.is_known) this.add(text);
      else this.refuse(`“${text}” is not in the catalog. `, found.suggestions.slice(0, 3));
    } catch (error) {
      this.refuse("The title cannot be checked: the server does not answer. ");
    }
  }

  typed() {
    this.refuse();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.suggest(), PAUSE);
  }

  async suggest() {
    const text = this.input.value.trim();
    const found = text ? await findTitles(text).catch(() => null) : null;
    if (text !== this.input.value.trim() || document.activeElement !== this.input) return;
    this.close();
    this.options = (found ? found.suggestions : []).filter((title) => !this.titles.includes(title));
    this.list.replaceChildren(...this.options.map((title, index) => element("li", {
      role: "option", id: `${this.list.id}-${index}`, "aria-selected": "false",
      onmousedown: (event) => event.preventDefault(), // the input keeps the focus
      onclick: () => this.add(title),
    }, title)));
    this.list.hidden = !this.options.length;
    this.input.setAttribute("aria-expanded", String(this.options.length > 0));
  }

  close() {
    this.active = -1;
    this.options = [];
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  pressed(event) {
    if (event.key === "Escape" && this.options.length) this.close();
    else if (event.key === "Enter" && this.active >= 0) this.add(this.options[this.active]);
    else if (["ArrowDown", "ArrowUp"].includes(event.key) && this.options.length) this.move(event.key === "ArrowDown" ? 1 : -1);
    else return;
    event.preventDefault();
  }

  move(step) {
    const num = this.options.length;
    this.active = this.active < 0 && step < 0 ? num - 1 : (this.active + step + num) % num;
    [...this.list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === this.active)));
    this.input.setAttribute("aria-activedescendant", `${this.list.id}-${this.active}`);
    this.list.children[this.active].scrollIntoView({ block: "nearest" });
  }
}
