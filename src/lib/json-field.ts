// Finds the text of a field's value in a JSON object, for values that must be kept exactly as they
// were written: `JSON.parse` rounds numbers and drops duplicate keys and white space. The text must
// be valid JSON.

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;
const OPEN_ARRAY = 0x5b;
const CLOSE_ARRAY = 0x5d;
const SPACE = 0x20;

interface FieldText {
  readonly text: string;
  /** Maximum nesting depth, including the values of all duplicate keys. 0 for a scalar. */
  readonly depth: number;
}

/**
 * Returns the text of a field's value, or `undefined` if there is no such field. If the field is
 * repeated, the last value is used.
 */
export function fieldText(text: string, name: string): FieldText | undefined {
  let field: FieldText | undefined;
  let at = skipSpace(text, 0) + 1;
  for (;;) {
    at = skipSpace(text, at);
    if (text.charCodeAt(at) === COMMA) at = skipSpace(text, at + 1);
    if (text.charCodeAt(at) !== QUOTE) return field;
    const keyEnd = endOfString(text, at);
    const key = text.slice(at, keyEnd);
    const start = skipSpace(text, skipSpace(text, keyEnd) + 1);
    const { end, depth } = endOfValue(text, start);
    if (isNamed(key, name)) field = { text: text.slice(start, end), depth };
    at = end;
  }
}

function isNamed(key: string, name: string): boolean {
  return key.includes("\\") ? JSON.parse(key) === name : key.slice(1, -1) === name;
}

function endOfValue(text: string, from: number): { readonly end: number; readonly depth: number } {
  let open = 0;
  let depth = 0;
  for (let at = from; at < text.length; ) {
    const unit = text.charCodeAt(at);
    if (unit === QUOTE) {
      at = endOfString(text, at);
      if (open === 0) return { end: at, depth };
      continue;
    }
    if (unit === OPEN_OBJECT || unit === OPEN_ARRAY) {
      open += 1;
      depth = Math.max(depth, open);
    } else if (unit === CLOSE_OBJECT || unit === CLOSE_ARRAY) {
      if (open === 0) return { end: at, depth }; // a number or a literal has ended
      open -= 1;
      if (open === 0) return { end: at + 1, depth };
    } else if (open === 0 && (unit === COMMA || unit <= SPACE)) return { end: at, depth };
    at += 1;
  }
  return { end: text.length, depth };
}

function endOfString(text: string, from: number): number {
  let at = from + 1;
  while (at < text.length && text.charCodeAt(at) !== QUOTE)
    at += text.charCodeAt(at) === BACKSLASH ? 2 : 1;
  return at + 1;
}

function skipSpace(text: string, from: number): number {
  let at = from;
  while (text.charCodeAt(at) <= SPACE) at += 1;
  return at;
}
