// Tests of the user endpoints: /user/token, /user/device_quit and /user/onlinestatus.

import { BrokerError } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { inject, startApi } from "./harness.ts";

const TOKEN = { uid: "u1", token: "t1", device_flag: 1, device_level: 1 };

t.test("POST /user/token registers uid, token, flag and level, and returns ok", async (t) => {
  const api = await startApi();
  const answer = await inject(api, "POST /user/token", { body: TOKEN });
  t.equal(answer.status, 200);
  t.equal(answer.text, '{"status":"ok"}');
  const input = { uid: "u1", token: "t1", flag: 1, level: 1 };
  t.same(api.calls, [{ call: "setToken", args: [input] }]);
});

t.test("POST /user/token registers a secondary device if device_level is absent", async (t) => {
  const api = await startApi();
  const { device_level: _, ...body } = TOKEN;
  await inject(api, "POST /user/token", { body });
  t.match(api.calls[0]?.args, [{ level: 0 }]);
});

t.test("POST /user/token rejects a device_flag other than 0, 1 and 2 with 400", async (t) => {
  const api = await startApi();
  for (const device_flag of [-1, 3, 1.5, "1", true, null, [1], 1e300]) {
    const body = { ...TOKEN, device_flag };
    const { status, json } = await inject(api, "POST /user/token", { body });
    t.equal(status, 400, JSON.stringify(device_flag));
    t.match(json, {
      code: "bad_request",
      details: [{ path: "device_flag" }],
    });
  }
  t.same(api.calls, []);
});

t.test("POST /user/token rejects a device_level other than 0 and 1 with 400", async (t) => {
  const api = await startApi();
  for (const device_level of [-1, 2, 0.5, "0", false]) {
    const body = { ...TOKEN, device_level };
    const { status, json } = await inject(api, "POST /user/token", { body });
    t.equal(status, 400, JSON.stringify(device_level));
    t.match(json.details, [{ path: "device_level" }]);
  }
});

t.test("the error of POST /user/token names each missing field", async (t) => {
  const api = await startApi();
  const { status, json } = await inject(api, "POST /user/token", {
    body: {},
  });
  t.equal(status, 400);
  t.same(
    json.details.map(({ path }: { path: string }) => path),
    ["uid", "token", "device_flag"],
  );
  const empty = { ...TOKEN, token: "" };
  t.equal((await inject(api, "POST /user/token", { body: empty })).status, 400);
});

t.test(
  "POST /user/token rejects uids that are empty or too long, or that contain control characters, lone surrogates, @, # or &",
  async (t) => {
    const api = await startApi();
    const invalid = [
      "",
      "a@b",
      "#",
      "a&b",
      "a\nb",
      "\u0000",
      "\u007f",
      "\u0085",
      "\ud800",
      "x".repeat(129),
    ];
    for (const uid of invalid) {
      const body = { ...TOKEN, uid };
      const { status, json } = await inject(api, "POST /user/token", { body });
      t.equal(status, 400, JSON.stringify(uid));
      t.match(json, { code: "bad_id", details: [{ path: "uid" }] });
    }
    t.same(api.calls, []);
    for (const uid of ["x", "x".repeat(128), "名前-é😀", " a b ", "../%2e"]) {
      const body = { ...TOKEN, uid };
      t.equal((await inject(api, "POST /user/token", { body })).status, 200, uid);
    }
  },
);

t.test("POST /user/token rejects the system uid with 400", async (t) => {
  const api = await startApi();
  api.failure = new BrokerError("reserved_uid");
  const { status, json } = await inject(api, "POST /user/token", {
    body: TOKEN,
  });
  t.equal(status, 400);
  t.equal(json.code, "reserved_uid");
});

t.test(
  "POST /user/device_quit logs out the device with the flag device_flag, or all devices if device_flag is -1",
  async (t) => {
    const api = await startApi();
    for (const [device_flag, flags] of [
      [-1, [0, 1, 2]],
      [0, [0]],
      [2, [2]],
    ]) {
      const body = { uid: "u1", device_flag };
      const answer = await inject(api, "POST /user/device_quit", { body });
      t.equal(answer.text, '{"status":"ok"}');
      t.same(api.calls.at(-1), { call: "quitDevice", args: ["u1", flags] });
    }
  },
);

t.test("POST /user/device_quit rejects a missing or unknown flag with 400", async (t) => {
  const api = await startApi();
  for (const body of [
    { uid: "u1" },
    { uid: "u1", device_flag: -2 },
    { uid: "u1", device_flag: 3 },
    { device_flag: 0 },
  ])
    t.equal((await inject(api, "POST /user/device_quit", { body })).status, 400);
  t.same(api.calls, []);
});

t.test(
  "POST /user/onlinestatus returns a record for each uid of the request, repeated uids included, in the same order",
  async (t) => {
    const api = await startApi();
    api.presence = [
      { uid: "b", online: true, flag: 2 },
      { uid: "a", online: false, flag: 0 },
      { uid: "b", online: true, flag: 2 },
    ];
    const answer = await inject(api, "POST /user/onlinestatus", {
      body: ["b", "a", "b"],
    });
    t.same(api.calls, [{ call: "onlineStatus", args: [["b", "a", "b"]] }]);
    t.same(answer.json, [
      { uid: "b", online: 1, device_flag: 2 },
      { uid: "a", online: 0, device_flag: 0 },
      { uid: "b", online: 1, device_flag: 2 },
    ]);
  },
);

t.test("POST /user/onlinestatus returns an empty array for an empty array", async (t) => {
  const api = await startApi();
  const answer = await inject(api, "POST /user/onlinestatus", { body: [] });
  t.equal(answer.status, 200);
  t.equal(answer.text, "[]");
});

t.test("POST /user/onlinestatus rejects a body that is not an array of ids with 400", async (t) => {
  const api = await startApi();
  for (const body of [{}, { uids: ["a"] }, "null", '"a"', "1", [1], [null], [["a"]]]) {
    const { status } = await inject(api, "POST /user/onlinestatus", { body });
    t.equal(status, 400, JSON.stringify(body));
  }
  const { json } = await inject(api, "POST /user/onlinestatus", {
    body: ["a", "b@c"],
  });
  t.match(json, { code: "bad_id", details: [{ path: "1" }] });
  t.same(api.calls, []);
});

t.test("POST /user/onlinestatus rejects more than 10000 uids with 400", async (t) => {
  const api = await startApi();
  const uids = Array.from({ length: 10_001 }, (_, i) => `u${i}`);
  const tooMany = await inject(api, "POST /user/onlinestatus", { body: uids });
  t.equal(tooMany.status, 400);
  t.same(tooMany.json.details, [{ path: "", message: "must not have more than 10000 items" }]);
  const atLimit = await inject(api, "POST /user/onlinestatus", {
    body: uids.slice(1),
  });
  t.equal(atLimit.status, 200);
});
