// The default red dot of a message in each interface, the order of history, and the refusal of a
// client whose token is for a different device flag.

import { connect, group } from "../../src/client/index.ts";
import { openShell } from "../cli/shell.ts";
import { type ChildBroker, spawnBroker, textPayload } from "../support/broker.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { HMAC_KEY, keyFile, mint, SECRET } from "../support/mint.ts";
import { t } from "../support/suite.ts";

const API_TOKEN = "0123456789abcdef";
const TEAM = { channelId: "team", channelType: 2 };

async function prepare({ call }: ChildBroker): Promise<void> {
  await call("/user/token", { uid: "amy", token: "amy-token", device_flag: 1 });
  await call("/user/token", { uid: "ben", token: "ben-token", device_flag: 0 });
  await call("/channel", { channel_id: "team", channel_type: 2, subscribers: ["amy", "ben"] });
}

const broker = await spawnBroker(t);
await prepare(broker);

t.test(
  "a message sent without red_dot has a red dot if the SDK or a JSON-RPC client sent it, and no red dot if it was sent over HTTP",
  async (t) => {
    const { clientPort: port } = broker;
    const amy = connect({ url: `ws://127.0.0.1:${port}`, uid: "amy", token: "amy-token" });
    t.teardown(() => amy.close());
    const ben = await openJsonRpc(t, { port });
    await ben.request("connect", { protocol: 1, uid: "ben", token: "ben-token" });
    const payload = textPayload("x");
    const unread = async () => (await amy.conversations()).conversations[0]?.unread;
    await ben.request("send", { ...TEAM, payload });
    t.equal(await unread(), 1, "JSON");
    await ben.request("send", { ...TEAM, payload, header: { redDot: false } });
    t.equal(await unread(), 1, "JSON-RPC with redDot false");
    const sample = { from_uid: "ben", channel_id: "team", channel_type: 2, payload };
    await broker.call("/message/send", sample);
    t.equal(await unread(), 1, "HTTP");
    await amy.send(group("team"), "x");
    const { messages } = await amy.history(group("team"), { limit: 1 });
    t.equal(messages[0]?.redDot, true, "SDK");
  },
);

t.test("history is newest first with `before`, and oldest first with `after`", async (t) => {
  const { clientPort: port, call } = broker;
  const url = `ws://127.0.0.1:${port}`;
  const channel = { channel_id: "pages", channel_type: 2 };
  await call("/channel", { ...channel, subscribers: ["amy", "ben"] });
  for (let n = 1; n <= 6; n++)
    await call("/message/send", { ...channel, from_uid: "ben", payload: textPayload(`${n}`) });
  const amy = connect({ url, uid: "amy", token: "amy-token" });
  t.teardown(() => amy.close());
  const ben = await openJsonRpc(t, { port });
  await ben.request("connect", { protocol: 1, uid: "ben", token: "ben-token" });
  const shell = openShell(t, broker);
  const doors = {
    SDK: async (bounds: object) =>
      (await amy.history(group("pages"), { limit: 2, ...bounds })).messages.map(
        ({ messageSeq }) => messageSeq,
      ),
    JSON: async (bounds: object) => {
      const params = { channelId: "pages", channelType: 2, limit: 2, ...bounds };
      const { messages } = await ben.request("history", params);
      return messages.map(({ messageSeq }: { messageSeq: number }) => messageSeq);
    },
    HTTP: async (bounds: object) => {
      const fields = { ...channel, limit: 2, ...bounds };
      const query = Object.entries(fields).map(
        ([name, value]) => `${name === "fromSeq" ? "from_seq" : name}=${value}`,
      );
      const { body } = await call(`/channel/messages?${query.join("&")}`);
      return body.messages.map(({ message_seq }: { message_seq: number }) => message_seq);
    },
    shell: async (bounds: object) => {
      const flags = Object.entries(bounds).map(([name, value]) => `--${name}=${value}`);
      const command = ["history", "--group=pages", "--limit=2", "--json", ...flags];
      const { stdout } = await shell.run(command);
      return stdout
        .split("\n")
        .filter((line) => line !== "")
        .map((line) => JSON.parse(line).message_seq);
    },
  };
  for (const [door, read] of Object.entries(doors)) {
    t.same(await read({ before: 5 }), [4, 3], `${door}: before`);
    t.same(await read({ after: 2 }), [3, 4], `${door}: after`);
    t.same(await read({ before: 1 }), [], `${door}: before the first`);
    t.same(await read({ after: 6 }), [], `${door}: after the last`);
    t.same(await read({ after: 1, before: 5 }), [2, 3], `${door}: after and before`);
    if (door === "shell") continue; // it has no flag for the first seq
    t.same(await read({ before: 5, fromSeq: 2 }), [4, 3], `${door}: before, with a first seq`);
    t.same(await read({ before: 3, fromSeq: 2 }), [2], `${door}: from the first seq only`);
  }
});

t.test(
  "the SDK reports a wrong token as auth_failed at a login, and when it appends to or reads a stream",
  async (t) => {
    const url = `ws://127.0.0.1:${broker.clientPort}`;
    await t.rejects(connect({ url, uid: "amy", token: "guess" }).ready(), { code: "auth_failed" });
    let token = "amy-token";
    const amy = connect({ url, uid: "amy", token: async () => token });
    t.teardown(() => amy.close());
    await amy.ready();
    token = "guess";
    const stream = amy.stream("/v1/stream/channel/2/team/answer");
    await t.rejects(stream.append({ delta: "x" }), { code: "auth_failed" }, "append");
    const read = async () => {
      for await (const record of stream) t.fail(`read ${record}`);
    };
    await t.rejects(read(), { code: "auth_failed" }, "read");
  },
);

const REFUSAL = "uid, device flag and token do not match";

async function flagLine({ output }: ChildBroker, uid: string) {
  const isOfUser = (line: string) => line.includes("a different device flag") && line.includes(uid);
  const find = () => output().split("\n").find(isOfUser);
  for (;;) {
    const line = find();
    if (line !== undefined) return JSON.parse(line);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const detailOf = (token: string, used: string) =>
  `${REFUSAL}: the token is for device flag ${token}, but it is used with device flag ${used}`;

t.test(
  "a login whose device flag differs from the token's is refused, the log names both flags, and in protected mode the error does too",
  async (t) => {
    const open = await spawnBroker(t, { JINDOU_API_TOKEN: API_TOKEN });
    const user = { uid: "amy", token: "amy-token", device_flag: 1 };
    await open.call("/user/token", user, { token: API_TOKEN });
    for (const node of [broker, open]) {
      const refusal = { code: "auth_failed", message: REFUSAL };
      const url = `ws://127.0.0.1:${node.clientPort}`;
      const client = connect({ url, uid: "amy", token: "amy-token", deviceFlag: 0 });
      const message = node === broker ? detailOf("1 (web)", "0 (app)") : REFUSAL;
      await t.rejects(client.ready(), { ...refusal, message }, "SDK");
      const json = await openJsonRpc(t, { port: node.clientPort });
      const login = json.request("connect", { protocol: 1, uid: "amy", token: "amy-token" });
      const error = await login.catch((error: Error) => error);
      t.match(error.message, message, "JSON");
      const guess = connect({ url, uid: "amy", token: "guess", deviceFlag: 0 });
      await t.rejects(
        guess.ready(),
        refusal,
        "a client with a wrong token is not told the device flag",
      );
      t.match(await flagLine(node, "amy"), { flag: 0, tokenFlag: 1, level: "info" });
      t.notMatch(node.output(), "amy-token");
    }
  },
);

t.test(
  "a viewer whose device flag differs from the token's is refused, and in protected mode the error names both flags",
  async (t) => {
    const open = await spawnBroker(t, { JINDOU_API_TOKEN: API_TOKEN });
    const user = { uid: "cat", token: "cat-token", device_flag: 0 };
    await broker.call("/user/token", user);
    await open.call("/user/token", user, { token: API_TOKEN });
    for (const node of [broker, open]) {
      for (const path of ["/stream/2/team/s", "/v1/stream/channel/2/team/s"])
        for (const port of [node.apiPort, node.clientPort]) {
          const refusal = async (query: string) => {
            const response = await fetch(`http://127.0.0.1:${port}${path}?uid=cat&${query}`);
            return response.json();
          };
          const error = node === broker ? detailOf("0 (app)", "1 (web)") : REFUSAL;
          t.match(await refusal("token=cat-token"), { code: "unauthorized", error }, path);
          t.match(await refusal("token=guess"), { code: "unauthorized", error: REFUSAL }, path);
        }
      t.match(await flagLine(node, "cat"), { flag: 1, tokenFlag: 0, level: "info" });
      t.notMatch(node.output(), "cat-token");
    }
  },
);

t.test(
  "a JWT that is used with a device flag other than its own is refused, and the error names both flags",
  async (t) => {
    const node = await spawnBroker(t, {
      JINDOU_AUTH_CLIENTS: "jwt",
      JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
      JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
    });
    const token = await mint(HMAC_KEY, { sub: "amy", device_flag: 2 });
    const url = `ws://127.0.0.1:${node.clientPort}`;
    const login = (uid: string) => connect({ url, uid, token }).ready();
    const message = detailOf("2 (desktop)", "1 (web)");
    await t.rejects(login("amy"), { code: "auth_failed", message }, "SDK");
    await t.rejects(login("ben"), { code: "auth_failed", message: REFUSAL }, "another user");
    const { body } = await node.call(`/stream/2/team/s?uid=amy&token=${token}`);
    t.match(body, { code: "unauthorized", error: message }, "HTTP");
    t.match(await flagLine(node, "amy"), { flag: 1, tokenFlag: 2 });
  },
);
