// Sends hostile bodies to every call that reads a body. Every invalid body must be rejected with a
// 4xx status, and the process must not crash [decisions: Limits]. Random bodies come from a seed,
// so that a failure can be reproduced.

import { leastBelow } from "../support/least.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { inject, LIST_CALLS, startApi, statusOf, type TestApi } from "./harness.ts";

const SEED = 20_261_120;
/** Number of bodies with random changes for each call. */
const CHANGED_BODIES = volume(300, "JINDOU_TEST_BODIES", 100);
const CONVERSATION = { uid: "a", channel_id: "g", channel_type: 2 };
const GROUP = { channel_id: "g", channel_type: 2 };
/** A valid body for each call. */
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
  "POST /message": { ...GROUP, client_msg_no: "c" },
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
  "POST /stream/cancel": { ...GROUP, client_msg_no: "s", uid: "a" },
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
  "POST /conversation/channels": { uid: "a" },
  "POST /conversation/syncByChannels": { uid: "a", channels: [GROUP], msg_count: 1 },
  "POST /conversations/clearUnread": CONVERSATION,
  "POST /conversations/setUnread": { ...CONVERSATION, unread: 0 },
  "POST /conversations/delete": CONVERSATION,
  "POST /route/batch": ["a"],
  "POST /events/feed": { feed: "on" },
  "POST /v1/sign": { path: "/v1/stream/a", access: "read", expires_in: 60, from_uid: "u" },
  "POST /webhooks": { url: "https://example.com/", types: ["message.*"], batch: { max: 1 } },
  "POST /webhooks/:id/replay": { after: "oldest", types: ["*"] },
  "POST /webhooks/:id/secrets": { overlapS: 0 },
  "POST /manager/login": { username: "admin", password: "right" },
};
/** Calls without a body, and calls whose body consists of lines or of any bytes. */
const WITHOUT_JSON: ReadonlySet<string> = new Set([
  "/manager/logout",
  "/admin/import",
  "/admin/import/open",
  "/admin/import/close",
  "/v1/stream/*",
  "/v1/sign/rotate",
  "/webhooks/:id/test",
  "/webhooks/:id/failures/:event_id/retry",
]);
const TARGETS = Object.keys(VALID);
/** Calls whose body has the same schema as that of another call in `TARGETS`. */
const DUPLICATE_SCHEMAS = new Set(
  [
    ...["subscriber_remove_all", "delete", "blacklist_remove"],
    ...LIST_CALLS.filter((name) => name.startsWith("whitelist_")),
  ].map((name) => `POST /channel/${name}`),
);
/** One call for each schema, for tests that take long. */
const TARGETS_BY_SCHEMA = TARGETS.filter((target) => !DUPLICATE_SCHEMAS.has(target));

const isRefusal = (status: number) => status >= 400 && status < 500;

/** Returns a generator of reproducible random numbers (mulberry32). */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Sends all bodies and returns those that were not rejected with a 4xx status. */
async function acceptedBodies(
  api: TestApi,
  target: string,
  bodies: readonly (string | Uint8Array)[],
) {
  const accepted: string[] = [];
  for (const body of bodies) {
    const status = await statusOf(api, target, { body });
    if (!isRefusal(status)) accepted.push(`${status} ${String(body).slice(0, 100)}`);
  }
  return accepted;
}

t.test(
  "every POST call with a JSON body accepts the valid body that the other tests change",
  async (t) => {
    const api = await startApi();
    const posts = api.endpoint.routes
      .filter(({ method, path }) => method === "POST" && !WITHOUT_JSON.has(path))
      .map(({ path }) => `POST ${path}`);
    t.same(TARGETS.toSorted(), posts.sort());
    for (const target of TARGETS)
      t.ok((await statusOf(api, target, { body: VALID[target] })) < 300, target);
  },
);

t.test("a body that is truncated at any byte is rejected", async (t) => {
  const api = await startApi();
  for (const target of TARGETS) {
    const body = Buffer.from(JSON.stringify(VALID[target]));
    const prefixes = Array.from(body, (_, end) => body.subarray(0, end));
    t.same(await acceptedBodies(api, target, prefixes), [], target);
  }
});

t.test("a body of the wrong JSON type is rejected", async (t) => {
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
  for (const target of TARGETS) t.same(await acceptedBodies(api, target, kinds), [], target);
});

t.test("a deeply nested body, field or item is rejected", async (t) => {
  const api = await startApi();
  const deep = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
  const nested = `${'{"a":'.repeat(100_000)}1${"}".repeat(100_000)}`;
  for (const target of TARGETS_BY_SCHEMA) {
    const [field] = Object.keys(VALID[target] as object);
    const inField = `{${JSON.stringify(field)}:${deep}}`;
    t.same(await acceptedBodies(api, target, [deep, nested, inField, `[${deep}]`]), [], target);
  }
});

t.test("an unknown field that is deeply nested is ignored", async (t) => {
  const api = await startApi();
  const deep = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
  const body = `{"uid":"u","token":"t","device_flag":0,"x":${deep}}`;
  t.equal(await statusOf(api, "POST /user/token", { body }), 200);
});

t.test("a huge body is rejected with less than 300 ms of processor time", async (t) => {
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
  /** Bound of the CPU time. Explaining each of half a million invalid items took 900 ms. */
  const boundMs = 300;
  let maxCpuMs = 0;
  for (const target of TARGETS_BY_SCHEMA)
    for (const body of bodies) {
      // Other load of the machine increases the processor time less than the elapsed time.
      const cpuMs = await leastBelow(boundMs, 3, async () => {
        const before = process.cpuUsage();
        const status = await statusOf(api, target, { body });
        const { user, system } = process.cpuUsage(before);
        t.ok(isRefusal(status), `${target} is rejected, not answered with ${status}`);
        return (user + system) / 1000;
      });
      maxCpuMs = Math.max(maxCpuMs, cpuMs);
    }
  t.ok(maxCpuMs < boundMs, `the most expensive body took ${maxCpuMs.toFixed(0)} ms`);
});

t.test("a body with one invalid value is rejected", async (t) => {
  const api = await startApi();
  const values = [true, 1.5, -7, 1e21, "\ud800", "@", {}, [[]], [null], [{}]];
  for (const target of TARGETS) {
    const valid = VALID[target] as Readonly<Record<string, unknown>>;
    const bodies = Object.keys(valid).flatMap((name) =>
      values
        .filter((value) => !isValid(name, value))
        .map((value) => JSON.stringify(replaced(valid, name, value))),
    );
    t.same(await acceptedBodies(api, target, bodies), [], target);
  }
});

/**
 * Returns true if the value is valid for this field: an empty header, or a string that may have any
 * characters.
 */
function isValid(name: string, value: unknown): boolean {
  if (name === "header" || name === "batch") return JSON.stringify(value) === "{}";
  if (name === "version") return value === 1e21;
  if (name === "last_msg_seqs") return typeof value === "string";
  return value === "@" && ["token", "client_msg_no", "conn_id", "url", "after"].includes(name);
}

/** Returns the body with one field or item replaced. */
function replaced(valid: Readonly<Record<string, unknown>>, name: string, value: unknown) {
  return Array.isArray(valid) ? valid.with(Number(name), value) : { ...valid, [name]: value };
}

t.test(
  "a valid body with random bytes changed is either accepted or rejected with 4xx",
  async (t) => {
    const api = await startApi({}, { limits: { attempts: 1e9, windowS: 60, tokenTtlS: 60 } });
    const nextRandom = random(SEED);
    const statuses = new Set<number>();
    for (const target of TARGETS) {
      const valid = Buffer.from(JSON.stringify(VALID[target]));
      for (let round = 0; round < CHANGED_BODIES; round++) {
        const body = Buffer.from(valid);
        for (let n = 1 + nextRandom() * 4; n >= 1; n--)
          body[Math.floor(nextRandom() * body.length)] = Math.floor(nextRandom() * 256);
        statuses.add(await statusOf(api, target, { body }));
      }
    }
    const unexpected = [...statuses].filter((status) => status > 201 && !isRefusal(status));
    t.same(unexpected, [], `every status is 200 or 4xx with seed ${SEED}`);
    t.ok(statuses.has(400));
  },
);

const LINE = {
  ...{ kind: "message", ...GROUP, from_uid: "a", message_seq: 1, message_id: "1" },
  ...{ timestamp: 1, client_msg_no: "c", payload: "eyJ0eXBlIjoxfQ==" },
};

t.test("a hostile line of an import is refused, and does not affect other lines", async (t) => {
  const api = await startApi();
  const headers = { "content-type": "application/x-ndjson" };
  const post = (body: string | Uint8Array) => inject(api, "POST /admin/import", { headers, body });
  const line = JSON.stringify(LINE);
  const deep = `${"[".repeat(100_000)}${"]".repeat(100_000)}`;
  const hostile = [
    ...Array.from({ length: line.length - 1 }, (_, end) => line.slice(0, end + 1)),
    ...["null", "0", "[]", "{}", deep, `{"kind":${deep}}`, '{"kind":"constructor"}'],
    ...[null, [], {}, -1, 1.5, 1e300, "\ud800", "a@b", true].flatMap((value) =>
      ["channel_id", "channel_type", "from_uid", "message_seq", "message_id", "payload"].map(
        (field) => JSON.stringify({ ...LINE, [field]: value }),
      ),
    ),
  ];
  const { status, json } = await post([...hostile, line].join("\n"));
  t.equal(status, 200);
  t.equal(json.stored, 1, "the valid line is stored");
  t.same(
    json.refused.map(({ line: number }: { line: number }) => number),
    hostile.map((_, at) => at + 1),
  );
  t.equal((await post(Buffer.from([0xff, 0xfe]))).status, 400);
  t.equal((await post("")).status, 400);
});
