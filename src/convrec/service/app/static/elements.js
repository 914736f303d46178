// Makes the elements of the page.

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function button(content, action, label, kind = "") {
  const attributes = { type: "button", class: kind, onclick: action };
  return element("button", label ? { ...attributes, "aria-label": label, title: label } : attributes, content);
}

export function icon(name) {
  return byId(name).content.firstElementChild.cloneNode(true);
}
