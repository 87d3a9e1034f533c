// Rules for all calls of the control plane: error bodies, content types, unknown fields, and limits
// of bodies, ids and lists.

import { once } from "node:events";
import { request } from "node:http";
import { t } from "../support/suite.ts";
import { person, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

/** POSTs the text unchanged. Returns the status and the parsed body. */
async function post(path: string, body: string, type?: string) {
  const headers: Record<string, string> = {};
  if (type !== undefined) headers["content-type"] = type;
  const url = `http://127.0.0.1:${world.apiPort}${path}`;
  const bytes = new TextEncoder().encode(body); // a string would set its own content type
  const response = await fetch(url, { method: "POST", body: bytes, headers });
  return { status: response.status, body: await response.json() };
}

// Covers [decisions: Error body]
t.test(
  "an error body has the fields error, code and status, and that of a validation error also has details",
  async (t) => {
    const invalid = await world.call("/user/token", { uid: 5 });
    t.equal(invalid.status, 400);
    const { error, details, ...fields } = invalid.body;
    t.type(error, "string");
    t.same(fields, { code: "bad_request", status: 400 });
    for (const detail of details) t.same(Object.keys(detail).sort(), ["message", "path"]);
    t.ok(details.some(({ path }: { path: string }) => path === "uid"));
    const missing = await world.call("/channel/info", {
      ...wire(person("none")),
    });
    t.same(Object.keys(missing.body).sort(), ["code", "error", "status"]);
  },
);

// Covers [decisions: Other statuses 415]
t.test(
  "a content type that is not JSON is answered with 415, and a missing content type or JSON with parameters is accepted",
  async (t) => {
    const path = "/user/onlinestatus";
    for (const type of ["text/plain", "application/x-www-form-urlencoded"])
      t.match(await post(path, "[]", type), {
        status: 415,
        body: { code: "unsupported_media_type" },
      });
    for (const type of [undefined, "application/json", "application/json; charset=utf-8"])
      t.same(await post(path, "[]", type), { status: 200, body: [] });
  },
);

// Covers [decisions: Error body]
t.test("a body that is not JSON is answered with 400", async (t) => {
  for (const body of ["", "{", "[}", "nul"])
    t.match(await post("/user/onlinestatus", body), {
      status: 400,
      body: { code: "bad_request" },
    });
});

// Covers [decisions: Other statuses 413; decisions: Limits]
t.test("a body over 1 MiB is answered with 413, with or without Content-Length", async (t) => {
  const body = (bytes: number) => `["${"x".repeat(bytes - 4)}"]`;
  const path = "/user/onlinestatus";
  const over = await post(path, body(1_048_577), "application/json");
  t.match(over, { status: 413, body: { code: "too_large", status: 413 } });
  const largest = await post(path, body(1_048_576), "application/json");
  t.match(largest, { status: 400, body: { code: "bad_id" } });
  t.equal(await postStreamed(path, 1_048_577), 413);
});

/**
 * POSTs `bytes` bytes without Content-Length and without an end, so that all bytes are read before
 * the response. Returns the status.
 */
async function postStreamed(path: string, bytes: number): Promise<number> {
  const { apiPort: port } = world;
  const call = request({ host: "127.0.0.1", port, path, method: "POST" });
  call.write("x".repeat(bytes));
  const [response] = await once(call, "response");
  call.on("error", () => response.destroy()); // the server closes the connection
  call.destroy();
  return response.statusCode;
}

// Covers [decisions: Unknown body fields]
t.test("unknown fields of a body are accepted and ignored", async (t) => {
  const uid = world.name("alice");
  const body = { uid, token: "t", device_flag: 0, nonsense: { deep: [1] } };
  t.same(await world.ok("/user/token", body), { status: "ok" });
  const header = { no_persist: 0, nonsense: 1 };
  const fields = { header, nonsense: "x" };
  t.equal((await world.send(uid, person("bob"), "x", fields)).status, 200);
});

// Covers [decisions: Limits]
t.test(
  "an id must have 1 to 128 characters and must not contain a control character, @, # or &",
  async (t) => {
    const register = (uid: string) =>
      world.call("/user/token", { uid, token: "t", device_flag: 0 });
    for (const uid of ["x", "x".repeat(128), "用户-1 ü😀"])
      t.equal((await register(uid)).status, 200, `${uid} is accepted`);
    for (const uid of ["", "x".repeat(129), "a@", "#a", "a&b", "a\n", "\u007f"])
      t.match(await register(uid), { status: 400, body: { code: "bad_id" } });
  },
);

// Covers [decisions: Limits]
t.test(
  "a client_msg_no with up to 128 characters is accepted, and a longer one is refused",
  async (t) => {
    const send = async (client_msg_no: string) => {
      const bob = person(world.name("bob"));
      return (await world.send("alice", bob, "x", { client_msg_no })).status;
    };
    t.equal(await send("@".repeat(128)), 200);
    t.equal(await send("@".repeat(129)), 400);
    t.equal(await send(""), 200, "an empty client_msg_no counts as absent");
  },
);

// Covers [decisions: Limits]
t.test(
  "a list of subscribers or uids may have 10,000 entries, and a longer list is refused with 400",
  async (t) => {
    const maximum = Array.from({ length: 10_000 }, (_, i) => `u${i}`);
    const over = [...maximum, "one-more"];
    const channel = { channel_id: world.name("group"), channel_type: 2 };
    const calls = [
      ["/channel", (subscribers: string[]) => ({ ...channel, subscribers })],
      ["/channel/subscriber_add", (subscribers: string[]) => ({ ...channel, subscribers })],
      ["/channel/subscriber_remove", (subscribers: string[]) => ({ ...channel, subscribers })],
      ["/user/onlinestatus", (uids: string[]) => uids],
    ] as const;
    for (const [path, bodyOf] of calls) {
      const refused = await world.refusal(path, bodyOf(over));
      t.equal(refused, "400 bad_request", `${path} refuses 10,001 entries`);
      await world.ok(path, bodyOf(maximum));
    }
  },
);

// Covers [decisions: Limits]
t.test("the limits of lists, bodies and payloads are configurable", async (t) => {
  const small = await startWorld(t, {
    JINDOU_API_MAX_SUBSCRIBERS_PER_CALL: "2",
    JINDOU_API_MAX_BODY_BYTES: "8192",
    JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "1024",
  });
  const subscribers = ["a", "b", "c"];
  const body = { channel_id: "g", channel_type: 2, subscribers };
  t.equal(await small.refusal("/channel", body), "400 bad_request");
  const path = "/user/onlinestatus";
  const uid = "x".repeat(9000);
  t.equal(await small.refusal(path, [uid]), "413 too_large");
  const response = await small.send("a", person("b"), "x".repeat(1024));
  t.match(response, { status: 400, body: { code: "too_large" } });
});
