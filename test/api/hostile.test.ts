// Hostile bodies against every endpoint that reads one: whatever is sent, the answer is a refusal,
// never a crash [decisions: Limits]. Seeded, so that a failure can be repeated.

import { t } from "../support/suite.ts";
import { LIST_CALLS, startApi, statusOf, type TestApi } from "./harness.ts";

const SEED = 20_261_120;
const CONVERSATION = { uid: "a", channel_id: "g", channel_type: 2 };
const GROUP = { channel_id: "g", channel_type: 2 };
const VALID: Readonly<Record<string, unknown>> = {
  ...Object.fromEntries(
    LIST_CALLS.map((name) => [
      `POST /channel/${name}`,
      name.endsWith("_all") ? GROUP : { ...GROUP, uids: ["a"] },
    ]),
  ),
  "POST /channel/subscriber_remove_all": GROUP,
  "POST /channel/delete": GROUP,
  "POST /channel/messagesync": GROUP,
  "POST /conn/kick": { uid: "u", conn_id: "n1-1" },
  "POST /user/systemuids_add": { uids: ["u"] },
  "POST /user/systemuids_remove": { uids: ["u"] },
  "POST /message/sendbatch": {
    ...{ payload: "eyJ0eXBlIjoxfQ==", from_uid: "u", subscribers: ["v"] },
  },
  "POST /messages": GROUP,
  "POST /message/sync": { uid: "u" },
  "POST /message/syncack": { uid: "u", last_message_seq: 1 },
  "POST /user/token": { uid: "u", token: "t", device_flag: 0, device_level: 1 },
  "POST /user/device_quit": { uid: "u", device_flag: 0 },
  "POST /user/onlinestatus": ["a", "b"],
  "POST /channel": {
    channel_id: "g",
    channel_type: 2,
    ban: 0,
    subscribers: ["a"],
  },
  "POST /channel/info": { channel_id: "g", channel_type: 2, ban: 1 },
  "POST /channel/subscriber_add": {
    channel_id: "g",
    channel_type: 2,
    subscribers: ["a"],
    reset: 0,
  },
  "POST /channel/subscriber_remove": {
    channel_id: "g",
    channel_type: 2,
    subscribers: ["a"],
  },
  "POST /message/send": {
    payload: "eyJ0eXBlIjoxfQ==",
    from_uid: "a",
    channel_id: "g",
    channel_type: 2,
    header: { red_dot: 1 },
    expire: 0,
    client_msg_no: "c",
  },
  "POST /event": {
    client_msg_no: "s",
    channel_id: "g",
    channel_type: 2,
    from_uid: "a",
    event: { type: "t", data: "d", timestamp: 1, id: "e" },
  },
  "POST /conversation/sync": {
    uid: "a",
    version: 1,
    last_msg_seqs: "g:2:1",
    msg_count: 1,
    only_unread: 1,
    exclude_channel_types: [1],
    page: 1,
    page_size: 1,
  },
  "POST /conversations/clearUnread": CONVERSATION,
  "POST /conversations/setUnread": { ...CONVERSATION, unread: 0 },
  "POST /conversations/delete": CONVERSATION,
  "POST /route/batch": ["a"],
  "POST /manager/login": { username: "admin", password: "right" },
};
const TARGETS = Object.keys(VALID);
/** Calls that read a body as `blacklist_add`, `_set` or `_remove_all` does, by the same schema. */
const SAME = new Set(
  [
    ...["subscriber_remove_all", "delete", "blacklist_remove"],
    ...LIST_CALLS.filter((name) => name.startsWith("whitelist_")),
  ].map((name) => `POST /channel/${name}`),
);
/** For what takes long: each schema once. */
const DIFFERENT = TARGETS.filter((target) => !SAME.has(target));

const isRefusal = (status: number) => status >= 400 && status < 500;

/** Numbers that repeat: mulberry32. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

async function refusals(api: TestApi, target: string, bodies: readonly (string | Uint8Array)[]) {
  const through: string[] = [];
  for (const body of bodies) {
    const status = await statusOf(api, target, { body });
    if (!isRefusal(status)) through.push(`${status} ${String(body).slice(0, 100)}`);
  }
  return through;
}

t.test(
  "the table covers every endpoint with a body, and its valid bodies are accepted",
  async (t) => {
    const api = await startApi();
    const posts = api.endpoint.routes
      .filter((one) => one.method === "POST" && one.path !== "/manager/logout")
      .map((one) => `POST ${one.path}`);
    t.same(TARGETS.toSorted(), posts.sort());
    for (const target of TARGETS)
      t.equal(await statusOf(api, target, { body: VALID[target] }), 200, target);
  },
);

t.test("a body truncated at any byte is a refusal", async (t) => {
  const api = await startApi();
  for (const target of TARGETS) {
    const whole = Buffer.from(JSON.stringify(VALID[target]));
    const cuts = Array.from(whole, (_, end) => whole.subarray(0, end));
    t.same(await refusals(api, target, cuts), [], target);
  }
});

t.test("a body of the wrong kind is a refusal", async (t) => {
  const api = await startApi();
  const kinds = [
    "null",
    "true",
    "0",
    '""',
    "-1e999",
    "[[]]",
    "[null]",
    '[{"uid":"a"}]',
    '{"length":1}',
    "{}",
  ];
  for (const target of TARGETS) t.same(await refusals(api, target, kinds), [], target);
});

t.test("deep nesting, in place of the body, of a field or of an item, is a refusal", async (t) => {
  const api = await startApi();
  const deep = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
  const nested = `${'{"a":'.repeat(100_000)}1${"}".repeat(100_000)}`;
  for (const target of DIFFERENT) {
    const [field] = Object.keys(VALID[target] as object);
    const inField = `{${JSON.stringify(field)}:${deep}}`;
    t.same(await refusals(api, target, [deep, nested, inField, `[${deep}]`]), [], target);
  }
});

t.test("deep nesting in an unknown field is ignored", async (t) => {
  const api = await startApi();
  const deep = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
  const body = `{"uid":"u","token":"t","device_flag":0,"x":${deep}}`;
  t.equal(await statusOf(api, "POST /user/token", { body }), 200);
});

t.test("huge bodies are refused quickly", async (t) => {
  const api = await startApi();
  const bodies = [
    `[${"1,".repeat(500_000)}1]`,
    `[${'"",'.repeat(300_000)}""]`,
    `{"subscribers":[${"{},".repeat(300_000)}{}]}`,
    `{"uid":"${"x".repeat(1_000_000)}"}`,
    `{${Array.from({ length: 60_000 }, (_, i) => `"k${i}":1`).join()}}`,
    "[".repeat(1_048_576),
    Buffer.alloc(1_048_576, 0x80),
    Buffer.alloc(2_000_000, 0x20),
  ];
  let costliestMs = 0; // of processor time: what else the machine does is not counted
  for (const target of DIFFERENT)
    for (const body of bodies) {
      const before = process.cpuUsage();
      const status = await statusOf(api, target, { body });
      const { user, system } = process.cpuUsage(before);
      costliestMs = Math.max(costliestMs, (user + system) / 1000);
      t.ok(isRefusal(status), `${target} ${status}`);
    }
  // Explaining each of half a million bad items took 900 ms.
  t.ok(costliestMs < 300, `${costliestMs.toFixed(0)} ms`);
});

t.test(
  "a valid body with any one value replaced by one of another type is a refusal",
  async (t) => {
    const api = await startApi();
    const others = [null, true, 1.5, -7, 1e21, "\ud800", "@", {}, [[]], [null], [{}]];
    for (const target of TARGETS) {
      const valid = VALID[target] as Readonly<Record<string, unknown>>;
      const bodies = Object.keys(valid).flatMap((name) =>
        others
          .filter((other) => !isFree(name, other))
          .map((other) => JSON.stringify(replaced(valid, name, other))),
      );
      t.same(await refusals(api, target, bodies), [], target);
    }
  },
);

/**
 * Texts that are no ids may hold what they like; an empty header says nothing; a login has no rule
 * but its length.
 */
function isFree(name: string, value: unknown): boolean {
  if (name === "header") return JSON.stringify(value) === "{}";
  return value === "@" && ["token", "client_msg_no", "conn_id"].includes(name)
    ? true
    : value === "\ud800" && name === "token";
}

function replaced(valid: Readonly<Record<string, unknown>>, name: string, value: unknown) {
  return Array.isArray(valid) ? valid.with(Number(name), value) : { ...valid, [name]: value };
}

t.test(
  "valid bodies with random bytes changed never end in anything but 200 or a refusal",
  async (t) => {
    const api = await startApi({}, { limits: { attempts: 1e9, windowS: 60, tokenTtlS: 60 } });
    const next = random(SEED);
    const seen = new Set<number>();
    for (const target of TARGETS) {
      const whole = Buffer.from(JSON.stringify(VALID[target]));
      for (let round = 0; round < 300; round++) {
        const body = Buffer.from(whole);
        for (let n = 1 + next() * 4; n >= 1; n--)
          body[Math.floor(next() * body.length)] = Math.floor(next() * 256);
        seen.add(await statusOf(api, target, { body }));
      }
    }
    const surprising = [...seen].filter((status) => status !== 200 && !isRefusal(status));
    t.same(surprising, [], `seed ${SEED}`);
    t.ok(seen.has(400));
  },
);
