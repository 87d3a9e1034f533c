// `charCodeAt` for loops over strings of many origins. Pure.

const { charCodeAt } = String.prototype;

/**
 * The UTF-16 unit of `text` at `at`, an index within it. V8 has a hidden class for each way a
 * string came about (parsed, sliced, joined, a key …); where a loop met more than four it looks the
 * method up for every character, unless the method is named here.
 */
export function charCode(text: string, at: number): number {
  return charCodeAt.call(text, at);
}
