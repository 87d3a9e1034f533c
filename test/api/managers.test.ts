// Tests of the endpoints /manager/login and /manager/logout.

import { BrokerError } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { inject, startApi, type TestApi } from "./harness.ts";

const LOGIN = "POST /manager/login";
const RIGHT = { username: "admin", password: "right" };
const WRONG = { username: "admin", password: "wrong" };

function login(api: TestApi, body: object, remoteAddress = "10.0.0.1") {
  return inject(api, LOGIN, { body, remoteAddress });
}

t.test(
  "POST /manager/login returns a token, its lifetime, and the user with role and permissions",
  async (t) => {
    const api = await startApi();
    const { status, json } = await login(api, RIGHT);
    t.equal(status, 200);
    t.match(json.token, /^[A-Za-z0-9_-]{43}$/);
    t.equal(json.expire, 86_400);
    t.same(json.user, { username: "admin", role: "admin", permissions: ["*"] });
    const ops = await login(api, { username: "ops", password: "p" });
    t.same(ops.json.user.permissions, [
      "users:write",
      "channels:write",
      "messages:write",
      "events:read",
      "events:write",
      "streams:read",
      "streams:write",
      "webhooks:read",
      "webhooks:write",
      "system:read",
    ]);
  },
);

t.test(
  "POST /manager/login returns the same 401 for a wrong password and for an unknown username",
  async (t) => {
    const api = await startApi();
    const wrongPassword = await login(api, WRONG);
    const unknownUser = await login(api, { username: "nobody", password: "right" });
    t.equal(wrongPassword.status, 401);
    t.equal(wrongPassword.json.code, "bad_credentials");
    t.equal(wrongPassword.text, unknownUser.text);
  },
);

t.test(
  "POST /manager/login rejects a body without a valid username and password with 400",
  async (t) => {
    const api = await startApi();
    for (const body of [
      {},
      { username: "admin" },
      { password: "right" },
      { ...RIGHT, username: "" },
      { ...RIGHT, password: 5 },
      { ...RIGHT, password: null },
      { ...RIGHT, username: "x".repeat(129) },
      { ...RIGHT, password: "x".repeat(1025) },
    ])
      t.equal((await login(api, body)).status, 400);
  },
);

t.test(
  "POST /manager/login accepts the correct password after 5 failed logins with the same username from other addresses",
  async (t) => {
    const api = await startApi();
    for (let i = 0; i < 5; i++) t.equal((await login(api, WRONG, `10.0.0.${i}`)).status, 401);
    t.equal((await login(api, RIGHT, "10.0.1.1")).status, 200);
  },
);

t.test(
  "POST /manager/login rejects further logins with 429 after 5 failed logins from the same address",
  async (t) => {
    const api = await startApi();
    for (let i = 0; i < 5; i++) await login(api, { username: `n${i}`, password: "x" });
    api.pass(15_000);
    const { status, headers, json } = await login(api, RIGHT);
    t.equal(status, 429);
    t.equal(json.code, "too_many_attempts");
    t.equal(headers["retry-after"], "45");
    t.equal((await login(api, RIGHT, "10.0.0.2")).status, 200);
  },
);

t.test(
  "POST /manager/login needs no credential and ignores an invalid credential, even if other calls need a credential",
  async (t) => {
    const api = await startApi({ requiresCredential: true, staticToken: "s" });
    const headers = { authorization: "Bearer nonsense", token: "wrong" };
    const { status } = await inject(api, LOGIN, { body: RIGHT, headers });
    t.equal(status, 200);
  },
);

t.test("POST /manager/login is rejected with 503 if the store is unreachable", async (t) => {
  const api = await startApi();
  api.store.putAccessToken = () => Promise.reject(new BrokerError("unavailable"));
  t.equal((await login(api, RIGHT)).status, 503);
});

t.test("POST /manager/logout revokes the access token that was sent with it", async (t) => {
  const api = await startApi();
  const headers = { authorization: await api.login() };
  const otherHeaders = { authorization: await api.login() };
  const read = (sent: Record<string, string>) =>
    inject(api, "GET /migrate/result", { headers: sent });
  t.equal((await read(headers)).status, 200);
  const answer = await inject(api, "POST /manager/logout", { headers });
  t.equal(answer.text, '{"status":"ok"}');
  t.equal((await read(headers)).status, 401);
  t.equal((await read(otherHeaders)).status, 200, "the manager's other tokens stay valid");
  const repetition = await inject(api, "POST /manager/logout", { headers });
  t.equal(repetition.status, 401);
});

t.test(
  "POST /manager/logout is rejected with 401 without an access token, even with the static token",
  async (t) => {
    const unprotectedApi = await startApi();
    t.equal((await inject(unprotectedApi, "POST /manager/logout")).status, 401);
    const api = await startApi({ requiresCredential: true, staticToken: "s" });
    const headers = { token: "s" };
    t.equal((await inject(api, "POST /manager/logout", { headers })).status, 401);
  },
);
