// A client's handling of frames that only a newer server sends, and of frames that no server should
// send. The bytes of other frames are tested in test/wire.

import { Packr } from "msgpackr";
import { decodeServerFrame } from "../../../src/protocol/native/client-decode.ts";
import { t } from "../../support/suite.ts";
import { frameErrorOf } from "../../wire/native-codec.ts";

const msgpackr = new Packr({ useRecords: false });
const decoded = (fields: readonly unknown[]) => decodeServerFrame(msgpackr.pack(fields), "bob");

const BODY = new TextEncoder().encode('{"type":1,"content":"hi"}');
const MESSAGE = [2, "team", 1, 5, "alice", "s-1", 7, 2, 0, BODY, null, null];
const STREAM = [0, 2, "", null, []];

t.test("an unknown stream state from a newer server is read as `interrupted`", async (t) => {
  t.match(decoded([73, 1, 9]), { kind: "cancel", state: "interrupted" });
  const position = [1, 5, 6, 2, 9];
  const event = [82, 0, 2, "team", "alice", "s-1", "e", "x", "", 7, position];
  t.match(decoded(event), { event: { stream: { state: "interrupted" } } });
});

t.test(
  "a conversation change of an unknown kind is decoded as a `read` change with the conversation's new state",
  async (t) => {
    const frame = [85, 0, 9, 2, "team", 3, 2, 1, 0, 7, null];
    t.match(decoded(frame), { change: "read", conversation: { unread: 1 } });
  },
);

t.test("a stream's message whose payload is not a text message is rejected", async (t) => {
  t.match(decoded([80, 0, ...MESSAGE, STREAM]), {
    message: { stream: { text: "hi", nextIndex: 2 } },
  });
  for (const body of ["", "hi", "null", "{}", '{"content":1}']) {
    const payload = new TextEncoder().encode(body);
    const frame = [...MESSAGE.slice(0, 9), payload, null, null, STREAM];
    t.match(
      frameErrorOf(() => decoded([80, 0, ...frame])),
      { code: "bad_payload", fatal: false },
      body,
    );
  }
});

t.test("an unknown push is rejected without ending the connection", async (t) => {
  for (const op of [67, 88, 93, 127])
    t.match(
      frameErrorOf(() => decoded([op, 0, "x"])),
      { code: "malformed_frame", fatal: false },
      String(op),
    );
});
