// What counts as one client network.

import { networkOf } from "../../src/lib/network.ts";
import { t } from "../support/suite.ts";

t.test("an IPv6 client is its /64, an IPv4 client its address, however written", async (t) => {
  t.equal(networkOf("10.1.2.3"), "10.1.2.3");
  t.equal(networkOf("2001:db8:0:1::5"), networkOf("2001:db8:0:1:ffff::9"));
  t.equal(networkOf("2001:0DB8:0000:0001:0000:0000:0000:0005"), networkOf("2001:db8:0:1::5"));
  t.not(networkOf("2001:db8:0:1::5"), networkOf("2001:db8:0:2::5"));
  t.not(networkOf("::ffff:10.0.0.1"), networkOf("::ffff:10.0.0.2"));
  t.equal(networkOf("0000:0000:0000:0000:0000:ffff:0a00:0001"), networkOf("::ffff:a00:1"));
  t.not(networkOf("::ffff:a00:1"), networkOf("::ffff:a00:2"));
  t.equal(networkOf("fe80::1%eth0"), networkOf("fe80::2"));
});
