// A version of `charCodeAt` that stays fast in loops over strings of many kinds. Pure function.

const { charCodeAt } = String.prototype;

/**
 * Returns the UTF-16 unit at index `at`, which must be within the text. V8 uses a different hidden
 * class for parsed, sliced, joined and other kinds of strings. In a loop over more than four of
 * these kinds, V8 would look up `text.charCodeAt` for every character.
 */
export function charCode(text: string, at: number): number {
  return charCodeAt.call(text, at);
}
