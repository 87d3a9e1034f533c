// Reduces a client's address to the part that the client cannot easily change. Pure functions.

/**
 * Returns the network of an address. For IPv6, this is the first 64 bits, because a host can choose
 * the other bits. For IPv4, this is the whole address.
 */
export function networkOf(address: string): string {
  if (!address.includes(":")) return address;
  const groups = expand(address.split("%")[0] ?? "");
  const isMappedIpv4 = groups.slice(0, 5).every((group) => group === "0");
  if (isMappedIpv4 && groups[5] === "ffff") return dotted(groups.slice(6));
  return groups.slice(0, 4).join(":");
}

function dotted([high = "", low]: readonly string[]): string {
  if (low === undefined) return high;
  const bytes = [high, low].flatMap((group) => {
    const number = Number.parseInt(group, 16);
    return [number >> 8, number & 255];
  });
  return bytes.join(".");
}

function expand(address: string): readonly string[] {
  const [head = "", tail] = address.toLowerCase().split("::");
  const split = (part: string): string[] =>
    part === "" ? [] : part.split(":").map((group) => group.replace(/^0+(?=.)/, ""));
  if (tail === undefined) return split(head);
  const [left, right] = [split(head), split(tail)];
  const missing = 8 - left.length - right.length;
  const filled = tail.includes(".") ? missing - 1 : missing;
  return [...left, ...Array<string>(Math.max(0, filled)).fill("0"), ...right];
}
