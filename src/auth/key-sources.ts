// Reads key documents from files and from identity providers' URLs. A provider may respond slowly,
// with too much data, or not at all.

import { readFile } from "node:fs/promises";

const MAX_BYTES = 262_144;
const TIMEOUT_MS = 3000;

const decoder = new TextDecoder("utf-8", { fatal: true });

export function fileSource(path: string): () => Promise<string> {
  return async () => {
    const bytes = await readFile(path);
    if (bytes.length > MAX_BYTES) throw tooLarge(path);
    return decoder.decode(bytes);
  };
}

/**
 * Returns a function that reads a URL. The function returns `undefined` if the document has not
 * changed.
 */
export function urlSource(url: string): () => Promise<string | undefined> {
  const { origin, pathname } = new URL(url);
  const name = origin + pathname; // the query may contain a key of the provider's API
  let etag: string | undefined;
  return async () => {
    const response = await fetch(url, {
      headers: {
        accept: "application/json, application/jwk-set+json",
        ...(etag === undefined ? {} : { "if-none-match": etag }),
      },
      redirect: "error", // a redirect could lead to a host that the operator has not named
      signal: AbortSignal.timeout(TIMEOUT_MS), // also limits the time for the body
    });
    if (response.status === 304 && etag !== undefined) {
      await response.body?.cancel();
      return undefined;
    }
    if (response.status !== 200) {
      await response.body?.cancel();
      throw new Error(`${name} responded with ${response.status} instead of 200`);
    }
    const text = await boundedText(response, name);
    etag = response.headers.get("etag") ?? undefined;
    return text;
  };
}

async function boundedText(response: Response, name: string): Promise<string> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const part of response.body ?? []) {
    bytes += part.length;
    if (bytes > MAX_BYTES) throw tooLarge(name); // ends the loop, which cancels the body
    parts.push(part);
  }
  return decoder.decode(Buffer.concat(parts));
}

function tooLarge(source: string): Error {
  return new Error(`${source} has more than ${MAX_BYTES} bytes`);
}
