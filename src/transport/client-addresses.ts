// Finds a client's address behind trusted proxies, from X-Forwarded-For and the PROXY protocol. A
// driver parses the PROXY header of every peer, so the address in the header must never be used
// unless the peer is a trusted proxy.

import { canonicalAddress, NetworkList } from "../lib/network-list.ts";
import { addressText } from "./address.ts";
import type { DriverResponse } from "./driver.ts";
import { type WriteReply, writeReplyAlone, writeReplyAndClose } from "./http-reply.ts";

export const FORWARDED_FOR = "x-forwarded-for";
export const FORWARDED_PROTO = "x-forwarded-proto";

const BRACKETED = /^\[([^\]]*)\](?::\d{1,5})?$/;
const IPV4_PORT = /^([\d.]+):\d{1,5}$/;

export class ClientAddresses {
  readonly #proxies: NetworkList;

  /**
   * `trustedProxies` contains networks in CIDR form and single addresses. Throws if one of them is
   * invalid.
   */
  constructor(trustedProxies: readonly string[]) {
    this.#proxies = new NetworkList(trustedProxies);
  }

  /**
   * Returns the client's address. A request's hops are its peer, the address in the PROXY header,
   * and the addresses in X-Forwarded-For from right to left. The client is the first hop that is
   * not a trusted proxy. If all hops are trusted proxies, or if a proxy reports an invalid address,
   * the client is the last valid hop. `forwardedFor` is `""` if the header is absent.
   */
  of(res: DriverResponse, forwardedFor: string): string {
    const peer = addressText(res.getRemoteAddress());
    if (!this.isProxy(peer)) return peer;
    const proxied = addressText(res.getProxiedRemoteAddress());
    const reported = forwardedFor.split(",").map((entry) => entry.trim());
    return this.#client(peer, [proxied, ...reported.reverse()]);
  }

  /**
   * Returns the address of a connection's client. `proxied` is the address in the connection's
   * PROXY header, or `""` if there is no such address.
   */
  ofConnection(peer: string, proxied: string): string {
    return this.isProxy(peer) ? this.#client(peer, [proxied]) : peer;
  }

  /**
   * Returns true if the peer is a trusted proxy and reports that the request was sent over HTTPS.
   */
  isSecure(res: DriverResponse, forwardedProto: string): boolean {
    return (
      forwardedProto.trim().toLowerCase() === "https" &&
      this.isProxy(addressText(res.getRemoteAddress()))
    );
  }

  isProxy(address: string): boolean {
    return address !== "" && this.#proxies.includes(address);
  }

  #client(peer: string, hops: readonly string[]): string {
    let address = peer;
    for (const text of hops) {
      if (text === "") continue;
      const hop = hopAddress(text);
      if (hop === undefined) break;
      address = hop;
      if (!this.isProxy(address)) break;
    }
    return address;
  }
}

/**
 * Returns true if a PROXY header with an address preceded the request. Another PROXY header may
 * precede the next request.
 */
export function hasProxyHeader(res: DriverResponse): boolean {
  return res.getProxiedRemoteAddress().byteLength > 0;
}

/**
 * Returns the function that writes a request's refusal and closes the connection. If a proxy is
 * trusted and a PROXY header was sent, this is `writeReplyAlone`, so that a request in the same
 * chunk is not served.
 */
export function refusalWriter(
  res: DriverResponse,
  addresses: ClientAddresses | undefined,
): WriteReply {
  return addresses !== undefined && hasProxyHeader(res) ? writeReplyAlone : writeReplyAndClose;
}

function hopAddress(text: string): string | undefined {
  return canonicalAddress(BRACKETED.exec(text)?.[1] ?? IPV4_PORT.exec(text)?.[1] ?? text);
}
