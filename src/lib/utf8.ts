// Encodes and decodes UTF-8. The platform's encoder and decoder are created on first use.
// JavaScript engines without them (React Native, WeChat, Jest with jsdom) use `encodeURIComponent`
// and `decodeURIComponent`, which are slower. Also runs in browsers.

let encoder: InstanceType<typeof TextEncoder> | undefined;
let decoder: InstanceType<typeof TextDecoder> | undefined;

const LONE_SURROGATES = /\p{Surrogate}/gu;
const CHUNK_BYTES = 8192;

/** Returns the bytes of a string. A lone surrogate becomes U+FFFD. */
export function encodeUtf8(text: string): Uint8Array {
  if (typeof TextEncoder !== "undefined") {
    encoder ??= new TextEncoder();
    return encoder.encode(text);
  }
  const binary = unescape(encodeURIComponent(text.replace(LONE_SURROGATES, "\ufffd")));
  return Uint8Array.from(binary, (unit) => unit.charCodeAt(0));
}

/**
 * Returns the text of the bytes. U+FEFF is an ordinary character. Throws if the bytes are not valid
 * UTF-8.
 */
export function decodeUtf8(bytes: Uint8Array): string {
  if (typeof TextDecoder !== "undefined") {
    decoder ??= new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    return decoder.decode(bytes);
  }
  let binary = "";
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES)
    binary += String.fromCharCode(...bytes.subarray(at, at + CHUNK_BYTES));
  return decodeURIComponent(escape(binary));
}

/**
 * Writes a string at the beginning of `target`. If there is not enough room, `read` is less than
 * the length of the string.
 */
export function encodeUtf8Into(
  text: string,
  target: Uint8Array,
): { readonly read: number; readonly written: number } {
  if (typeof TextEncoder !== "undefined") {
    encoder ??= new TextEncoder();
    return encoder.encodeInto(text, target);
  }
  const bytes = encodeUtf8(text);
  if (bytes.length > target.length) return { read: 0, written: 0 };
  target.set(bytes);
  return { read: text.length, written: bytes.length };
}
