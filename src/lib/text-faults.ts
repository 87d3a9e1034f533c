// Cleans text that an operator wrote, and finds traces of a shell, an env file or an editor:
// quotes, spaces, and invisible characters [decisions: Text from the environment]. Only pure
// functions. A fault is the end of a sentence about the text, and never quotes the text.

const BOM = /^\uFEFF/;
const LINE_ENDS = /[\r\n]+$/;
/** White space of all kinds, and invisible characters. */
const BLANK = String.raw`[\s\p{Cf}]`;
const BLANK_START = new RegExp(`^${BLANK}`, "u");
const BLANK_END = new RegExp(`${BLANK}$`, "u");
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are the characters to find
const CONTROL = /[\u0000-\u001f\u007f]/;
const REPLACEMENT = "\uFFFD";
const QUOTE_PAIRS = ['""', "''", "``", "“”", "‘’"];

/** Removes a byte-order mark and trailing line breaks. */
export function trimFile(text: string): string {
  return text.replace(BOM, "").replace(LINE_ENDS, "");
}

/**
 * Returns a fault if the text contains U+FFFD, which a decoder inserts for bytes that are not
 * UTF-8.
 */
export function encodingFault(text: string): string | undefined {
  return text.includes(REPLACEMENT) ? "is not valid UTF-8. Write it in UTF-8" : undefined;
}

/** Returns the reason for rejecting a text, or `undefined` if the text is accepted. */
export function textFault(text: string): string | undefined {
  const encoding = encodingFault(text);
  if (encoding !== undefined) return encoding;
  const first = BLANK_START.exec(text)?.[0];
  if (first !== undefined) return `begins with ${nameOf(first)}. Remove it`;
  const last = BLANK_END.exec(text)?.[0];
  if (last !== undefined) return `ends with ${nameOf(last)}. Remove it`;
  const control = CONTROL.exec(text)?.[0];
  if (control !== undefined) return `contains ${nameOf(control)}. Remove it`;
  return quotesFault(text);
}

export function quotesFault(text: string): string | undefined {
  const ends = `${text.at(0)}${text.at(-1)}`;
  if (text.length < 2 || !QUOTE_PAIRS.includes(ends)) return undefined;
  return "has quotes around it, which would be part of the value. Remove the quotes";
}

function nameOf(character: string): string {
  if (character === " ") return "a space";
  if (character === "\t") return "a tab";
  if (character === "\n" || character === "\r") return "a line break";
  const code = (character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0");
  return `the invisible character U+${code}`;
}
