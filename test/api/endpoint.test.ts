// Tests of the rules for all calls: bodies, unknown paths, wrong methods, unexpected exceptions,
// the log and the metrics [decisions: Error body; decisions: Other statuses].

import { BrokerError } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { inject, startApi } from "./harness.ts";

const TARGET = "POST /user/token";
const BODY = { uid: "u", token: "s3cret-token", device_flag: 0 };

t.test(
  "unknown fields of a body are ignored and named in the header jindou-ignored-fields",
  async (t) => {
    const api = await startApi();
    const ignoredFields = async (target: string, body: object) =>
      (await inject(api, target, { body })).headers["jindou-ignored-fields"];
    t.equal(
      await ignoredFields(TARGET, BODY),
      undefined,
      "a body without unknown fields adds no header",
    );
    t.equal(await ignoredFields(TARGET, { ...BODY, devicelevel: 1 }), "devicelevel");
    const send = { from_uid: "u", channel_id: "g", channel_type: 2 };
    const payload = "eyJ0eXBlIjoxfQ==";
    const header = { red_dot: 1, reddot: 1 };
    t.equal(
      await ignoredFields("POST /message/send", { ...send, payload, header }),
      "header.reddot",
      "unknown fields of nested objects are named",
    );
    const event = { type: "x", dat: "" };
    const eventBody = { ...send, client_msg_no: "c", event };
    t.equal(await ignoredFields("POST /event?force=1", eventBody), "event.dat");
    const unsafeNames = { ...BODY, "a\r\nset-cookie: b": 1, "": 1 };
    t.equal(
      await ignoredFields(TARGET, unsafeNames),
      "2 more",
      "names that are not safe in a header are only counted",
    );
    const manyFields = Object.fromEntries([..."abcdefghijkl"].map((name) => [name, 1]));
    t.equal(
      await ignoredFields(TARGET, { ...BODY, ...manyFields }),
      "a, b, c, d, e, f, g, h, 4 more",
    );
  },
);

t.test(
  "an unknown path is rejected with 404, and a wrong method with 405 and the header Allow",
  async (t) => {
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
  },
);

t.test(
  "a body larger than `maxBodyBytes` is rejected with 413, and the transport receives this limit",
  async (t) => {
    const api = await startApi({ maxBodyBytes: 100 });
    t.equal(api.endpoint.maxBodyBytes, 100);
    const { status, json } = await inject(api, TARGET, {
      body: { ...BODY, more: "x".repeat(100) },
    });
    t.equal(status, 413);
    t.equal(json.code, "too_large");
  },
);

t.test(
  "a content type other than JSON is rejected with 415, and a missing content type is accepted",
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

t.test(
  "a body that is empty, not JSON or not UTF-8 is rejected with 400, and the reply does not quote it",
  async (t) => {
    const api = await startApi();
    const notUtf8 = Buffer.concat([
      Buffer.from('{"uid":"u","device_flag":0,"token":"'),
      Buffer.from([0xc3, 0x28]),
      Buffer.from('"}'),
    ]);
    for (const [body, error] of [
      ["", "The body is empty; send a JSON object"],
      [" \r\n", "The body is empty; send a JSON object"],
      ["\ufeff", "The body is empty; send a JSON object"],
      ["{", /^The body is not valid JSON/],
      ["{'uid':1}", /^The body is not valid JSON: the error is at character 2$/],
      ["s3cret", /^The body is not valid JSON/],
      ['{"uid":"a"}x', /^The body is not valid JSON: the error is at character 12$/],
      ["\ufeff\ufeff{}", /^The body is not valid JSON/],
      [notUtf8, "The body is not valid UTF-8"],
    ] as const) {
      const { status, json, text } = await inject(api, TARGET, { body });
      t.equal(status, 400);
      t.match(json, { code: "bad_request", error });
      t.notMatch(text, /s3cret/);
    }
    const { json } = await inject(api, "POST /user/onlinestatus", { body: "" });
    t.equal(json.error, "The body is empty; send a JSON array");
  },
);

t.test("a byte order mark in front of a body is skipped", async (t) => {
  const api = await startApi();
  const { status } = await inject(api, TARGET, { body: `\ufeff${JSON.stringify(BODY)}` });
  t.equal(status, 200);
});

t.test(
  "a body with a Content-Encoding is rejected with 415, and the header Accept-Encoding of the reply is identity",
  async (t) => {
    const api = await startApi();
    for (const [encoding, named] of [
      ["gzip", " (gzip)"],
      ["br", " (br)"],
      ["gzip, deflate", ""],
      ["x".repeat(99), ""],
    ] as const) {
      const call = { body: BODY, headers: { "content-encoding": encoding } };
      const { json, headers, status } = await inject(api, TARGET, call);
      t.equal(status, 415);
      t.equal(json.code, "unsupported_encoding");
      t.ok(json.error.startsWith(`The body has a Content-Encoding${named}, which`), json.error);
      t.equal(headers["accept-encoding"], "identity");
    }
    for (const encoding of ["identity", "Identity", ""]) {
      const call = { body: BODY, headers: { "content-encoding": encoding } };
      t.equal((await inject(api, TARGET, call)).status, 200, encoding);
    }
  },
);

t.test(
  "unknown query parameters are ignored, and every reply names them in the header jindou-ignored-parameters",
  async (t) => {
    const api = await startApi();
    const ignored = async (target: string, body?: object) =>
      (await inject(api, target, body && { body })).headers["jindou-ignored-parameters"];
    const history = "GET /channel/messages?channel_id=g&channel_type=2";
    t.equal(await ignored(history), undefined);
    t.equal(await ignored(`${history}&limt=1&order=asc&limt=2`), "limt");
    t.equal(await ignored(`${history}&a%0d%0ab=1&&x=`), "x, 1 more");
    t.equal(
      await ignored("GET /channel/messages?chanel_id=g"),
      "chanel_id",
      "the header is in an error about the query",
    );
    t.equal(
      await ignored(`${TARGET}?uid=u`, BODY),
      "uid",
      "every parameter is named if the call has no parameters",
    );
    t.equal(await ignored("GET /healthz?verbose"), "verbose");
    const event = { client_msg_no: "c", channel_id: "g", channel_type: 2, event: { type: "x" } };
    t.equal(await ignored("POST /event?force=1", event), undefined);
    const stream = "GET /stream/2/g/c?uid=u";
    t.equal(
      await ignored(`${stream}&from=1&channel_id=x`),
      "channel_id",
      "a query parameter with the name of a path segment is named",
    );
    api.failure = new BrokerError("stream_running");
    t.equal(
      await ignored("POST /event?forse=1", event),
      "forse",
      "the header is in an error from the broker",
    );
  },
);

t.test(
  "GET / describes the API and, like the error for a WebSocket handshake, names the port for clients",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    const { status, json } = await inject(api, "GET /");
    t.equal(status, 200);
    t.equal(json.openapi, "/openapi.json");
    t.match(json.message, /Clients connect by WebSocket to port 5200 \(client\.listen\)\./);
    const headers = { upgrade: "WebSocket" };
    for (const path of ["/", "/ws", "/socket.io/"]) {
      const { status, json } = await inject(api, `GET ${path}`, { headers });
      t.equal(status, 400, path);
      t.match(json, { code: "not_websocket", error: /clients connect to port 5200/ });
    }
    t.equal(
      (await inject(api, "GET /healthz", { headers })).status,
      200,
      "the header Upgrade is ignored on a path of the API",
    );
    t.equal((await inject(api, "GET /ws", { headers: { upgrade: "h2c" } })).status, 404);
  },
);

t.test("unknown fields are ignored, including __proto__", async (t) => {
  const api = await startApi();
  const body =
    '{"uid":"u","token":"t","device_flag":0,"x":{"y":[1]},"__proto__":{"device_level":1}}';
  t.equal((await inject(api, TARGET, { body })).status, 200);
  t.same(api.calls[0]?.args, [{ uid: "u", token: "t", flag: 0, level: 0 }]);
  const onlyProto = '{"__proto__":{"uid":"u","token":"t","device_flag":0}}';
  t.equal((await inject(api, TARGET, { body: onlyProto })).status, 400);
});

t.test(
  "an unexpected exception is answered with 500 without its message, and logged once with its context",
  async (t) => {
    const api = await startApi();
    api.failure = new TypeError("cannot read x of undefined");
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

t.test(
  "an internal BrokerError is answered with 500 without its message, and logged",
  async (t) => {
    const api = await startApi();
    api.failure = new BrokerError("internal", { message: "row 17 is broken" });
    const { status, text } = await inject(api, TARGET, { body: BODY });
    t.equal(status, 500);
    t.notMatch(text, /row 17/);
    t.equal(api.logged.length, 1);
  },
);

t.test("an exception that is thrown synchronously is answered with 500", async (t) => {
  const api = await startApi();
  api.store.accessTokenOwner = () => {
    throw new Error("sync");
  };
  const headers = { authorization: `Bearer ${"a".repeat(43)}` };
  t.equal((await inject(api, "GET /migrate/result", { headers })).status, 500);
});

t.test(
  "an outage of the store is answered with 503 and Retry-After, and logged at most once a second",
  async (t) => {
    const api = await startApi();
    api.failure = new BrokerError("unavailable", { cause: new Error("EIO") });
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
    api.failure = new BrokerError("overloaded", { retryAfterMs: 7000 });
    t.equal((await inject(api, TARGET, { body: BODY })).headers["retry-after"], "7");
  },
);

t.test("errors caused by a caller are not logged, and the log contains no secrets", async (t) => {
  const api = await startApi();
  api.failure = new BrokerError("reserved_uid");
  await inject(api, TARGET, { body: BODY });
  await inject(api, TARGET, { body: { ...BODY, device_flag: 9 } });
  await inject(api, "POST /manager/login", {
    body: { username: "admin", password: "s3cret-password" },
  });
  t.same(api.logged, []);
  api.failure = new Error("boom");
  await inject(api, TARGET, { body: BODY });
  t.notMatch(api.logged.join(""), /s3cret/);
});

t.test("the details of a BrokerError are returned to the caller", async (t) => {
  const api = await startApi();
  const details = [{ path: "uid", message: "reserved" }];
  api.failure = new BrokerError("reserved_uid", { details });
  t.same((await inject(api, TARGET, { body: BODY })).json.details, details);
});

t.test("every reply is counted by its route and status", async (t) => {
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
