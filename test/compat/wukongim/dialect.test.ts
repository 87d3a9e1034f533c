// Tests of the dialect for backends written for WuKongIM: the shape of replies, the tolerance for
// bodies, and the calls that behave differently in this dialect.

import { HTTP_STATUS } from "../../../src/api/errors.ts";
import type { Channels } from "../../../src/broker/channels.ts";
import { BrokerError, type ErrorCode } from "../../../src/broker/errors.ts";
import { type Call, inject, startApi, type TestApi } from "../../api/harness.ts";
import { t } from "../../support/suite.ts";

const GROUP = { channel_id: "g1", channel_type: 2 };
const REF = { id: "g1", type: 2 };
const SEND = { ...GROUP, from_uid: "a", payload: "eyJ0eXBlIjoxfQ==" };
const NO_FLAGS = { ban: false, sendBan: false, allowStranger: false, large: false };
const OFF = { ...NO_FLAGS, clientEvents: true };

/** Starts a control plane with this dialect. */
function start(ports: Parameters<typeof startApi>[2] = {}): Promise<TestApi> {
  return startApi({ dialect: "wukongim" }, {}, ports);
}

/** Makes a call whose use case throws this error. Returns the status and the body of the reply. */
async function rejection(code: ErrorCode, target: string, call: Call) {
  const api = await start();
  api.failure = new BrokerError(code, { message: "why" });
  const { status, json } = await inject(api, target, call);
  return [status, json];
}

t.test(
  "in the wukongim dialect, the body of a successful write has the number 200 in `status`",
  async (t) => {
    const api = await start();
    const token = { uid: "u", token: "t", device_flag: 1 };
    const reply = await inject(api, "POST /user/token", { body: token });
    t.equal(reply.text, '{"status":200}');
    const body = { ...GROUP, subscribers: ["a"] };
    t.same((await inject(api, "POST /channel", { body })).json, { status: 200 });
    t.equal((await inject(api, "GET /healthz")).text, '{"status":"ok"}');
    const event = { client_msg_no: "s", ...GROUP, event: { type: "custom" } };
    api.state = "active";
    t.same((await inject(api, "POST /event", { body: event })).json, {
      status: 200,
      stream: { state: "active" },
    });
  },
);

t.test(
  "a send returns the message ids at the top level and in the field `data` in the wukongim dialect",
  async (t) => {
    const api = await start();
    const ids = { message_id: 7, message_seq: 3, client_msg_no: "c1" };
    t.same((await inject(api, "POST /message/send", { body: SEND })).json, {
      ...{ status: 200, ...ids, data: ids },
    });
  },
);

t.test(
  "in the wukongim dialect, a missing list or null counts as an empty list if the list may be empty",
  async (t) => {
    const channel = { channel_id: "g1", channel_type: 2 };
    for (const [path, body, expected] of [
      ["/channel/whitelist_set", { ...channel, uids: null }, []],
      ["/channel/blacklist_set", { ...channel, uids: null }, []],
      ["/channel/subscriber_add", { ...channel, reset: 1, subscribers: null }, []],
      ["/user/systemuids_add", { uids: null }, []],
      ["/user/onlinestatus", null, undefined],
      ["/route/batch", null, undefined],
      ["/channel/whitelist_set", channel, []],
      ["/channel/blacklist_set", channel, []],
      ["/channel/subscriber_add", { ...channel, reset: 1 }, []],
      ["/user/systemuids_add", {}, []],
    ] as const) {
      const api = await start();
      t.equal((await inject(api, `POST ${path}`, { body })).status, 200, path);
      if (expected !== undefined)
        t.ok(
          api.calls.some(({ args }) => args.some((arg) => JSON.stringify(arg).includes("[]"))),
          `${path} was called with an empty list`,
        );
    }
    for (const path of ["/channel/whitelist_add", "/channel/subscriber_remove"]) {
      const body = { ...channel, uids: null, subscribers: null };
      const { status } = await inject(await start(), `POST ${path}`, { body });
      t.equal(status, 400, `${path} needs at least one user`);
    }
    const { status } = await inject(await startApi(), "POST /channel/whitelist_set", {
      body: { ...channel, uids: null },
    });
    t.equal(status, 400, "the default dialect requires a list");
  },
);

t.test(
  "in the wukongim dialect, an error such as channel_not_found or not_subscriber is answered with 400, `msg` and `status`",
  async (t) => {
    const codes: readonly ErrorCode[] = [
      "bad_request",
      "channel_not_found",
      "not_subscriber",
      "channel_disbanded",
    ];
    for (const code of codes)
      t.same(await rejection(code, "POST /message/send", { body: SEND }), [
        400,
        { msg: "why", status: 400 },
      ]);
    const api = await start();
    const { status, json } = await inject(api, "POST /user/token", {
      body: { uid: "u", token: "t", device_flag: 4 },
    });
    t.same([status, json], [400, { msg: "device_flag must be one of 0, 1, 2", status: 400 }]);
  },
);

t.test(
  "in the wukongim dialect, unknown paths, wrong methods, oversized bodies, wrong content types and outages are answered with 404, 405, 413, 415 and 503, and a response with 401 has no body",
  async (t) => {
    t.match(await rejection("unavailable", "POST /message/send", { body: SEND }), [
      503,
      { msg: "why", status: 503 },
    ]);
    const api = await start();
    const unknownPath = await inject(api, "GET /nothing");
    t.match(unknownPath, { status: 404, json: { status: 404 } });
    const wrongMethod = await inject(api, "GET /channel");
    t.match(wrongMethod, { status: 405, json: { status: 405 } });
    t.equal(wrongMethod.headers.allow, "POST");
    const headers = { "content-type": "text/plain" };
    const wrongType = await inject(api, "POST /channel", { headers, body: GROUP });
    t.match(wrongType, { status: 415, json: { status: 415 } });
    const { endpoint } = api;
    const tooLarge = endpoint.tooLarge({ headers: {} } as never);
    t.match(tooLarge, { status: 413, body: '"status":413' });
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
  },
);

t.test(
  "/message/event and /message/eventsync exist in the wukongim dialect only, and reject callers without permission",
  async (t) => {
    const event = { ...GROUP, client_msg_no: "s", event_id: "e", event_type: "stream.close" };
    const calls = ["/message/event", "/message/eventsync"];
    const strict = await startApi({ dialect: "wukongim", requiresCredential: true });
    const authorization = await strict.login("view", "p");
    for (const path of calls) {
      const { status } = await inject(await startApi(), `POST ${path}`, { body: event });
      t.equal(status, 404, `${path} in the default dialect`);
      t.equal((await inject(strict, `POST ${path}`, { body: event })).status, 401);
      const call = { headers: { authorization }, body: event };
      t.match(await inject(strict, `POST ${path}`, call), { status: 400, json: { status: 403 } });
    }
    const { json } = await inject(await start(), "GET /openapi.json");
    t.ok(calls.every((path) => path in json.paths));
  },
);

t.test(
  "in the wukongim dialect, a login returns a flat object with the time at which the token expires",
  async (t) => {
    const api = await start();
    const body = { username: "ops", password: "p" };
    const { json } = await inject(api, "POST /manager/login", { body });
    t.match(json, { username: "ops", token: /./, permissions: /users:write,/ });
    t.ok(json.exp > 80_000);
    t.notOk("user" in json);
    const wrong = { ...body, password: "wrong" };
    const failed = await inject(api, "POST /manager/login", { body: wrong });
    t.same(
      [failed.status, failed.json],
      [401, { msg: "Invalid username or password", status: 401 }],
    );
  },
);

t.test(
  "in the wukongim dialect, a field that is null counts as absent, and only the number 1 sets a flag",
  async (t) => {
    const api = await start();
    const body = { ...GROUP, ban: 2, large: 1, send_ban: -1, subscribers: null };
    await inject(api, "POST /channel", { body });
    const info = { ...REF, ...OFF, disband: false, large: true, clientEvents: false };
    t.same(api.calls, [{ call: "create", args: [info, []] }]);
    const textFlag = await inject(api, "POST /channel", {
      body: { ...GROUP, ban: "1" },
    });
    t.equal(textFlag.status, 400);
    const header = { no_persist: 7, red_dot: 1, sync_once: null };
    await inject(api, "POST /message/send", { body: { ...SEND, header } });
    t.match(api.calls.at(-1)?.args, [
      { header: { noPersist: false, redDot: true, syncOnce: false } },
    ]);
  },
);

t.test("in the wukongim dialect, a message without a sender is sent by the system", async (t) => {
  const api = await start();
  for (const from_uid of ["", " ", null, undefined]) {
    const body = { ...SEND, from_uid, client_msg_no: "", subscribers: [] };
    t.equal((await inject(api, "POST /message/send", { body })).status, 200);
    const input = { fromUid: "____system", clientMsgNo: undefined };
    t.match(api.calls.at(-1)?.args, [{ ...input, subscribers: undefined }]);
  }
});

t.test(
  "in the wukongim dialect, a command with subscribers but without a channel is sent to each of the subscribers",
  async (t) => {
    const api = await start();
    const { payload } = SEND;
    const header = { sync_once: 1 };
    const body = { payload, header, channel_id: "", channel_type: 0 };
    const { json } = await inject(api, "POST /message/send", {
      body: { ...body, subscribers: ["b", "c"] },
    });
    t.same(json, { status: 200, fail_uids: [], reason: [] });
    t.match(
      api.calls.map(({ args }) => args[0]),
      ["b", "c"].map((id) => ({
        channel: { id, type: 1 },
        fromUid: "____system",
        header: { syncOnce: true },
        subscribers: undefined,
      })),
    );
    for (const invalid of [
      body,
      { ...body, header: {}, subscribers: ["b"] },
      { payload, channel_id: "g" },
    ]) {
      const answer = await inject(api, "POST /message/send", { body: invalid });
      t.match(answer.json, { msg: /^channel_id and channel_type/, status: 400 });
    }
    t.equal(api.calls.length, 2);
  },
);

t.test("in the wukongim dialect, an absent device flag means 0", async (t) => {
  const api = await start();
  await inject(api, "POST /user/token", { body: { uid: "u", token: "t" } });
  await inject(api, "POST /user/device_quit", { body: { uid: "u" } });
  const writes = api.calls.filter(({ call }) => call !== "state");
  t.match(writes, [{ args: [{ flag: 0, level: 0 }] }, { args: ["u", [0]] }]);
});

t.test(
  "in the wukongim dialect, creating an existing channel changes its flags, and absent flags become 0",
  async (t) => {
    for (const path of ["/channel", "/channel/info"]) {
      const { api, channelCalls } = await startWithChannel();
      const body = { ...GROUP, ban: 1, reset: 1, subscribers: ["a"] };
      const { json } = await inject(api, `POST ${path}`, { body });
      t.same(json, { status: 200 });
      const isCreate = path === "/channel";
      t.same(channelCalls, [
        ["addSubscribers", isCreate ? ["a"] : [], isCreate],
        ["update", { ...NO_FLAGS, ban: true }],
      ]);
    }
  },
);

t.test(
  "in the wukongim dialect, adding subscribers to an unknown channel creates the channel",
  async (t) => {
    const calls: string[] = [];
    let exists = false;
    const channels = channelsOf({
      async create() {
        calls.push("create");
        exists = true;
      },
      async addSubscribers() {
        calls.push("addSubscribers");
        if (!exists) throw new BrokerError("channel_not_found");
      },
    });
    const api = await start({ channels });
    const body = { channel_id: "g1", channel_type: 0, subscribers: ["a"] };
    const { status } = await inject(api, "POST /channel/subscriber_add", {
      body,
    });
    t.equal(status, 200);
    t.same(calls, ["addSubscribers", "create", "addSubscribers"]);
  },
);

t.test(
  "in the wukongim dialect, removing subscribers succeeds even if a user is not a subscriber or the channel does not exist",
  async (t) => {
    const api = await start();
    const body = { ...GROUP, subscribers: ["a", " "] };
    await inject(api, "POST /channel/subscriber_remove", { body });
    t.same(api.calls.at(-1)?.args, [REF, ["a"], "permanent", "skip"]);
    t.same(
      await rejection("channel_not_found", "POST /channel/subscriber_remove", {
        body,
      }),
      [200, { status: 200 }],
    );
    const onlyBlank = { ...GROUP, subscribers: [""] };
    const { status } = await inject(api, "POST /channel/subscriber_remove", {
      body: onlyBlank,
    });
    t.equal(status, 400);
  },
);

t.test(
  "in the wukongim dialect, /user/onlinestatus returns a record for each live session",
  async (t) => {
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
    t.same(api.calls, [{ call: "liveSessions", args: [["u"]] }]);
  },
);

/** Returns a stub of the channels with these methods. All other methods fail. */
function channelsOf(methods: Partial<Channels>): Channels {
  const unexpected = async () => {
    throw new Error("unexpected call");
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
    ...methods,
  };
}

t.test(
  "in the wukongim dialect, adding uids to a list of an unknown channel creates the channel, and removing uids succeeds without creating it",
  async (t) => {
    const calls: string[] = [];
    let exists = false;
    const missing = async (name: string) => {
      calls.push(name);
      if (!exists) throw new BrokerError("channel_not_found");
    };
    const channels = channelsOf({
      async create() {
        calls.push("create");
        exists = true;
      },
      changeList: (_channel, list, { kind }) => missing(`${kind} ${list}`),
      removeAllSubscribers: () => missing("removeAll"),
      update: async (channel) => {
        await missing("update");
        return { ...channel, ...OFF, disband: false };
      },
    });
    const api = await start({ channels });
    const callsOf = async (name: string) => {
      const body = { ...GROUP, uids: ["a"] };
      const { json } = await inject(api, `POST /channel/${name}`, { body });
      t.same(json, { status: 200 }, name);
      return calls.splice(0);
    };
    t.same(await callsOf("blacklist_remove"), ["remove denylist"]);
    t.same(await callsOf("whitelist_remove_all"), ["replace allowlist"]);
    t.same(await callsOf("subscriber_remove_all"), ["removeAll"]);
    t.same(await callsOf("delete"), ["update"]);
    const added = ["add denylist", "create", "add denylist"];
    t.same(await callsOf("blacklist_add"), added);
    exists = false;
    const set = ["replace allowlist", "create", "replace allowlist"];
    t.same(await callsOf("whitelist_set"), set);
    t.same(await callsOf("whitelist_set"), ["replace allowlist"]);
  },
);

t.test(
  "in the wukongim dialect, adding uids to a channel that a concurrent call creates does not change the channel's flags",
  async (t) => {
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
      }); // `update` must not be called
      const api = await start({ channels });
      const body = { ...GROUP, subscribers: ["a"], uids: ["a"] };
      const { json } = await inject(api, `POST /channel/${call}`, { body });
      t.same(json, { status: 200 }, call);
    }
  },
);

/**
 * Starts a control plane with an existing channel, and records the calls that change the channel.
 */
async function startWithChannel() {
  const channelCalls: unknown[] = [];
  const channels = channelsOf({
    async create() {
      throw new BrokerError("channel_exists");
    },
    async addSubscribers(_channel, uids, { reset }) {
      channelCalls.push(["addSubscribers", uids, reset]);
    },
    async update(channel, flags) {
      channelCalls.push(["update", flags]);
      return { ...channel, ...OFF, disband: false };
    },
  });
  return { api: await start({ channels }), channelCalls };
}

const REMOVALS: readonly (readonly [string, object])[] = [
  ["/channel/subscriber_remove", { ...GROUP, subscribers: ["a"] }],
  ["/channel/subscriber_remove_all", GROUP],
  ["/channel/delete", GROUP],
  ...["blacklist", "whitelist"].flatMap((list): (readonly [string, object])[] => [
    [`/channel/${list}_remove`, { ...GROUP, uids: ["a"] }],
    [`/channel/${list}_remove_all`, GROUP],
  ]),
];

t.test(
  "in the wukongim dialect, a removal from a missing channel succeeds, and every other error is returned",
  async (t) => {
    const statuses: Partial<Record<ErrorCode, number>> = {
      channel_not_found: 200,
      not_in_channel: 400,
      channel_disbanded: 400,
      forbidden: 400,
      bad_request: 400,
      too_large: 400,
      rate_limited: 429,
      unavailable: 503,
      overloaded: 503,
      disk_full: 503,
      internal: 500,
    };
    for (const [path, body] of REMOVALS)
      for (const [code, status] of Object.entries(statuses)) {
        // The keys of the table are error codes.
        const [actual] = await rejection(code as ErrorCode, `POST ${path}`, { body });
        t.equal(actual, status, `${path} with ${code}`);
      }
  },
);

t.test(
  "in the wukongim dialect, error codes with the status 401, 429, 500 or 503 keep this status, 429 and 503 have a Retry-After header, and all other error codes are answered with 400",
  async (t) => {
    for (const code of Object.keys(HTTP_STATUS) as readonly ErrorCode[]) {
      const status = HTTP_STATUS[code];
      const expected = [400, 401, 429, 500, 503].includes(status) ? status : 400;
      const api = await start();
      api.failure = new BrokerError(code, { message: "why", retryAfterMs: 1500 });
      const reply = await inject(api, "POST /message/send", { body: SEND });
      t.equal(reply.status, expected, code);
      if (expected === 429 || expected === 503)
        t.ok(Number(reply.headers["retry-after"]) >= 1, `${code} has Retry-After`);
    }
  },
);
