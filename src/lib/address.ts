// Parses and formats addresses: `host:port`, `[ipv6]:port`, `:port`, and the hosts of URLs. Pure
// functions. Host names are not resolved.

import { isIP, isIPv4 } from "node:net";
import { canonicalAddress } from "./network-list.ts";

export interface Address {
  /** A host name or an IP address. An IPv6 address has no brackets. */
  readonly host: string;
  /** Port. 0 lets the operating system choose a port. */
  readonly port: number;
}

const WITH_BRACKETS = /^\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]:(\d{1,5})$/;
const PLAIN = /^([A-Za-z0-9._-]*):(\d{1,5})$/;

/**
 * Parses an address. Returns `undefined` if the text is not an address. `:5200` means port 5200 of
 * all IPv4 addresses.
 */
export function parseAddress(text: string): Address | undefined {
  const match = WITH_BRACKETS.exec(text) ?? PLAIN.exec(text);
  if (match === null) return undefined;
  const port = Number(match[2]);
  if (port > 65_535) return undefined;
  return { host: match[1] || "0.0.0.0", port };
}

export function formatAddress({ host, port }: Address): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** Returns the host of a URL. An IPv6 address is returned without brackets. */
export function hostOf({ hostname }: { readonly hostname: string }): string {
  return hostname.replace(/^\[(.*)\]$/, "$1");
}

/** Returns true for an IP address, false for a host name. */
export function isAddress(host: string): boolean {
  return isIP(host) !== 0;
}

export function isLoopback(host: string): boolean {
  const name = canonicalHost(host);
  return name === "localhost" || name === "::1" || (isIPv4(name) && name.startsWith("127."));
}

/** Returns true if other machines can reach one of these addresses. Empty addresses are ignored. */
export function listensBeyondLoopback(listens: readonly string[]): boolean {
  return listens.some((text) => text !== "" && !isLoopback(parseAddress(text)?.host ?? ""));
}

/**
 * Returns true if two listeners would use the same address and port. Port 0 never equals port 0,
 * because the operating system chooses a different port for each listener.
 */
export function sameAddress(a: Address, b: Address): boolean {
  return a.port === b.port && a.port !== 0 && canonicalHost(a.host) === canonicalHost(b.host);
}

function canonicalHost(host: string): string {
  return canonicalAddress(host) ?? host.toLowerCase();
}
