// The calls about users: /user/token, /user/device_quit, /user/onlinestatus.

import { BrokerError } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { inject, startApi } from "./harness.ts";

const TOKEN = { uid: "u1", token: "t1", device_flag: 1, device_level: 1 };

t.test(
  "POST /user/token: registers uid, token, flag and level and answers status ok [spec: POST /user/token]",
  async (t) => {
    const api = await startApi();
    const answer = await inject(api, "POST /user/token", { body: TOKEN });
    t.equal(answer.status, 200);
    t.equal(answer.text, '{"status":"ok"}');
    const input = { uid: "u1", token: "t1", flag: 1, level: 1 };
    t.same(api.asked, [{ call: "setToken", args: [input] }]);
  },
);

t.test(
  "POST /user/token: device_level absent is 0, secondary [decisions: device_level absent]",
  async (t) => {
    const api = await startApi();
    const { device_level: _, ...body } = TOKEN;
    await inject(api, "POST /user/token", { body });
    t.match(api.asked[0]?.args, [{ level: 0 }]);
  },
);

t.test(
  "POST /user/token: device_flag outside 0,1,2 is refused with 400 [spec: device_flag]",
  async (t) => {
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
    t.same(api.asked, []);
  },
);

t.test(
  "POST /user/token: device_level outside 0,1 is refused with 400 [spec: device_level]",
  async (t) => {
    const api = await startApi();
    for (const device_level of [-1, 2, 0.5, "0", false, null]) {
      const body = { ...TOKEN, device_level };
      const { status, json } = await inject(api, "POST /user/token", { body });
      t.equal(status, 400, JSON.stringify(device_level));
      t.match(json.details, [{ path: "device_level" }]);
    }
  },
);

t.test(
  "POST /user/token: uid, token and device_flag are required and named in details [spec: POST /user/token]",
  async (t) => {
    const api = await startApi();
    const { status, json } = await inject(api, "POST /user/token", {
      body: {},
    });
    t.equal(status, 400);
    t.same(
      json.details.map((one: { path: string }) => one.path),
      ["uid", "token", "device_flag"],
    );
    const empty = { ...TOKEN, token: "" };
    t.equal((await inject(api, "POST /user/token", { body: empty })).status, 400);
  },
);

t.test(
  "POST /user/token: ids have 1 to 128 characters, no control characters, none of @ # & [decisions: Limits]",
  async (t) => {
    const api = await startApi();
    const bad = [
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
    for (const uid of bad) {
      const body = { ...TOKEN, uid };
      const { status, json } = await inject(api, "POST /user/token", { body });
      t.equal(status, 400, JSON.stringify(uid));
      t.match(json, { code: "bad_id", details: [{ path: "uid" }] });
    }
    t.same(api.asked, []);
    for (const uid of ["x", "x".repeat(128), "名前-é😀", " a b ", "../%2e"]) {
      const body = { ...TOKEN, uid };
      t.equal((await inject(api, "POST /user/token", { body })).status, 200, uid);
    }
  },
);

t.test(
  "POST /user/token: the system uid is refused with 400 [decisions: System uid]",
  async (t) => {
    const api = await startApi();
    api.thrown = new BrokerError("reserved_uid");
    const { status, json } = await inject(api, "POST /user/token", {
      body: TOKEN,
    });
    t.equal(status, 400);
    t.equal(json.code, "reserved_uid");
  },
);

t.test("POST /user/device_quit: a flag means that device class, -1 all three", async (t) => {
  const api = await startApi();
  for (const [device_flag, flags] of [
    [-1, [0, 1, 2]],
    [0, [0]],
    [2, [2]],
  ]) {
    const body = { uid: "u1", device_flag };
    const answer = await inject(api, "POST /user/device_quit", { body });
    t.equal(answer.text, '{"status":"ok"}');
    t.same(api.asked.at(-1), { call: "quitDevice", args: ["u1", flags] });
  }
});

t.test("POST /user/device_quit: a missing or unknown flag is refused with 400", async (t) => {
  const api = await startApi();
  for (const body of [
    { uid: "u1" },
    { uid: "u1", device_flag: -2 },
    { uid: "u1", device_flag: 3 },
    { device_flag: 0 },
  ])
    t.equal((await inject(api, "POST /user/device_quit", { body })).status, 400);
  t.same(api.asked, []);
});

t.test(
  "POST /user/onlinestatus: takes an array and answers one record per uid in order [spec: POST /user/onlinestatus]",
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
    t.same(api.asked, [{ call: "onlineStatus", args: [["b", "a", "b"]] }]);
    t.same(answer.json, [
      { uid: "b", online: 1, device_flag: 2 },
      { uid: "a", online: 0, device_flag: 0 },
      { uid: "b", online: 1, device_flag: 2 },
    ]);
  },
);

t.test("POST /user/onlinestatus: an empty array gives [] [decisions: Online status]", async (t) => {
  const api = await startApi();
  const answer = await inject(api, "POST /user/onlinestatus", { body: [] });
  t.equal(answer.status, 200);
  t.equal(answer.text, "[]");
});

t.test(
  "POST /user/onlinestatus: what is not an array of ids is refused with 400 [spec: POST /user/onlinestatus]",
  async (t) => {
    const api = await startApi();
    for (const body of [{}, { uids: ["a"] }, "null", '"a"', "1", [1], [null], [["a"]]]) {
      const { status } = await inject(api, "POST /user/onlinestatus", { body });
      t.equal(status, 400, JSON.stringify(body));
    }
    const { json } = await inject(api, "POST /user/onlinestatus", {
      body: ["a", "b@c"],
    });
    t.match(json, { code: "bad_id", details: [{ path: "1" }] });
    t.same(api.asked, []);
  },
);

t.test(
  "POST /user/onlinestatus: more than 10000 uids are refused with 400 [decisions: Limits]",
  async (t) => {
    const api = await startApi();
    const uids = Array.from({ length: 10_001 }, (_, i) => `u${i}`);
    const over = await inject(api, "POST /user/onlinestatus", { body: uids });
    t.equal(over.status, 400);
    t.same(over.json.details, [{ path: "", message: "must not have more than 10000 items" }]);
    const full = await inject(api, "POST /user/onlinestatus", {
      body: uids.slice(1),
    });
    t.equal(full.status, 200);
  },
);
