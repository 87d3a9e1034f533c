// Head of a request that Node.js parsed, in the form that the transport reads.

import type { IncomingMessage } from "node:http";
import type { DriverRequest } from "../driver.ts";

/** Matches a request target in absolute form, as clients send it to a proxy [RFC 9112 3.2.2]. */
const ABSOLUTE = /^https?:\/\/([^/?]*)(.*)$/i;

export class PortableRequest implements DriverRequest {
  readonly #message: IncomingMessage;
  readonly #path: string;
  readonly #query: string;
  /**
   * Host in the target, which replaces the Host header, or `undefined` if the target has no host.
   */
  readonly #authority: string | undefined;
  params: readonly string[] = [];

  constructor(message: IncomingMessage) {
    this.#message = message;
    const { url = "/" } = message;
    const absolute = url.startsWith("/") ? null : ABSOLUTE.exec(url);
    this.#authority = absolute?.[1];
    const target = absolute === null ? url : (absolute[2] ?? "");
    const at = target.indexOf("?");
    const path = at < 0 ? target : target.slice(0, at);
    this.#path = path === "" ? "/" : path;
    this.#query = at < 0 ? "" : target.slice(at + 1);
  }

  getUrl(): string {
    return this.#path;
  }

  getQuery(): string {
    return this.#query;
  }

  getCaseSensitiveMethod(): string {
    return this.#message.method ?? "";
  }

  getParameter(index: number): string | undefined {
    return this.params[index];
  }

  forEach(record: (name: string, value: string) => void): void {
    const { rawHeaders } = this.#message;
    let hasHost = false;
    for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
      const name = (rawHeaders[at] ?? "").toLowerCase();
      const value = rawHeaders[at + 1] ?? "";
      if (name === "host") hasHost = true;
      record(name, name === "host" ? (this.#authority ?? value) : value);
    }
    if (!hasHost && this.#authority !== undefined) record("host", this.#authority);
  }

  isHttp10(): boolean {
    return this.#message.httpVersionMajor === 1 && this.#message.httpVersionMinor === 0;
  }
}
