// Makes a string safe to show in a terminal. Only pure functions.

/** Control characters, line separators, and characters that change the direction of text. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are the characters to replace
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;

const SHORT: Readonly<Record<string, string>> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/**
 * Returns the text on one line. Characters that move the cursor, change colours or hide text become
 * escape sequences such as `\n` or `\u001b`.
 */
export function printable(text: string): string {
  return text.replace(
    UNSAFE,
    (character) =>
      SHORT[character] ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
