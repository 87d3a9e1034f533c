// Tests which client addresses belong to the same network.

import { networkOf } from "../../src/lib/network.ts";
import { t } from "../support/suite.ts";

t.test(
  "the network of a client is the /64 prefix of its IPv6 address or its whole IPv4 address, in every notation",
  async (t) => {
    t.equal(networkOf("10.1.2.3"), "10.1.2.3");
    t.equal(networkOf("2001:db8:0:1::5"), networkOf("2001:db8:0:1:ffff::9"));
    t.equal(networkOf("2001:0DB8:0000:0001:0000:0000:0000:0005"), networkOf("2001:db8:0:1::5"));
    t.not(networkOf("2001:db8:0:1::5"), networkOf("2001:db8:0:2::5"));
    t.not(networkOf("::ffff:10.0.0.1"), networkOf("::ffff:10.0.0.2"));
    for (const mapped of ["::ffff:102:304", "::FFFF:1.2.3.4", "0:0:0:0:0:ffff:0102:0304"])
      t.equal(networkOf(mapped), networkOf("1.2.3.4"), mapped);
    t.equal(networkOf("::ffff:0:0"), "0.0.0.0");
    t.equal(networkOf("0000:0000:0000:0000:0000:ffff:0a00:0001"), networkOf("::ffff:a00:1"));
    t.not(networkOf("::ffff:a00:1"), networkOf("::ffff:a00:2"));
    t.equal(networkOf("fe80::1%eth0"), networkOf("fe80::2"));
  },
);
