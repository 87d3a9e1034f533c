// Webhooks captured from a real WuKongIM server (goldens/webhooks.json). The calls that caused them
// are made again to a node with the dialect. The bodies of the node must be the same, except for
// ids, times and the differences that this file lists.

import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { gunzipSync } from "node:zlib";
import type { Test } from "tap";
import { type Broker, startBroker } from "../../support/broker.ts";
import { openJsonRpc } from "../../support/jsonrpc-client.ts";
import { t } from "../../support/suite.ts";

interface Step {
  readonly step: string;
  readonly calls?: readonly { readonly post?: string; readonly body?: object }[];
  readonly hooks?: readonly { readonly url: string; readonly body: string }[];
}

/** The name of an event, and one message of its body. */
interface Hook {
  readonly event: string;
  // biome-ignore lint/suspicious/noExplicitAny: the test compares all fields
  readonly message: any;
}

const { sessions } = JSON.parse(
  readFileSync(new URL("goldens/webhooks.json", import.meta.url), "utf8"),
) as { sessions: readonly { readonly name: string; readonly steps: readonly Step[] }[] };
const stepsOf = (name: string) => sessions.find((session) => session.name === name)?.steps ?? [];

/** Captured steps that are not repeated, with the reason. */
const SKIPPED: readonly (readonly [RegExp, string])[] = [
  [/noPersist|no_persist/, "no msg.offline for messages that are not stored"],
  [/syncOnce|sync_once/, "commands have no events of messages"],
  [/^burst/, "the sizes of batches depend on time"],
  [/receiver answers/, "any 2xx is a success"],
  [/quit ann web|kicked/, "no message is sent"],
];
/**
 * Seq of the command in WuKongIM's channel `g1`. Jindou stores commands in inboxes, so later
 * messages of the channel have lower seqs in Jindou.
 */
const COMMAND_SEQ_IN_G1 = 2;

/** Starts a receiver. Returns the messages that it has received. */
async function receive(t: Test): Promise<{ readonly url: string; readonly hooks: Hook[] }> {
  const hooks: Hook[] = [];
  const server = createServer(async (request, response) => {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece);
    hooks.push(...hooksIn(request.url ?? "", Buffer.concat(pieces).toString()));
    response.end();
    server.emit("hook");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`, hooks };
}

function hooksIn(url: string, body: string): readonly Hook[] {
  const event = new URL(url, "http://localhost").searchParams.get("event") ?? "";
  if (event === "user.onlinestatus") return [];
  const content = JSON.parse(body);
  return [content].flat().map((message) => ({ event, message }));
}

/**
 * Returns a hook as text, with its fields in their order and without the values that differ in each
 * run.
 */
function masked({ event, message }: Hook): string {
  return `${event} ${JSON.stringify(message, (name, value) => {
    if (/^(message_id|timestamp)$/.test(name)) return 0;
    if (/^(message_idstr|client_msg_no)$/.test(name)) return "";
    return name === "to_uids" ? [...value].sort() : value;
  })}`;
}

/** Returns the hooks that WuKongIM sent, with the seqs of Jindou. */
function expectedHooks({ hooks = [] }: Step): readonly string[] {
  const all = hooks.flatMap(({ url, body }) => hooksIn(url, body));
  return all.map(({ event, message }) => {
    const isLater = message.channel_id === "g1" && message.message_seq > COMMAND_SEQ_IN_G1;
    const message_seq = isLater ? message.message_seq - 1 : message.message_seq;
    return masked({ event, message: { ...message, message_seq } });
  });
}

async function startNode(t: Test, settings: Readonly<Record<string, string>> = {}) {
  const broker = await startBroker(t, {
    ...{ JINDOU_API_DIALECT: "wukongim", JINDOU_EVENTS_FEED: "on", JINDOU_PUSH_ENABLED: "true" },
    ...settings,
  });
  const receiver = await receive(t);
  const batch = { max: 100, waitMs: 0 };
  const { status } = await broker.call("/webhooks", {
    ...{ url: receiver.url, format: "wukongim", batch },
  });
  if (status !== 201) throw new Error("the webhook was not created");
  return { broker, hooks: receiver.hooks };
}

async function connect(t: Test, { clientPort }: Broker, uid: string, flag = 0, device = "") {
  const client = await openJsonRpc(t, { port: clientPort });
  const deviceId = `${uid}-${flag}${device}`;
  await client.request("connect", { uid, token: `t-${uid}`, deviceFlag: flag, deviceId });
  return client;
}

/** Returns the params of the `send` that caused the golden message. */
function sendParams({ hooks = [] }: Step) {
  const [hook] = hooks.flatMap(({ url, body }) => hooksIn(url, body));
  const { header, topic, expire, setting, payload, channel_id, channel_type } = hook?.message ?? {};
  return {
    ...{ clientMsgNo: `c-${Math.random()}`, channelId: channel_id, channelType: channel_type },
    header: { redDot: header.red_dot === 1 },
    setting: { receipt: (setting & 0x80) !== 0, topic: topic !== undefined },
    ...(topic && { topic }),
    ...{ expire, payload },
  };
}

async function untilReceived(hooks: readonly Hook[], count: number): Promise<void> {
  while (hooks.length < count) await new Promise((resolve) => setTimeout(resolve, 10));
}

t.test("the webhooks msg.notify and msg.offline have the same bodies as WuKongIM's", async (t) => {
  const { broker, hooks } = await startNode(t);
  let app: Awaited<ReturnType<typeof connect>> | undefined;
  for (const step of stepsOf("default")) {
    const { step: name, calls = [] } = step;
    if (SKIPPED.some(([pattern]) => pattern.test(name))) continue;
    if (name.startsWith("connect ann app")) app = await connect(t, broker, "ann");
    else if (name.startsWith("connect ann web")) await connect(t, broker, "ann", 1);
    else if (name.startsWith("connect dan-x")) await connect(t, broker, "dan-x");
    else if (name.startsWith("ann app goes away")) {
      app?.kill();
      const flagOf = async () =>
        (await broker.call("/user/onlinestatus", ["ann"])).body[0]?.device_flag;
      while ((await flagOf()) !== 1) await new Promise((resolve) => setTimeout(resolve, 10));
    } else if (name.startsWith("ann sends")) await app?.request("send", sendParams(step));
    else for (const { post = "", body } of calls) if (post !== "") await broker.call(post, body);
    const expected = expectedHooks(step);
    await untilReceived(hooks, expected.length);
    t.strictSame(hooks.splice(0).map(masked).sort(), [...expected].sort(), name);
  }
});

t.test("a compressed list of users in msg.offline is complete, unlike WuKongIM's", async (t) => {
  const { broker, hooks } = await startNode(t, { JINDOU_WEBHOOKS_COMPRESS_UIDS_ABOVE: "3" });
  for (const step of stepsOf("compressed-list")) {
    for (const { post = "", body } of step.calls ?? []) await broker.call(post, body);
    const expected = expectedHooks(step);
    await untilReceived(hooks, expected.length);
    const offline = hooks.find(({ event }) => event === "msg.offline")?.message;
    const uids = JSON.parse(gunzipSync(Buffer.from(offline.compress_to_uids, "base64")).toString());
    t.strictSame(uids.sort(), ["u0", "u1", "u2", "u3", "u4", "u5"]);
    const withoutList = (text: string) => text.replace(/"compress_to_uids":"[^"]*"/, "");
    t.strictSame(
      hooks.splice(0).map(masked).map(withoutList).sort(),
      expected.map(withoutList).sort(),
      "all other fields are the same",
    );
  }
});
