// The network of a client's address: the part that a client can hardly change. Pure.

/** An IPv4 address, or the /64 of an IPv6 one, in which a host may choose any address. */
export function networkOf(address: string): string {
  if (!address.includes(":")) return address;
  const groups = expand(address.split("%")[0] ?? "");
  const isMappedIpv4 = groups.slice(0, 5).every((one) => one === "0");
  if (isMappedIpv4 && groups[5] === "ffff") return groups.slice(6).join(":");
  return groups.slice(0, 4).join(":");
}

function expand(address: string): readonly string[] {
  const [head = "", tail] = address.toLowerCase().split("::");
  const split = (part: string): string[] =>
    part === "" ? [] : part.split(":").map((one) => one.replace(/^0+(?=.)/, ""));
  if (tail === undefined) return split(head);
  const [left, right] = [split(head), split(tail)];
  const missing = 8 - left.length - right.length;
  const filled = tail.includes(".") ? missing - 1 : missing;
  return [...left, ...Array<string>(Math.max(0, filled)).fill("0"), ...right];
}
