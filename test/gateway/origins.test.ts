// Browser origins that may open a socket.

import { isOriginAllowed } from "../../src/gateway/origins.ts";
import { t } from "../support/suite.ts";

type Row = readonly [origin: string, allowed: readonly string[], is: boolean];

const APP = "https://app.example.com";

const ROWS: readonly Row[] = [
  ["https://anything.test", [], true],
  ["", [APP], true],
  [APP, [APP], true],
  ["https://APP.example.com", [APP], true],
  [APP, ["HTTPS://App.Example.Com"], true],
  ["http://app.example.com", [APP], false],
  ["https://app.example.com:8443", [APP], false],
  ["https://app.example.com.evil.test", [APP], false],
  ["https://evil.test", [APP], false],
  ["https://evil.test", ["https://one.test", "https://evil.test"], true],
  [APP, ["*.example.com"], true],
  ["https://a.b.example.com:8443", ["*.example.com"], true],
  ["http://app.example.com", ["*.EXAMPLE.com"], true],
  ["https://example.com", ["*.example.com"], false],
  ["https://badexample.com", ["*.example.com"], false],
  ["https://example.com.evil.test", ["*.example.com"], false],
  ["https://evil.test/.example.com", ["*.example.com"], false],
  ["https://evil.test#.example.com", ["*.example.com"], false],
  ["https://x.example.com@evil.test", ["*.example.com"], false],
  ["null", ["*.example.com"], false],
  ["null", [APP], false],
  ["null", ["null"], true],
  ["capacitor://localhost", ["capacitor://localhost"], true],
  ["tauri://localhost", ["capacitor://localhost"], false],
  ["http://localhost", ["capacitor://localhost"], false],
  ["chrome-extension://abcdefgh", ["chrome-extension://abcdefgh"], true],
  ["chrome-extension://evil", ["chrome-extension://abcdefgh"], false],
  ["not an origin.example.com", ["*.example.com"], false],
];

for (const [origin, allowed, is] of ROWS)
  t.test(
    `origin "${origin}" is ${is ? "allowed" : "refused"} by [${allowed.join(", ")}]`,
    async (t) => {
      t.equal(isOriginAllowed(origin, allowed), is);
    },
  );
