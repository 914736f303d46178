// A conversation as a link. It is in the fragment of the address, which browsers do not send to a server.

const MAX_TURNS = 100, MAX_LENGTH = 100_000; // the second: characters of the fragment

// Throws an error if the conversation is too long for a link.
export function linkTo(conversation) {
  const bytes = new TextEncoder().encode(JSON.stringify(conversation));
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const fragment = `#${text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
  conversationIn(fragment);
  return `${location.origin}${location.pathname}${fragment}`;
}

// Throws an error if the fragment of a link is damaged or too long. Its turns are all `opened`: they had an answer.
export function conversationIn(fragment) {
  if (fragment.length > MAX_LENGTH) throw new RangeError("too long");
  const text = atob(fragment.slice(1).replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const { turns, n, deny, allow } = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  const isText = (value) => typeof value === "string" && value.trim() !== "";
  const isTurn = ({ content, choices, listed = {} }) => isText(content) && Object.values(choices).every((is) => typeof is === "boolean")
    && Object.values(listed).every((lines) => lines.every(isText));
  if (!turns.length || turns.length > MAX_TURNS || ![turns.every(isTurn), deny.every(isText), allow.every(isText)].every(Boolean)) throw new TypeError("damaged");
  return { turns: turns.map(({ content, choices, listed }) => ({ content, choices, listed, answer: null, opened: true })), n, deny, allow };
}
