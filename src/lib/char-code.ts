// A `charCodeAt` that stays fast in loops over strings of many kinds. Pure function.

const { charCodeAt } = String.prototype;

/**
 * Returns the UTF-16 code unit at index `at`, which must be within the text. If a loop has seen
 * more than four kinds of strings (parsed, sliced, joined), V8 looks up the method in
 * `text.charCodeAt` again for every character. This function avoids the lookup.
 */
export function charCode(text: string, at: number): number {
  return charCodeAt.call(text, at);
}
