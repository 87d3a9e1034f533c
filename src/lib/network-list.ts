// A list of IP networks, with functions that parse networks and addresses. State: the networks,
// which never change.

import { BlockList, isIPv4, isIPv6, SocketAddress } from "node:net";

/** An IP network. A single address is a network with the longest possible prefix. */
interface Network {
  readonly address: string;
  readonly prefix: number;
  readonly family: "ipv4" | "ipv6";
}

const MAPPED = "::ffff:";

/**
 * Parses a network in CIDR form (`10.0.0.0/8`, `fd00::/8`) or a single address. IPv4-mapped
 * addresses are not accepted, because they would never match a canonical address.
 */
export function parseNetwork(text: string): Network | undefined {
  const [, address = "", digits] = /^([^/%]+)(?:\/(\d{1,3}))?$/.exec(text) ?? [];
  const canonical = canonicalAddress(address);
  if (canonical === undefined || (isIPv4(canonical) && !isIPv4(address))) return undefined;
  const family = isIPv4(address) ? "ipv4" : "ipv6";
  const bits = family === "ipv4" ? 32 : 128;
  const prefix = digits === undefined ? bits : Number(digits);
  return prefix <= bits ? { address, prefix, family } : undefined;
}

/**
 * Returns an address in the form of RFC 5952, without a zone. An IPv4-mapped address is returned as
 * IPv4. Returns `undefined` if the text is not an address.
 */
export function canonicalAddress(text: string): string | undefined {
  if (isIPv4(text)) return text;
  if (!isIPv6(text)) return undefined;
  const [unzoned = ""] = text.split("%");
  const { address } = new SocketAddress({ address: unzoned, family: "ipv6" });
  const mapped = address.startsWith(MAPPED) ? address.slice(MAPPED.length) : "";
  return isIPv4(mapped) ? mapped : address;
}

export class NetworkList {
  /**
   * One list for each address family: in a shared list, `::/0` would contain every IPv4 address.
   */
  readonly #networks = { ipv4: new BlockList(), ipv6: new BlockList() };

  /** Throws if an entry is not a network. */
  constructor(entries: readonly string[]) {
    for (const entry of entries) {
      const network = parseNetwork(entry);
      if (network === undefined) throw new Error(`${JSON.stringify(entry)} is not an IP network`);
      const { address, prefix, family } = network;
      this.#networks[family].addSubnet(address, prefix, family);
    }
  }

  /** Returns true if one of the networks contains the address, which must be canonical. */
  includes(address: string): boolean {
    const family = isIPv4(address) ? "ipv4" : "ipv6";
    return this.#networks[family].check(address, family);
  }
}
