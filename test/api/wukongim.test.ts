// The dialect of backends written for WuKongIM: what replies look like, how bodies are read, and
// the calls that mean something else.

import type { Channels } from "../../src/broker/channels.ts";
import { BrokerError, type ErrorCode } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { type Call, inject, startApi, type TestApi } from "./harness.ts";

const GROUP = { channel_id: "g1", channel_type: 2 };
const REF = { id: "g1", type: 2 };
const SEND = { ...GROUP, from_uid: "a", payload: "eyJ0eXBlIjoxfQ==" };
const OFF = { ban: false, sendBan: false, allowStranger: false, large: false };

function start(parts: Parameters<typeof startApi>[2] = {}): Promise<TestApi> {
  return startApi({ dialect: "wukongim" }, {}, parts);
}

async function refused(code: ErrorCode, target: string, call: Call) {
  const api = await start();
  api.thrown = new BrokerError(code, { message: "why" });
  const { status, json } = await inject(api, target, call);
  return [status, json];
}

t.test("a write is answered with status 200, a number", async (t) => {
  const api = await start();
  const token = { uid: "u", token: "t", device_flag: 1 };
  const written = await inject(api, "POST /user/token", { body: token });
  t.equal(written.text, '{"status":200}');
  const body = { ...GROUP, subscribers: ["a"] };
  t.same((await inject(api, "POST /channel", { body })).json, { status: 200 });
  t.equal((await inject(api, "GET /healthz")).text, '{"status":"ok"}');
  const event = { client_msg_no: "s", ...GROUP, event: { type: "custom" } };
  api.state = "active";
  t.same((await inject(api, "POST /event", { body: event })).json, {
    status: 200,
    stream: { state: "active" },
  });
});

t.test("a sent message is answered inside data", async (t) => {
  const api = await start();
  t.same((await inject(api, "POST /message/send", { body: SEND })).json, {
    status: 200,
    data: { message_id: 7, message_seq: 3, client_msg_no: "c1" },
  });
});

t.test("a refusal is 400 with msg and status", async (t) => {
  const codes: readonly ErrorCode[] = [
    "bad_request",
    "channel_not_found",
    "not_subscriber",
    "channel_disbanded",
  ];
  for (const code of codes)
    t.same(await refused(code, "POST /message/send", { body: SEND }), [
      400,
      { msg: "why", status: 400 },
    ]);
  const api = await start();
  const { status, json } = await inject(api, "POST /user/token", {
    body: { uid: "u", token: "t", device_flag: 4 },
  });
  t.same([status, json], [400, { msg: "device_flag must be one of 0, 1, 2", status: 400 }]);
});

t.test("what concerns HTTP or the node keeps its status, and 401 has no body", async (t) => {
  t.match(await refused("unavailable", "POST /message/send", { body: SEND }), [
    503,
    { msg: "why", status: 503 },
  ]);
  const api = await start();
  const path = await inject(api, "GET /nothing");
  t.match(path, { status: 404, json: { status: 404 } });
  const method = await inject(api, "GET /channel");
  t.match(method, { status: 405, json: { status: 405 } });
  t.equal(method.headers.allow, "POST");
  const headers = { "content-type": "text/plain" };
  const type = await inject(api, "POST /channel", { headers, body: GROUP });
  t.match(type, { status: 415, json: { status: 415 } });
  const { endpoint } = api;
  const large = endpoint.tooLarge({} as never);
  t.match(large, { status: 413, body: '"status":413' });
  const strict = await startApi({
    dialect: "wukongim",
    requiresCredential: true,
  });
  const anonymous = await inject(strict, "POST /channel", { body: GROUP });
  t.equal(anonymous.status, 401);
  t.equal(anonymous.text, "");
  const authorization = await strict.login("view", "p");
  const viewer = await inject(strict, "POST /channel", {
    headers: { authorization },
    body: GROUP,
  });
  t.match(viewer, { status: 400, json: { status: 403 } });
});

t.test("a login is answered flat, with the time of its end", async (t) => {
  const api = await start();
  const body = { username: "ops", password: "p" };
  const { json } = await inject(api, "POST /manager/login", { body });
  t.match(json, { username: "ops", token: /./, permissions: /users:write,/ });
  t.ok(json.exp > 80_000);
  t.notOk("user" in json);
});

t.test("null is absent, and a flag is set by 1 only", async (t) => {
  const api = await start();
  const body = { ...GROUP, ban: 2, large: 1, send_ban: -1, subscribers: null };
  await inject(api, "POST /channel", { body });
  const info = { ...REF, ...OFF, disband: false, large: true };
  t.same(api.asked, [{ call: "create", args: [info, []] }]);
  const text = await inject(api, "POST /channel", {
    body: { ...GROUP, ban: "1" },
  });
  t.equal(text.status, 400);
  const header = { no_persist: 7, red_dot: 1, sync_once: null };
  await inject(api, "POST /message/send", { body: { ...SEND, header } });
  t.match(api.asked.at(-1)?.args, [
    { header: { noPersist: false, redDot: true, syncOnce: false } },
  ]);
});

t.test("a send without a sender is the system's", async (t) => {
  const api = await start();
  for (const from_uid of ["", " ", null, undefined]) {
    const body = { ...SEND, from_uid, client_msg_no: "", subscribers: [] };
    t.equal((await inject(api, "POST /message/send", { body })).status, 200);
    const input = { fromUid: "____system", clientMsgNo: undefined };
    t.match(api.asked.at(-1)?.args, [{ ...input, subscribers: undefined }]);
  }
});

t.test("a command to users without a channel goes to each", async (t) => {
  const api = await start();
  const { payload } = SEND;
  const header = { sync_once: 1 };
  const body = { payload, header, channel_id: "", channel_type: 0 };
  const { json } = await inject(api, "POST /message/send", {
    body: { ...body, subscribers: ["b", "c"] },
  });
  t.same(json, { status: 200, data: { fail_uids: [], reason: [] } });
  t.match(
    api.asked.map(({ args }) => args[0]),
    ["b", "c"].map((id) => ({
      channel: { id, type: 1 },
      fromUid: "____system",
      header: { syncOnce: true },
      subscribers: undefined,
    })),
  );
  for (const wrong of [
    body,
    { ...body, header: {}, subscribers: ["b"] },
    { payload, channel_id: "g" },
  ]) {
    const answer = await inject(api, "POST /message/send", { body: wrong });
    t.match(answer.json, { msg: /^channel_id and channel_type/, status: 400 });
  }
  t.equal(api.asked.length, 2);
});

t.test("a device flag that is not given is 0", async (t) => {
  const api = await start();
  await inject(api, "POST /user/token", { body: { uid: "u", token: "t" } });
  await inject(api, "POST /user/device_quit", { body: { uid: "u" } });
  t.match(api.asked, [{ args: [{ flag: 0, level: 0 }] }, { args: ["u", [0]] }]);
});

t.test("a channel that exists is changed: absent flags are 0", async (t) => {
  for (const path of ["/channel", "/channel/info"]) {
    const { api, channels } = await existing();
    const body = { ...GROUP, ban: 1, reset: 1, subscribers: ["a"] };
    const { json } = await inject(api, `POST ${path}`, { body });
    t.same(json, { status: 200 });
    const isCreate = path === "/channel";
    t.same(channels, [
      ["addSubscribers", isCreate ? ["a"] : [], isCreate],
      ["update", { ...OFF, ban: true }],
    ]);
  }
});

t.test("subscribers may be added to a channel that is missing", async (t) => {
  const asked: string[] = [];
  let there = false;
  const channels = channelsOf({
    async create() {
      asked.push("create");
      there = true;
    },
    async addSubscribers() {
      asked.push("addSubscribers");
      if (!there) throw new BrokerError("channel_not_found");
    },
  });
  const api = await start({ channels });
  const body = { channel_id: "g1", channel_type: 0, subscribers: ["a"] };
  const { status } = await inject(api, "POST /channel/subscriber_add", {
    body,
  });
  t.equal(status, 200);
  t.same(asked, ["addSubscribers", "create", "addSubscribers"]);
});

t.test("removing leaves out what is not there", async (t) => {
  const api = await start();
  const body = { ...GROUP, subscribers: ["a", " "] };
  await inject(api, "POST /channel/subscriber_remove", { body });
  t.same(api.asked.at(-1)?.args, [REF, ["a"], "permanent", "skip"]);
  t.same(
    await refused("channel_not_found", "POST /channel/subscriber_remove", {
      body,
    }),
    [200, { status: 200 }],
  );
  const none = { ...GROUP, subscribers: [""] };
  const { status } = await inject(api, "POST /channel/subscriber_remove", {
    body: none,
  });
  t.equal(status, 400);
});

t.test("online status: one record per live session", async (t) => {
  const api = await start();
  const session = { nodeId: "n", uid: "u", level: 0, deviceId: "" } as const;
  api.sessions = [
    { ...session, sessionId: "s1", flag: 1, tokenTag: "" },
    { ...session, sessionId: "s2", flag: 1, tokenTag: "" },
  ];
  const answer = await inject(api, "POST /user/onlinestatus", {
    body: ["u", "u"],
  });
  const record = { uid: "u", device_flag: 1, online: 1 };
  t.same(answer.json, [record, record]);
  t.same(api.asked, [{ call: "liveSessions", args: [["u"]] }]);
});

function channelsOf(own: Partial<Channels>): Channels {
  const unexpected = async () => {
    throw new Error("not expected");
  };
  return {
    create: unexpected,
    update: unexpected,
    addSubscribers: unexpected,
    removeSubscribers: unexpected,
    state: unexpected,
    uids: unexpected,
    groupsOf: unexpected,
    removeAllSubscribers: unexpected,
    changeList: unexpected,
    ...own,
  };
}

t.test("lists of a missing channel: adding creates it, removing is done", async (t) => {
  const asked: string[] = [];
  let there = false;
  const missing = async (name: string) => {
    asked.push(name);
    if (!there) throw new BrokerError("channel_not_found");
  };
  const channels = channelsOf({
    async create() {
      asked.push("create");
      there = true;
    },
    changeList: (_channel, list, { kind }) => missing(`${kind} ${list}`),
    removeAllSubscribers: () => missing("removeAll"),
    update: async (channel) => {
      await missing("update");
      return { ...channel, ...OFF, disband: false };
    },
  });
  const api = await start({ channels });
  const done = async (name: string) => {
    const body = { ...GROUP, uids: ["a"] };
    const { json } = await inject(api, `POST /channel/${name}`, { body });
    t.same(json, { status: 200 }, name);
    return asked.splice(0);
  };
  t.same(await done("blacklist_remove"), ["remove denylist"]);
  t.same(await done("whitelist_remove_all"), ["replace allowlist"]);
  t.same(await done("subscriber_remove_all"), ["removeAll"]);
  t.same(await done("delete"), ["update"]);
  const added = ["add denylist", "create", "add denylist"];
  t.same(await done("blacklist_add"), added);
  there = false;
  const set = ["replace allowlist", "create", "replace allowlist"];
  t.same(await done("whitelist_set"), set);
  t.same(await done("whitelist_set"), ["replace allowlist"]);
});

t.test("a channel that another call creates meanwhile keeps its flags", async (t) => {
  for (const call of ["subscriber_add", "blacklist_add"]) {
    let adds = 0;
    const add = async () => {
      adds += 1;
      if (adds === 1) throw new BrokerError("channel_not_found");
    };
    const channels = channelsOf({
      async create() {
        throw new BrokerError("channel_exists");
      },
      addSubscribers: add,
      changeList: add,
    }); // an update is not expected
    const api = await start({ channels });
    const body = { ...GROUP, subscribers: ["a"], uids: ["a"] };
    const { json } = await inject(api, `POST /channel/${call}`, { body });
    t.same(json, { status: 200 }, call);
  }
});

/** An endpoint whose channel exists, and what was asked of it. */
async function existing() {
  const channels: unknown[] = [];
  const parts = channelsOf({
    async create() {
      throw new BrokerError("channel_exists");
    },
    async addSubscribers(_channel, uids, { reset }) {
      channels.push(["addSubscribers", uids, reset]);
    },
    async update(channel, flags) {
      channels.push(["update", flags]);
      return { ...channel, ...OFF, disband: false };
    },
  });
  return { api: await start({ channels: parts }), channels };
}
