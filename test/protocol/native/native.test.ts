// The native protocol's codec.

import { Packr } from "msgpackr";
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

t.test("unknown fields of a CONNECT and bytes after it are ignored", async (t) => {
  const codec = createNativeProtocol(LIMITS).open();
  const msgpackr = new Packr({ useRecords: false });
  const points = [[2, "team", 7, 0, "new"]];
  for (const resume of [null, points])
    for (const extra of [[], ["s"], ["s", { a: [1] }]])
      for (const rest of [[], [0xc1], [1, 2, 3]]) {
        const connect = msgpackr.pack([1, 5, 1, "bob", "secret", 0, "", null, resume, ...extra]);
        const greeting = codec.decodeConnect(new Uint8Array([...connect, ...rest]), false);
        const resumed = greeting?.finishDecoding().map(({ channel }) => channel.id);
        t.same(
          resumed,
          resume === null ? [] : ["team"],
          `${extra.length} fields, ${rest.length} bytes`,
        );
      }
});
