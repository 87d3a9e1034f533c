// Decides which addresses webhooks may be sent to, so that a caller of the HTTP API cannot reach
// hosts in the node's internal network (SSRF). Keeps no state.

import { lookup } from "node:dns/promises";
import { hostOf, isAddress } from "../lib/address.ts";
import { canonicalAddress, NetworkList } from "../lib/network-list.ts";

/** Multicast addresses, and link-local addresses, where clouds serve instance metadata. */
const NEVER = new NetworkList(["169.254.0.0/16", "224.0.0.0/4", "fe80::/10", "ff00::/8"]);

/**
 * Networks that cannot be reached from the Internet, or whose addresses stand for other addresses
 * (such as NAT64).
 */
const INTERNAL = new NetworkList([
  "0.0.0.0/8",
  "10.0.0.0/8",
  "100.64.0.0/10",
  "127.0.0.0/8",
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.0.2.0/24",
  "192.88.99.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
  "198.51.100.0/24",
  "203.0.113.0/24",
  "240.0.0.0/4",
  "::/96",
  "64:ff9b::/96",
  "64:ff9b:1::/48",
  "100::/64",
  "2001::/32",
  "2001:db8::/32",
  "2002::/16",
  "fc00::/7",
  "fec0::/10",
]);

export const LOOPBACK_NETWORKS: readonly string[] = ["127.0.0.0/8", "::1"];

/** Returns the addresses of a host name. Rejects if the name has no address. */
export const resolveHost = async (host: string): Promise<readonly string[]> => {
  const addresses = await lookup(host, { all: true });
  return addresses.map(({ address }) => address);
};

/** Rules about the addresses to which an endpoint's requests may be sent. */
export class AddressRules {
  readonly #allowed: NetworkList;
  readonly #allowsAll: boolean;

  /**
   * `allowed` lists the internal networks that may be reached, with or without TLS. `"all"` allows
   * all addresses except link-local and multicast addresses.
   */
  constructor(allowed: readonly string[] | "all") {
    this.#allowsAll = allowed === "all";
    this.#allowed = new NetworkList(allowed === "all" ? [] : allowed);
  }

  /**
   * Returns the reason why a request to an IP address is refused, or `undefined` if it is allowed.
   */
  refusal(text: string, isEncrypted: boolean): string | undefined {
    const address = canonicalAddress(text);
    if (address === undefined) return `${text} is not an IP address`;
    if (NEVER.includes(address))
      return `${address} is a link-local or multicast address, to which webhooks are never sent`;
    if (this.#allowsAll || this.#allowed.includes(address)) return undefined;
    if (INTERNAL.includes(address))
      return `${address} is an internal address. Add its network to webhooks.allowNetworks if webhooks may reach it`;
    if (!isEncrypted)
      return `${address} must be reached over https. Add its network to webhooks.allowNetworks if http is safe there`;
    return undefined;
  }

  /**
   * Returns the reason why the URL is refused, or `undefined` if all addresses of its host are
   * allowed.
   */
  async urlRefusal(text: string, resolve: typeof resolveHost): Promise<string | undefined> {
    const url = parseUrl(text);
    if (typeof url === "string") return url;
    const host = hostOf(url);
    const isEncrypted = url.protocol === "https:";
    if (isAddress(host)) return this.refusal(host, isEncrypted);
    try {
      const addresses = await resolve(host);
      return addresses.map((address) => this.refusal(address, isEncrypted)).find(Boolean);
    } catch {
      return `The host name ${host} cannot be resolved. Check the URL and this node's DNS`;
    }
  }
}

/** Returns the parsed URL, or the reason why it cannot be the URL of an endpoint. */
export function parseUrl(text: string): URL | string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined) return "The URL is not valid. Send an absolute URL, such as https://…";
  if (url.protocol !== "https:" && url.protocol !== "http:")
    return "The URL must begin with https:// or http://";
  if (url.username !== "" || url.password !== "")
    return "The URL must not contain a user name or a password. Instead, verify the signatures of requests";
  if (url.port === "0") return "The URL must not have port 0";
  if (url.hash !== "") return "The URL must not contain a fragment (#)";
  return url;
}
