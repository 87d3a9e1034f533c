// Checks of a request's head that uWebSockets.js does not make: ambiguous headers and invalid
// hosts; reads the headers that handlers are given on the way. State: the last head checked, and
// the last valid host. One per listener.

import type { HttpRequest as NativeRequest } from "uWebSockets.js";
import { isIPv4, isIPv6 } from "node:net";

/** The body that a request's head announces. */
export type AnnouncedBody = "none" | "declared" | "large" | "chunked";

/** A refusal does not wait for a declared body above this size. */
const LARGE_BYTES = 65_536;

/** Headers that are checked, at these places. */
const CHECKED = ["host", "content-length", "transfer-encoding"];
const LENGTH = 1;
const CODING = 2;
const NONE = -1;

export class HeadCheck {
  readonly #places = new Map<string, number>();
  readonly #values: string[] = [];
  readonly #counts: number[] = [];
  /** Most requests name the same one. */
  #validHost = "";

  /** `names`: the headers that `value` gives, lower case. */
  constructor(names: Iterable<string>) {
    for (const name of [...CHECKED, ...names])
      if (!this.#places.has(name)) this.#places.set(name, this.#places.size);
    for (const _ of this.#places) {
      this.#values.push("");
      this.#counts.push(0);
    }
  }

  /** One native call for all headers: one for each that is read would cost more. */
  readonly #note = (name: string, value: string): void => {
    const place = this.#places.get(name);
    if (place === undefined) return;
    const count = this.#counts[place] ?? 0;
    if (count === 0) this.#values[place] = value;
    this.#counts[place] = count + 1;
  };

  /**
   * The error message to refuse the request with (400, close); undefined: the head is valid
   * [RFC 9112 3.2, 6.3].
   */
  problem(req: NativeRequest): string | undefined {
    this.#values.fill("");
    this.#counts.fill(0);
    req.forEach(this.#note);
    const [hosts = 0, lengths = 0, codings = 0] = this.#counts;
    const [host = "", length = "", coding = ""] = this.#values;
    if (hosts !== 1) return "There must be exactly one Host header";
    if (!this.#isValidHost(host)) return "The Host header names no valid host";
    if (codings > 0 && lengths > 0)
      return "Content-Length and Transfer-Encoding exclude each other";
    if (codings > 1 || (codings === 1 && !isChunked(coding)))
      return "The only Transfer-Encoding accepted is chunked";
    if (lengths > 1) return "There must be no more than one Content-Length";
    if (lengths === 1 && !/^\d+$/.test(length)) return "Content-Length must be a number";
    return undefined;
  }

  /** Of the last request checked: the first header of the name, "" without one. */
  value(name: string): string {
    return this.#values[this.#places.get(name) ?? NONE] ?? "";
  }

  /** Of the last request checked. */
  get body(): AnnouncedBody {
    if ((this.#counts[CODING] ?? 0) > 0) return "chunked";
    const bytes = this.bodyBytes;
    if (bytes > LARGE_BYTES) return "large";
    return bytes > 0 ? "declared" : "none";
  }

  /** Content-Length of the last request checked; 0 without one. */
  get bodyBytes(): number {
    return Number(this.#values[LENGTH]);
  }

  #isValidHost(host: string): boolean {
    if (host === this.#validHost) return host !== "";
    if (!isHost(host)) return false;
    this.#validHost = host;
    return true;
  }
}

function isChunked(coding: string): boolean {
  return coding.toLowerCase() === "chunked";
}

const BRACKETED = /^\[([0-9A-Fa-f:.]+)\](?::(\d{0,5}))?$/;
const NAMED = /^([A-Za-z0-9._~!$&'()*+,;=%-]+)(?::(\d{0,5}))?$/;

/** Host and port of RFC 3986; a name that ends in a number must be an IPv4 address [WHATWG URL]. */
function isHost(text: string): boolean {
  const bracketed = BRACKETED.exec(text);
  const match = bracketed ?? NAMED.exec(text);
  const name = match?.[1];
  if (name === undefined || Number(match?.[2] ?? 0) > 65_535) return false;
  if (bracketed !== null) return isIPv6(name);
  return isIPv4(name) || !/(^|\.)\d+\.?$/.test(name);
}
