// The wishes that were read from the conversation, as buttons that switch each on and off.

import { button, byId, element } from "./elements.js";

const IS_ON = { kept: true, preferred: true };
const TOLD = { named: "Like", dropped: "Dropped, because too few are left", unweighted: "Understood, but without weight in this model", unknown: "Not understood" };
const NOTES = { preferred: "preferred" };

export class Wishes {
  constructor(onChange) {
    this.onChange = onChange;
    this.choices = {}; // text of a wish -> whether it is kept, whatever was read
  }

  show(wishes) {
    const told = (state) => wishes.filter((wish) => wish.state === state).map((wish) => wish.text).join(" · ");
    const chips = wishes.filter((wish) => !TOLD[wish.state]).map((wish) => {
      const isOn = Boolean(IS_ON[wish.state]);
      const note = NOTES[wish.state] ? ` (${NOTES[wish.state]})` : "";
      const made = button(`${wish.text}${note} ${isOn ? "✕" : "+"}`, () => {
        if (wish.text in this.choices) delete this.choices[wish.text]; // as it was read
        else this.choices[wish.text] = !isOn;
        this.onChange();
      }, `${isOn ? "Do not keep" : "Keep"}: ${wish.text}`);
      made.setAttribute("aria-pressed", String(isOn));
      return element("li", {}, made);
    });
    byId("wishes").hidden = !wishes.length;
    byId("wishes").replaceChildren(
      ...(chips.length ? [element("span", {}, "I understood:"), element("ul", { class: "chips", "aria-label": "Wishes" }, ...chips)] : []),
      ...Object.keys(TOLD).filter(told).map((state) => element("p", { class: "hint" }, `${TOLD[state]}: ${told(state)}`)));
  }

  clear() {
    this.choices = {};
    this.show([]);
  }
}
