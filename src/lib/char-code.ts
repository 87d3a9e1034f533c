// A version of `charCodeAt` that stays fast in loops over strings of many kinds. Pure function.

const { charCodeAt } = String.prototype;

/**
 * Returns the UTF-16 unit at `at`, which must be within the text. In a loop over more than four
 * kinds of strings (parsed, sliced, joined), V8 looks up `text.charCodeAt` for every character.
 */
export function charCode(text: string, at: number): number {
  return charCodeAt.call(text, at);
}
