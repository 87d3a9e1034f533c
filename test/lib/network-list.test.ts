// Tests which addresses the networks of a list contain. test/config/rules.test.ts tests entries
// that are not networks.

import { canonicalAddress, NetworkList } from "../../src/lib/network-list.ts";
import { t } from "../support/suite.ts";

t.test("a list contains the addresses of its networks and no other addresses", async (t) => {
  const list = new NetworkList(["10.1.2.3/8", "192.0.2.1", "fd00::5/8", "2001:db8::1"]);
  for (const address of ["10.0.0.0", "10.255.255.255", "192.0.2.1", "fd12::1", "2001:db8::1"])
    t.ok(list.includes(address), address);
  for (const address of ["9.255.255.255", "11.0.0.0", "192.0.2.2", "fe00::", "2001:db8::2", "::1"])
    t.notOk(list.includes(address), address);
  t.notOk(new NetworkList([]).includes("127.0.0.1"));
});

t.test("a network of one family contains no address of the other family", async (t) => {
  for (const network of ["::/0", "::/64", "::/80"]) {
    const list = new NetworkList([network]);
    for (const address of ["1.2.3.4", "127.0.0.1"]) t.notOk(list.includes(address), network);
    t.ok(list.includes("::1"), network);
  }
  const list = new NetworkList(["0.0.0.0/0"]);
  t.ok(list.includes("1.2.3.4"));
  for (const address of ["::1", "::102:304", "2001:db8::1"]) t.notOk(list.includes(address));
});

t.test(
  "creating a list with an entry that is not a network throws an error that names the entry",
  async (t) => {
    t.throws(() => new NetworkList(["10.0.0.1", "10.0.0.0/33"]), /"10\.0\.0\.0\/33"/);
  },
);

t.test(
  "canonicalAddress returns one notation for each IP address, and undefined for any other string",
  async (t) => {
    t.equal(canonicalAddress("10.1.2.3"), "10.1.2.3");
    t.equal(canonicalAddress("::FFFF:10.1.2.3"), "10.1.2.3");
    t.equal(canonicalAddress("::ffff:a01:203"), "10.1.2.3");
    t.equal(canonicalAddress("2001:0DB8:0:0:0:0:0:1"), "2001:db8::1");
    t.equal(canonicalAddress("fe80::1%eth0"), "fe80::1");
    for (const text of ["", "10.1.2", "10.1.2.03", "host", "[::1]", "1.2.3.4:5"])
      t.equal(canonicalAddress(text), undefined, text);
  },
);
