// The text form of addresses that a driver reports as bytes.

import { addressText } from "../../src/transport/address.ts";
import { t } from "../support/suite.ts";

const bytes = (...values: number[]): ArrayBuffer => new Uint8Array(values).buffer as ArrayBuffer;

const v6 = (hex: string): ArrayBuffer => bytes(...Buffer.from(hex.replaceAll(":", ""), "hex"));

t.test("an IPv4 address is written with dots", async (t) => {
  t.equal(addressText(bytes(192, 168, 0, 1)), "192.168.0.1");
});

t.test("an IPv4-mapped IPv6 address is written as IPv4", async (t) => {
  const mapped = v6("0000:0000:0000:0000:0000:ffff:7f00:0001");
  t.equal(addressText(mapped), "127.0.0.1");
});

t.test("an IPv6 address is written as RFC 5952 requires", async (t) => {
  const cases: Record<string, string> = {
    "0000:0000:0000:0000:0000:0000:0000:0000": "::",
    "0000:0000:0000:0000:0000:0000:0000:0001": "::1",
    "2001:0db8:0000:0000:0000:0000:0000:0000": "2001:db8::",
    "2001:0db8:0000:0001:0001:0001:0001:0001": "2001:db8:0:1:1:1:1:1",
    "2001:0000:0000:0001:0000:0000:0000:0001": "2001:0:0:1::1",
    "2001:0db8:0000:0000:0001:0000:0000:0001": "2001:db8::1:0:0:1",
    "fe80:0001:0002:0003:0004:0005:0006:0007": "fe80:1:2:3:4:5:6:7",
  };
  for (const [full, short] of Object.entries(cases)) t.equal(addressText(v6(full)), short);
});

t.test("an address without bytes is converted to an empty string", async (t) => {
  t.equal(addressText(bytes()), "");
});
