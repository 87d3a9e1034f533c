// What holds for every endpoint: bodies, unknown paths, wrong methods, unexpected exceptions, what
// is logged and counted [decisions: Error body, Other statuses].

import { BrokerError } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { inject, startApi } from "./harness.ts";

const TARGET = "POST /user/token";
const BODY = { uid: "u", token: "s3cret-token", device_flag: 0 };

t.test("fields that a body should not have are ignored and named in a header", async (t) => {
  const api = await startApi();
  const ignored = async (target: string, body: object) =>
    (await inject(api, target, { body })).headers["jindou-ignored-fields"];
  t.equal(await ignored(TARGET, BODY), undefined, "none");
  t.equal(await ignored(TARGET, { ...BODY, devicelevel: 1 }), "devicelevel");
  const send = { from_uid: "u", channel_id: "g", channel_type: 2 };
  const payload = "eyJ0eXBlIjoxfQ==";
  const header = { red_dot: 1, reddot: 1 };
  t.equal(
    await ignored("POST /message/send", { ...send, payload, header }),
    "header.reddot",
    "inside an object",
  );
  const event = { type: "x", dat: "" };
  const named = { ...send, client_msg_no: "c", event };
  t.equal(await ignored("POST /event?force=1", named), "event.dat");
  const odd = { ...BODY, "a\r\nset-cookie: b": 1, "": 1 };
  t.equal(await ignored(TARGET, odd), "2 more", "no name can break a header");
  const many = Object.fromEntries([..."abcdefghijkl"].map((one) => [one, 1]));
  t.equal(await ignored(TARGET, { ...BODY, ...many }), "a, b, c, d, e, f, g, h, 4 more");
});

t.test("an unknown path is 404, a wrong method 405 with Allow", async (t) => {
  const api = await startApi();
  t.match((await inject(api, "GET /nothing")).json, {
    status: 404,
    code: "not_found",
  });
  const { status, json, headers } = await inject(api, "GET /user/token");
  t.equal(status, 405);
  t.equal(json.code, "method_not_allowed");
  t.equal(headers.allow, "POST");
  t.equal((await inject(api, "POST /migrate/result")).headers.allow, "GET");
});

t.test("a body over the limit is 413, the transport being told the limit", async (t) => {
  const api = await startApi({ maxBodyBytes: 100 });
  t.equal(api.endpoint.maxBodyBytes, 100);
  const { status, json } = await inject(api, TARGET, {
    body: { ...BODY, more: "x".repeat(100) },
  });
  t.equal(status, 413);
  t.equal(json.code, "too_large");
});

t.test(
  "a content type that is not JSON is 415; JSON in any spelling and none are accepted",
  async (t) => {
    const api = await startApi();
    const send = (type: string) =>
      inject(api, TARGET, { body: BODY, headers: { "content-type": type } });
    for (const type of [
      "",
      "application/json",
      "application/json; charset=utf-8",
      "Application/JSON;charset=UTF-8",
      "application/vnd.x+json",
    ])
      t.equal((await send(type)).status, 200, type);
    for (const type of [
      "text/plain",
      "application/x-www-form-urlencoded",
      "multipart/form-data; boundary=x",
      "application/jsonp",
      "text/html; application/json",
    ])
      t.match((await send(type)).json, {
        status: 415,
        code: "unsupported_media_type",
      });
  },
);

t.test("a body that is empty, no JSON or no UTF-8 is 400 and not echoed", async (t) => {
  const api = await startApi();
  const notUtf8 = Buffer.concat([
    Buffer.from('{"uid":"u","device_flag":0,"token":"'),
    Buffer.from([0xc3, 0x28]),
    Buffer.from('"}'),
  ]);
  for (const body of ["", "{", "{'uid':1}", "s3cret", '{"uid":"a"}x', "\ufeff{}", notUtf8]) {
    const { status, json, text } = await inject(api, TARGET, { body });
    t.equal(status, 400);
    t.equal(json.code, "bad_request");
    t.notMatch(text, /s3cret/);
  }
});

t.test(
  "unknown fields are ignored, a __proto__ field among them [decisions: Unknown body fields]",
  async (t) => {
    const api = await startApi();
    const body =
      '{"uid":"u","token":"t","device_flag":0,"x":{"y":[1]},"__proto__":{"device_level":1}}';
    t.equal((await inject(api, TARGET, { body })).status, 200);
    t.same(api.asked[0]?.args, [{ uid: "u", token: "t", flag: 0, level: 0 }]);
    const poor = '{"__proto__":{"uid":"u","token":"t","device_flag":0}}';
    t.equal((await inject(api, TARGET, { body: poor })).status, 400);
  },
);

t.test(
  "an unexpected exception is 500, tells the caller nothing, and is logged once with its context",
  async (t) => {
    const api = await startApi();
    api.thrown = new TypeError("cannot read x of undefined");
    const { status, json, text } = await inject(api, TARGET, { body: BODY });
    t.equal(status, 500);
    t.equal(json.code, "internal");
    t.notMatch(text, /cannot read/);
    t.equal(api.logged.length, 1);
    const line = JSON.parse(api.logged[0] ?? "");
    t.match(line, {
      level: 50,
      method: "POST",
      path: "/user/token",
      err: { message: /cannot read/ },
    });
  },
);

t.test("an internal BrokerError does not show its message either", async (t) => {
  const api = await startApi();
  api.thrown = new BrokerError("internal", { message: "row 17 is broken" });
  const { status, text } = await inject(api, TARGET, { body: BODY });
  t.equal(status, 500);
  t.notMatch(text, /row 17/);
  t.equal(api.logged.length, 1);
});

t.test("an exception thrown before any promise is answered too", async (t) => {
  const api = await startApi();
  api.store.accessTokenOwner = () => {
    throw new Error("sync");
  };
  const headers = { authorization: `Bearer ${"a".repeat(43)}` };
  t.equal((await inject(api, "GET /migrate/result", { headers })).status, 500);
});

t.test(
  "an outage is 503 with Retry-After and is logged once, however many calls it meets",
  async (t) => {
    const api = await startApi();
    api.thrown = new BrokerError("unavailable", { cause: new Error("EIO") });
    for (let i = 0; i < 5; i++) {
      const { status, headers } = await inject(api, TARGET, { body: BODY });
      t.equal(status, 503);
      t.equal(headers["retry-after"], "1");
    }
    t.equal(api.logged.length, 1);
    t.match(JSON.parse(api.logged[0] ?? ""), {
      level: 40,
      code: "unavailable",
    });
    api.thrown = new BrokerError("overloaded", { retryAfterMs: 7000 });
    t.equal((await inject(api, TARGET, { body: BODY })).headers["retry-after"], "7");
  },
);

t.test("a caller's own errors are not logged, and secrets never are", async (t) => {
  const api = await startApi();
  api.thrown = new BrokerError("reserved_uid");
  await inject(api, TARGET, { body: BODY });
  await inject(api, TARGET, { body: { ...BODY, device_flag: 9 } });
  await inject(api, "POST /manager/login", {
    body: { username: "admin", password: "s3cret-password" },
  });
  t.same(api.logged, []);
  api.thrown = new Error("boom");
  await inject(api, TARGET, { body: BODY });
  t.notMatch(api.logged.join(""), /s3cret/);
});

t.test("details of a refusal by the broker are passed on", async (t) => {
  const api = await startApi();
  const details = [{ path: "uid", message: "reserved" }];
  api.thrown = new BrokerError("reserved_uid", { details });
  t.same((await inject(api, TARGET, { body: BODY })).json.details, details);
});

t.test("each reply is counted by its route and status", async (t) => {
  const api = await startApi({ requiresCredential: true });
  await inject(api, TARGET, { body: BODY });
  await inject(api, "GET /healthz");
  const headers = { authorization: await api.login() };
  await inject(api, TARGET, { body: BODY, headers });
  t.same(api.observed, [
    ["/user/token", 401],
    ["/healthz", 200],
    ["/user/token", 200],
  ]);
});
