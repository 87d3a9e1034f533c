// Decodes HTTP header values with non-ASCII characters [RFC 8187]. Plain values do not work,
// because the parser of uWebSockets.js strips such characters from both ends.

const EXTENDED = /^utf-8'[A-Za-z0-9-]*'((?:[A-Za-z0-9!#$&+.^_`|~-]|%[0-9A-Fa-f]{2})*)$/i;

/** Returns the text of a value such as `UTF-8''jos%C3%A9`, or `undefined` if it is not valid. */
export function decodeExtended(value: string): string | undefined {
  const [, encoded] = EXTENDED.exec(value) ?? [];
  if (encoded === undefined) return undefined;
  try {
    return decodeURIComponent(encoded);
  } catch {
    return undefined; // the bytes are not UTF-8
  }
}

/**
 * Returns true if the text is not empty and is printable ASCII without spaces at its ends, so that
 * a plain header carries it unchanged.
 */
export function fitsHeader(text: string): boolean {
  return /^[!-~](?:[ -~]*[!-~])?$/.test(text);
}
