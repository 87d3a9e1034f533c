// The client passes plain copies of its data to the app, and copies the bytes that the app passes:
// neither side can change data that the other side uses.

import { createContext, runInContext } from "node:vm";
import type { ReceivedMessage } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { message, messageOf, messages, SampleStream, TEAM } from "./messages.ts";
import { connectTo, ScriptedServer } from "./scripted.ts";

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

t.test(
  "changing an ArrayBuffer or a view right after passing it to `send` as the payload does not change the message",
  async (t) => {
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    const buffer = Buffer.from("00000");
    const whole = new TextEncoder().encode("hello");
    const views: readonly [ArrayBuffer | ArrayBufferView, string][] = [
      [buffer, "00000"],
      [buffer.subarray(0, 3), "000"],
      [whole, "hello"],
      [whole.slice().buffer, "hello"],
      [new DataView(whole.slice().buffer, 1, 3), "ell"],
      [new Uint16Array(whole.slice(0, 4).buffer), "hell"],
      [runInContext("new Uint8Array([104, 105])", createContext()), "hi"],
      [runInContext("new Uint8Array([104, 105]).buffer", createContext()), "hi"],
    ];
    for (const [n, [bytes]] of views.entries()) {
      client.send({ ...TEAM, id: `g${n}` }, bytes).catch(() => undefined);
      const all = "buffer" in bytes ? new Uint8Array(bytes.buffer) : new Uint8Array(bytes);
      all.fill(0x78, 0, n < 2 ? 0 : undefined);
    }
    buffer.fill("x"); // before the client is online
    for (const [n, [, expected]] of views.entries())
      t.equal(text((await server.received("send", n)).payload), expected, `payload ${n}`);
  },
);

t.test(
  "the payloads of one history page share no memory, and its messages can be cloned and wrapped in proxies",
  async (t) => {
    const server = new ScriptedServer();
    const client = connectTo(t, server);
    const request = client.history(TEAM);
    const stream = messageOf(new SampleStream(["a", undefined, "b"]).snapshot(3));
    (await server.socket()).reply(await server.received("history"), {
      kind: "history",
      channel: TEAM,
      headSeq: 3,
      more: false,
      messages: [...messages(1, 2), stream],
    });
    const page = (await request).messages as [ReceivedMessage, ReceivedMessage, ReceivedMessage];
    structuredClone(page[0].payload, { transfer: [page[0].payload.buffer as ArrayBuffer] });
    t.equal(page[0].payload.length, 0, "the bytes of the first message were transferred");
    t.equal(text(page[1].payload), '{"type":1,"content":"2"}');
    for (const received of page.slice(1)) {
      t.same(structuredClone(received), received, "the message can be cloned");
      t.doesNotThrow(() => JSON.stringify(received));
      const proxy = new Proxy(received, {}); // Vue and MobX create such proxies
      t.equal(proxy.stream?.text, received.stream?.text);
    }
    const { stream: data } = page[2];
    t.match(data, { state: "active", text: "a", nextIndex: 3 });
    const reactive = new Proxy(page[2], {
      get: (target, name) => {
        const value = Reflect.get(target, name);
        return typeof value === "object" && value !== null ? new Proxy(value, {}) : value;
      },
    });
    t.equal(client.stream(reactive).snapshot().text, "a", "a reactive message names its stream");
  },
);

t.test("the payload of a command shares no memory with other data", async (t) => {
  const server = new ScriptedServer();
  const client = connectTo(t, server);
  const payloads: Uint8Array[] = [];
  client.on("command", ({ payload }) => payloads.push(payload));
  await client.ready();
  const socket = await server.socket();
  for (const seq of [1, 2])
    socket.push({ kind: "command", channel: TEAM, inboxSeq: 0, message: message(seq) });
  await server.until("two commands", () => payloads.length === 2);
  for (const payload of payloads) t.equal(payload.buffer.byteLength, payload.length);
});

t.test("a binary frame from another JavaScript realm is read", async (t) => {
  const foreign = runInContext("ArrayBuffer", createContext()) as typeof ArrayBuffer;
  const server = new ScriptedServer();
  const webSocket = class extends server.webSocket {
    override set onmessage(handler: ((event: { readonly data: unknown }) => void) | null) {
      super.onmessage = ({ data }) => {
        const copy = new foreign((data as ArrayBuffer).byteLength);
        new Uint8Array(copy).set(new Uint8Array(data as ArrayBuffer));
        handler?.({ data: copy });
      };
    }
  };
  t.notOk(new foreign(0) instanceof ArrayBuffer);
  const client = connectTo(t, server, { webSocket });
  await client.ready();
  t.equal(client.status, "online");
});
