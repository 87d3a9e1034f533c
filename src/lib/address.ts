// Listen addresses as text: `host:port`, `[ipv6]:port`, `:port`. Pure; resolves no names and opens
// nothing.

/** With `port` 0 the system chooses. */
export interface Address {
  /** A name or a literal address, IPv6 without brackets. */
  readonly host: string;
  readonly port: number;
}

const WITH_BRACKETS = /^\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]:(\d{1,5})$/;
const PLAIN = /^([A-Za-z0-9._-]*):(\d{1,5})$/;

/** `host:port`; without a host (`:5200`) every IPv4 address. Undefined: not an address. */
export function parseAddress(text: string): Address | undefined {
  const match = WITH_BRACKETS.exec(text) ?? PLAIN.exec(text);
  if (match === null) return undefined;
  const port = Number(match[2]);
  if (port > 65_535) return undefined;
  return { host: match[1] || "0.0.0.0", port };
}

/** The text that `parseAddress` reads back. */
export function formatAddress({ host, port }: Address): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** Whether only this machine can reach `host`. Names other than `localhost` count as reachable. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase();
  return (
    name === "localhost" ||
    name === "::1" ||
    /^(?:::ffff:)?127(?:\.(?:25[0-5]|2[0-4]\d|1?\d{1,2})){3}$/.test(name)
  );
}

/** Whether two addresses are one listener. Port 0 is a fresh port each time, so it never is. */
export function sameAddress(a: Address, b: Address): boolean {
  return a.port === b.port && a.port !== 0 && a.host === b.host;
}
