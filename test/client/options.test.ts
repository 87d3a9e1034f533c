// Invalid options and arguments of an app: they are rejected at the call, with a message that names
// what to pass. No server is needed.

import type { Test } from "tap";
import { type Client, connect, group } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";

const VALID = { url: "ws://127.0.0.1:1", uid: "alice" };

/** Creates a client that waits for its first reconnect. */
function offline(t: Test): Client {
  const client = connect({ ...VALID, reconnect: { minMs: 60_000 } });
  t.teardown(() => client.close());
  return client;
}

// Accepts everything that an app in JavaScript may pass and that the types would reject.
type UntypedConnect = (options: unknown) => Client;

t.test("an invalid option is rejected with a message that names what to pass", async (t) => {
  const cases: readonly [options: unknown, code: string, message: RegExp][] = [
    [undefined, "bad_option", /must be an object/],
    [{ ...VALID, deviceID: "x" }, "bad_option", /"deviceID".*deviceId/],
    [{ ...VALID, reconnect: { min: 1 } }, "bad_option", /"min".*minMs/],
    [{ ...VALID, timeouts: { ping: 1 } }, "bad_option", /"ping".*pingMs/],
    [{ ...VALID, url: "chat.example.com" }, "bad_option", /wss:\/\//],
    [{ uid: "alice" }, "bad_option", /^url must be/],
    [{ url: VALID.url }, "bad_id", /^uid must have/],
    [{ ...VALID, deviceId: "a#b" }, "bad_id", /^deviceId must have/],
    [{ ...VALID, deviceFlag: 3 }, "bad_option", /0 \(app\)/],
    [{ ...VALID, maxQueued: 0 }, "bad_option", /maxQueued .* from 1 to/],
    [{ ...VALID, cursors: [{}] }, "bad_option", /cursors\(\)/],
  ];
  for (const [options, code, message] of cases)
    t.throws(() => (connect as UntypedConnect)(options), { code, message });
});

t.test("an unknown event name is rejected with a message that lists the events", async (t) => {
  const client = offline(t);
  const on = client.on as (event: string, handler: unknown) => void;
  const unknownEvent = { code: "bad_option", message: /"mesage".*message/ };
  t.throws(() => on("mesage", () => {}), unknownEvent);
  t.throws(() => on("toString", () => {}), { code: "bad_option" });
  t.throws(() => on("message", undefined), { message: /a function/ });
});

t.test("an unknown option of a call is rejected with a message that names it", async (t) => {
  const client = offline(t);
  const g = group("g");
  const misspelt: object = { client_msg_no: "a", from: 1 };
  const calls: readonly (() => Promise<unknown>)[] = [
    () => client.send(g, "hello", misspelt),
    () => client.history(g, misspelt),
    () => client.conversations(misspelt),
  ];
  for (const call of calls)
    await t.rejects(call(), { code: "bad_option", message: /"client_msg_no"/ });
});
