// The native protocol's codec.

import { createNativeProtocol } from "../../../src/protocol/native/native.ts";
import { NATIVE_SUBPROTOCOL } from "../../../src/protocol/native/ops.ts";
import { t } from "../../support/suite.ts";
import { frameErrorOf, LIMITS } from "../../wire/native-codec.ts";

const PING = new Uint8Array([0x92, 6, 6]);

t.test("a binary frame is decoded as one operation", async (t) => {
  const codec = createNativeProtocol(LIMITS).open();
  t.same(codec.decode(PING, false), [{ kind: "ping", ref: 6 }]);
});

t.test("a text frame ends the connection, even if its bytes are a valid operation", async (t) => {
  const codec = createNativeProtocol(LIMITS).open();
  t.match(
    frameErrorOf(() => codec.decode(PING, true)),
    { code: "malformed_frame", ref: 0, fatal: true },
  );
});

t.test("all native connections share one codec and one wire format", async (t) => {
  const protocol = createNativeProtocol(LIMITS);
  t.equal(protocol.name, NATIVE_SUBPROTOCOL);
  t.equal(protocol.open(), protocol.open());
  t.equal(protocol.open().format, NATIVE_SUBPROTOCOL);
});
