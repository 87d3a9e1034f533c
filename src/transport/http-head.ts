// Checks of a request's head that uWebSockets.js does not make: ambiguous headers and invalid
// hosts. State: the head being checked, and the last valid host. One per listener.

import type { HttpRequest as NativeRequest } from "uWebSockets.js";
import { isIPv4, isIPv6 } from "node:net";

/** The body that a request's head announces. */
export type AnnouncedBody = "none" | "declared" | "large" | "chunked";

/** A refusal does not wait for a declared body above this size. */
const LARGE_BYTES = 65_536;

export class HeadCheck {
  #host = "";
  #hosts = 0;
  #lengths = 0;
  #length = "";
  #codings = 0;
  #coding = "";
  /** Most requests name the same one. */
  #validHost = "";

  readonly #note = (name: string, value: string): void => {
    // The length first: it is cheap, and most names differ in it.
    if (name.length === 4 && name === "host") {
      this.#hosts += 1;
      this.#host = value;
    } else if (name.length === 14 && name === "content-length") {
      this.#lengths += 1;
      this.#length = value;
    } else if (name.length === 17 && name === "transfer-encoding") {
      this.#codings += 1;
      this.#coding = value;
    }
  };

  /**
   * The error message to refuse the request with (400, close); undefined: the head is valid
   * [RFC 9112 3.2, 6.3].
   */
  problem(req: NativeRequest): string | undefined {
    this.#hosts = 0;
    this.#lengths = 0;
    this.#codings = 0;
    req.forEach(this.#note);
    if (this.#hosts !== 1) return "There must be exactly one Host header";
    if (!this.#hasValidHost()) return "The Host header names no valid host";
    if (this.#codings > 0 && this.#lengths > 0)
      return "Content-Length and Transfer-Encoding exclude each other";
    if (this.#codings > 1 || (this.#codings === 1 && !isChunked(this.#coding)))
      return "The only Transfer-Encoding accepted is chunked";
    if (this.#lengths > 1)
      return "There must be no more than one Content-Length";
    if (this.#lengths === 1 && !/^\d+$/.test(this.#length))
      return "Content-Length must be a number";
    return undefined;
  }

  /** Of the last request checked. */
  get body(): AnnouncedBody {
    if (this.#codings > 0) return "chunked";
    const bytes = this.bodyBytes;
    if (bytes > LARGE_BYTES) return "large";
    return bytes > 0 ? "declared" : "none";
  }

  /** Content-Length of the last request checked; 0 without one. */
  get bodyBytes(): number {
    return this.#lengths > 0 ? Number(this.#length) : 0;
  }

  #hasValidHost(): boolean {
    if (this.#host === this.#validHost) return this.#host !== "";
    if (!isHost(this.#host)) return false;
    this.#validHost = this.#host;
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
