// The explanation for the operator if the binary of uWebSockets.js does not load, by version of
// Node.js and C library. It is tested with simulated facts, because the tests run with only one
// version of Node.js and one C library.

import { type Machine, whyItDoesNotLoad } from "../../src/transport/uws/library.ts";
import { t } from "../support/suite.ts";

const MISSING = new Error(
  "This version of uWS.js supports only Node.js versions 18, 20, 21 and 22 on (glibc) Linux\n\nError: Cannot find module './bin/uws_linux_x64_137.node'\nRequire stack:\n- /app/uws.mjs",
);
const TOO_NEW = new Error(
  "This version of uWS.js\n\nError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /app/uws_linux_x64_127.node)",
);
const NEWER = /npm install --save-exact @btc-vision\/uwebsockets\.js@\d+\.\d+\.\d+$/;
const PINNED = /npm install --save-exact uWebSockets\.js@npm:uws-pack@\d+\.\d+\.\d+$/;

const linux = (node: string, glibc: string | undefined): Machine => ({
  node,
  platform: "linux",
  arch: "x64",
  glibc,
});

t.test("the load error of uWebSockets.js names Node.js, system, C library and cause", async (t) => {
  const text = whyItDoesNotLoad(MISSING, linux("24.21.0", "2.36"));
  t.match(text, /Node 24\.21\.0 on linux x64 with glibc 2\.36: /);
  t.match(text, /: Cannot find module '\.\/bin\/uws_linux_x64_137\.node'\. /);
  t.notMatch(text, /\n|Require stack/, "the message is a single line");
  t.match(whyItDoesNotLoad("broken", linux("22.0.0", "2.36")), /: broken\. /);
});

t.test(
  "the load error of uWebSockets.js recommends the newer release for Node.js 24 on glibc 2.38 or newer",
  async (t) => {
    for (const glibc of ["2.38", "2.41", "3.0"])
      t.match(whyItDoesNotLoad(MISSING, linux("24.1.0", glibc)), NEWER, glibc);
    const mac: Machine = {
      node: "24.1.0",
      platform: "darwin",
      arch: "arm64",
      glibc: undefined,
    };
    t.match(whyItDoesNotLoad(MISSING, mac), NEWER, "macOS gets the same advice");
  },
);

t.test(
  "the load error of uWebSockets.js names two remedies for Node.js 24 on an old glibc",
  async (t) => {
    for (const glibc of ["2.9", "2.36"]) {
      const text = whyItDoesNotLoad(MISSING, linux("24.1.0", glibc));
      t.match(text, /Use Node 20 or 22\. With Node 24, uWebSockets\.js needs glibc 2\.38 or newer/);
      t.match(text, NEWER, "the command for the newer release is included");
    }
  },
);

t.test(
  "the load error of uWebSockets.js recommends the pinned release if the newer one needs a newer glibc",
  async (t) => {
    t.match(whyItDoesNotLoad(TOO_NEW, linux("22.1.0", "2.36")), PINNED);
  },
);

t.test("a load error of uWebSockets.js names supported platforms if no release fits", async (t) => {
  const musl = whyItDoesNotLoad(MISSING, linux("22.1.0", undefined));
  t.match(musl, /without glibc: .* It needs a system with glibc, such as Debian or Ubuntu$/);
  const tooNew = whyItDoesNotLoad(MISSING, linux("26.0.0", "2.41"));
  t.match(tooNew, /Use Node 20, 22 or 24$/);
});
