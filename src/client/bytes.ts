// Recognises bytes that an app passes or a socket delivers. They may come from another realm (an
// iframe, the sandbox of a test runner), where `instanceof` does not recognise them.

/**
 * Returns a view of an `ArrayBuffer`, a typed array or a `DataView`. Returns `undefined` for any
 * other value.
 */
export function bytesOf(value: unknown): Uint8Array | undefined {
  if (ArrayBuffer.isView(value))
    return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  const isBuffer = /ArrayBuffer\]$/.test(Object.prototype.toString.call(value));
  return isBuffer ? new Uint8Array(value as ArrayBuffer) : undefined; // its class name was checked
}
