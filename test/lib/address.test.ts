// Parsing, formatting and comparing listen addresses.

import { formatAddress, isLoopback, parseAddress, sameAddress } from "../../src/lib/address.ts";
import { t } from "../support/suite.ts";

t.test("host:port, [ipv6]:port and :port are parsed as addresses", async (t) => {
  const cases: readonly [string, string, number][] = [
    ["127.0.0.1:5001", "127.0.0.1", 5001],
    ["[::1]:5001", "::1", 5001],
    ["[fe80::1%eth0]:1", "fe80::1%eth0", 1],
    [":5200", "0.0.0.0", 5200],
    ["my-host.example:0", "my-host.example", 0],
    ["a:65535", "a", 65_535],
  ];
  for (const [text, host, port] of cases) t.same(parseAddress(text), { host, port }, text);
});

t.test(
  "a string that is not host:port, [ipv6]:port or :port is not parsed as an address",
  async (t) => {
    const invalid = ["", "5001", "host", "host:", "::1:5001", "[::1]", "a:65536"];
    for (const text of [...invalid, "a:-1", "a b:1", "http://a:1", "[a]:b", "a:1 "])
      t.equal(parseAddress(text), undefined, text);
  },
);

t.test("formatting a parsed address returns its original text", async (t) => {
  for (const text of ["127.0.0.1:5001", "[::1]:5001"])
    t.equal(formatAddress(parseAddress(text) ?? { host: "", port: 0 }), text);
});

t.test("the loopback hosts are 127.0.0.0/8, ::1 and localhost", async (t) => {
  const loopback = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1"];
  loopback.push("::ffff:7f00:1", "0:0:0:0:0:0:0:1", "::1%lo", "LOCALHOST");
  for (const host of loopback) t.equal(isLoopback(host), true, host);
  const others = ["0.0.0.0", "::", "10.0.0.1", "127.evil.example", "localhost.x", "::7f00:1"];
  for (const host of others) t.equal(isLoopback(host), false, host);
});

t.test("addresses with the same host and port conflict, unless the port is 0", async (t) => {
  const at = (port: number) => ({ host: "127.0.0.1", port });
  t.equal(sameAddress(at(1), at(1)), true);
  t.equal(sameAddress(at(1), at(2)), false);
  t.equal(sameAddress(at(0), at(0)), false);
  t.equal(sameAddress(at(1), { host: "::1", port: 1 }), false);
  t.equal(sameAddress(at(1), { host: "::ffff:7f00:1", port: 1 }), true);
  const [short, long] = [parseAddress("[::1]:1"), parseAddress("[0:0:0:0:0:0:0:1]:1")];
  t.equal(short && long && sameAddress(short, long), true);
});
